"""Where in a handler an exception was raised, as people read it on the task, in its log, and in `dagctl why`."""

from __future__ import annotations

import os
import traceback
from typing import List, Optional, Set

HEAD = "Traceback of the handler (most recent call last):"  # servers know what precedes this line as the error's headline

MOST_FRAMES = 20  # of each exception, the innermost ones
LONGEST_LINE = 1000  # characters
MOST = 6000  # characters

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def traced(message: str, error: BaseException, most: int) -> str:
    """Return a message, and the traceback of its exception below it, in at most `most` characters.

    Frames of this package are left out, and so is the last line of Python's own tracebacks, which is the message. The
    traceback is shortened by whole lines, because the server could not find one half of a secret to remove it.
    """
    told = traceback.TracebackException.from_exception(error)
    _leave_out_own(told, set())
    if not told.stack:
        return message

    last = "".join(told.format_exception_only())
    text = "".join(told.format())
    lines = text[: len(text) - len(last)].splitlines() if text.endswith(last) else text.splitlines()
    lines = [line if len(line) <= LONGEST_LINE else f"    (a line of {len(line)} characters)" for line in lines[1:]]

    kept = _last(lines, min(MOST, most - len(message) - len(HEAD) - 2))
    return "\n".join([message, HEAD, *kept]) if kept else message


def _leave_out_own(told: Optional[traceback.TracebackException], seen: Set[int]) -> None:
    """Remove the frames of this package from a traceback, and from those of the exceptions that led to it."""
    if told is None or id(told) in seen:
        return
    seen.add(id(told))
    frames = [frame for frame in told.stack if not os.path.abspath(frame.filename).startswith(_OWN)]
    told.stack = traceback.StackSummary.from_list(frames[-MOST_FRAMES:])
    for other in [told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or [])]:
        _leave_out_own(other, seen)


def _last(lines: List[str], most: int) -> List[str]:
    """Return the last lines that have at most so many characters, and the number of those that are left out."""
    size, first = 0, len(lines)
    while first > 0 and size + len(lines[first - 1]) + 1 <= most - 40:
        first -= 1
        size += len(lines[first]) + 1
    if first == 0:
        return lines
    return [f"  ({first} lines are left out)", *lines[first:]] if first < len(lines) else []
