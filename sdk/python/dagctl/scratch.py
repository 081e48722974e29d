"""Folders for the files of attempts. What a killed process leaves goes with the next worker that starts beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from typing import Optional

try:
    import fcntl
except ImportError:  # Windows, where folders of killed processes stay
    fcntl = None  # type: ignore[assignment]

_PREFIX = "dagctl-task-"
_LOCK = ".lock"


class Scratch:
    """A folder of the attempt, created when needed and removed at the end.

    A file with its name and .lock is locked for as long as its process lives.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._dir: Optional[str] = None
        self._lock: Optional[int] = None

    def file(self, ending: str) -> str:
        """Return the path of a new, empty file."""
        with self._guard:
            if self._dir is None:
                self._dir = self._make()
        handle, path = tempfile.mkstemp(suffix=ending, dir=self._dir)
        os.close(handle)
        return path

    def remove(self) -> None:
        if self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
        if self._lock is not None and self._dir is not None:
            _unlink(self._dir + _LOCK)
            os.close(self._lock)
            self._lock = None

    def _make(self) -> str:
        if fcntl is None:
            return tempfile.mkdtemp(prefix=_PREFIX)
        while True:
            lock, path = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _stands(lock, path):
                break
            os.close(lock)  # a sweep came between
        self._lock = lock
        made = path[: -len(_LOCK)]
        os.mkdir(made, 0o700)
        return made


def sweep() -> None:
    """Remove the folders of attempts whose processes were killed."""
    if fcntl is None:
        return
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if not name.startswith(_PREFIX) or not name.endswith(_LOCK) or os.path.islink(path) or not os.path.isfile(path):
            continue
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:
            continue  # removed meanwhile, or another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _stands(lock, path):
                shutil.rmtree(path[: -len(_LOCK)], ignore_errors=True)
                _unlink(path)
        except OSError:
            pass  # its process lives
        finally:
            os.close(lock)


def _stands(lock: int, path: str) -> bool:
    """Say whether a file is still where it was opened."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except OSError:
        return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # another sweep removed it
