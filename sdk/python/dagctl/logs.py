"""Sends the lines of a task's log to the server.

Lines are numbered from 1 without gaps and sent in batches. Lines that are not acknowledged are sent again; the server skips
those that it has. So a crash loses no acknowledged line, and no line is stored twice.
"""

from __future__ import annotations

import collections
import contextvars
import datetime
import logging
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional

from .errors import ApiError, Error, InvalidError, TooLargeError, UnavailableError
from .protocol import LONGEST_LINE, MOST_LINES

COMPANY = 0.3  # seconds that a line waits for others to join its batch
LARGEST_BATCH = 256 << 10  # characters
MOST_KEPT = 20_000  # lines that may wait for the server
LONGEST_WAIT = 30.0  # seconds that a full buffer blocks logging

Send = Callable[[List[Dict[str, Any]]], int]  # lines → the number up to which all are stored

# The buffer for lines logged in this context. A handler's own threads can get the context by contextvars.copy_context.
current: contextvars.ContextVar[Optional[LogBuffer]] = contextvars.ContextVar("dagctl_log", default=None)


class LogBuffer:
    """The lines of one attempt. A thread of its own sends them, from the first line on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._lines: Deque[Dict[str, Any]] = collections.deque()
        self._next = 1
        self._lost = 0  # lines dropped for lack of space
        self._closing: Optional[float] = None  # until when lines are still sent
        self._ended = False  # nothing more is sent
        self._sender: Optional[threading.Thread] = None

    def add(self, level: str, text: str) -> None:
        """Queue a text, line by line. If the buffer is full, wait for the server, then drop lines."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat()
        with self._changed:
            for line in _lines(text):
                if not self._room():
                    self._lost += 1
                    continue
                if self._lost:
                    self._append(at, "warn", f"{self._lost} lines are missing here: the server was away for too long")
                    self._lost = 0
                self._append(at, level, line)
            if self._sender is None and not self._ended:
                self._sender = threading.Thread(target=self._run, name="dagctl-log", daemon=True)
                self._sender.start()
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Send the remaining lines for some time, then nothing more."""
        with self._changed:
            self._closing = time.monotonic() + seconds
            self._changed.notify_all()
            while self._lines and not self._ended and self._sender is not None:
                left = self._closing - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._ended = True
            self._lines.clear()
            self._changed.notify_all()

    def _room(self) -> bool:
        until = time.monotonic() + LONGEST_WAIT
        # After lines were dropped, logging does not block again before there is space.
        while len(self._lines) >= MOST_KEPT and not self._ended and not self._lost and self._sender is not None:
            if not self._changed.wait(max(0.0, until - time.monotonic())):
                break
        return len(self._lines) < MOST_KEPT and not self._ended

    def _append(self, at: str, level: str, text: str) -> None:
        self._lines.append({"seq": self._next, "at": at, "level": level, "text": text})
        self._next += 1

    def _run(self) -> None:
        while True:
            batch = self._batch()
            if not batch:
                return
            try:
                stored = self._send(batch)
            except UnavailableError:
                continue  # the call has waited between its tries
            except (InvalidError, TooLargeError):
                # Later batches cannot be acknowledged without this one, because the numbers have no gaps.
                for line in batch:
                    line["text"] = "(the server refused this line)"
                continue
            except (ApiError, Error):
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()
                return
            with self._changed:
                while self._lines and self._lines[0]["seq"] <= stored:
                    self._lines.popleft()
                self._changed.notify_all()

    def _batch(self) -> List[Dict[str, Any]]:
        """Wait for lines. Returns none when no more will come."""
        with self._changed:
            while not self._lines:
                if self._ended or self._closing is not None:
                    return []
                self._changed.wait()
            if self._closing is None and len(self._lines) < MOST_LINES:
                self._changed.wait_for(lambda: self._closing is not None or len(self._lines) >= MOST_LINES, COMPANY)
            if self._ended:
                return []
            batch: List[Dict[str, Any]] = []
            size = 0
            for line in self._lines:
                size += len(line["text"])
                if batch and (len(batch) == MOST_LINES or size > LARGEST_BATCH):
                    break
                batch.append(line)
            return batch


class TaskLogHandler(logging.Handler):
    """Sends records to the log of the task whose handler logs them, and ignores all others.

    `ctx.log` has one. Add another to a logger of your own, such as the root, to have its records in the task's log too::

        logging.getLogger().addHandler(dagctl.TaskLogHandler())
    """

    def __init__(self, level: int = logging.NOTSET, buffer: Optional[LogBuffer] = None) -> None:
        super().__init__(level)
        self._buffer = buffer

    def emit(self, record: logging.LogRecord) -> None:
        buffer = self._buffer
        if buffer is None and record.name != "dagctl":  # the worker's own lines belong to no task
            buffer = current.get()
        if buffer is None or getattr(record, "dagctl_kept", False):
            return
        try:
            record.dagctl_kept = True  # so that two handlers on the way to the root send it once
            buffer.add(_level(record.levelno), self.format(record))
        except Exception:
            self.handleError(record)


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def _lines(text: str) -> List[str]:
    lines: List[str] = []
    for line in storable(text).splitlines() or [""]:
        lines += [line[i : i + LONGEST_LINE] for i in range(0, len(line), LONGEST_LINE)] or [""]
    return lines


def storable(text: str) -> str:
    """Replace what a server cannot keep: PostgreSQL stores no NUL, and JSON has no half of a surrogate pair."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
