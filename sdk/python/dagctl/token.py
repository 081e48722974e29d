"""A worker's token."""

from __future__ import annotations

import os
from typing import Optional


class Token:
    """A text, or the present content of a file, which somebody may replace while the worker runs."""

    def __init__(self, text: Optional[str] = None, file: Optional[str] = None) -> None:
        # What the program passes comes before the environment, and a file before a text.
        self._file = file or ("" if text else os.environ.get("DAGCTL_TOKEN_FILE", ""))
        self._text = text or os.environ.get("DAGCTL_TOKEN", "")

    @property
    def file(self) -> str:
        """The file's name; "" if the token never changes."""
        return self._file

    def read(self) -> str:
        """Return the token. While the file is missing or empty, that is the last one."""
        if self._file:
            try:
                with open(self._file, encoding="utf-8") as file:
                    self._text = file.read().strip() or self._text
            except FileNotFoundError:
                pass
        return self._text

    def __repr__(self) -> str:
        return f"Token({self._file})"
