"""The worker's side of its keeper, the process that sends its heartbeats."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Set

from .errors import ApiError, refusal
from .keeper import SIGNALS
from .token import Token

log = logging.getLogger("dagctl")

NOTE_EVERY = 0.25  # least seconds between two messages about the progress of an attempt
GOODBYE = 8.0  # seconds until the last heartbeat of a worker is sent or given up
QUICK = 5.0  # a keeper that lived for less than so many seconds is followed by another after a pause

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from dagctl.keeper import main; main(int(sys.argv[2]))"
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Keepable(Protocol):
    """An attempt, as far as its lease is concerned."""

    name: str

    def cancel(self) -> None: ...

    def drain(self) -> None: ...

    def lose(self, why: str) -> None: ...

    def renew(self, capability: str) -> None: ...


class Leases:
    """The leases of a worker's attempts, and its registration. Threads may share it.

    The keeper starts with the first of either. If it dies, another one takes over what it kept.
    """

    def __init__(
        self, heard: Callable[[bool], None] = lambda drain: None, refused: Callable[[ApiError], None] = lambda error: None
    ) -> None:
        """heard is called when a server has answered the worker's heartbeat, refused when it takes no more of them."""
        self._heard, self._refused = heard, refused
        self._lock = threading.Lock()
        self._keeper: Optional[subprocess.Popen[bytes]] = None
        self._listener: Optional[threading.Thread] = None
        self._scribe: Optional[threading.Thread] = None
        self._registration: Optional[Mapping[str, Any]] = None
        self._goodbye: Optional[Mapping[str, Any]] = None  # the order to end it
        self._kept: Dict[str, Mapping[str, Any]] = {}  # the order to keep each attempt
        self._attempts: Dict[str, Keepable] = {}
        self._noted: Set[str] = set()  # attempts whose progress is still to be told
        self._notes = threading.Event()
        self._retired = threading.Event()
        self._closed = False

    def register(self, url: str, token: Token, beat: Mapping[str, Any]) -> None:
        """Start the heartbeats of the worker."""
        with self._lock:
            order = {"op": "register", "url": url, "token": token.read(), "token_file": token.file, "beat": beat, "heard": False}
            self._registration = order
            self._tell(order)

    def retire(self) -> None:
        """End them with one that says that the worker stops, and wait for it."""
        with self._lock:
            if self._registration is None or self._goodbye is not None:
                return
            self._goodbye = {"op": "retire"}
            self._tell(self._goodbye)
        if not self._retired.wait(GOODBYE):
            log.warning("the end of the worker could not be reported")

    def keep(self, attempt: Keepable, key: str, **lease: Any) -> None:
        """Extend the lease of an attempt until `end`. Its order has left this process when keep returns."""
        with self._lock:
            self._attempts[key] = attempt
            self._kept[key] = {"op": "keep", "key": key, "progress": 0, "state": "", **lease}
            self._tell(self._kept[key])

    def note(self, key: str, progress: int, state: str) -> None:
        """Send the progress with one of the next heartbeats."""
        with self._lock:
            if key in self._kept:
                self._kept[key] = {**self._kept[key], "progress": progress, "state": state}
                self._noted.add(key)
                self._notes.set()

    def end(self, key: str) -> None:
        with self._lock:
            self._attempts.pop(key, None)
            if self._kept.pop(key, None):
                self._tell({"op": "end", "key": key})

    def close(self) -> None:
        """End the keeper. The leases that it still kept run out."""
        with self._lock:
            if self._keeper:
                self._write({"op": "leave"})
            self._closed = True
            self._notes.set()
            keeper, listener, self._keeper = self._keeper, self._listener, None
        if keeper is None or keeper.stdin is None or listener is None:
            return
        _close(keeper.stdin)
        try:
            keeper.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            keeper.kill()
        if listener is not threading.current_thread():
            listener.join()

    # The keeper. self._lock is held.

    def _tell(self, order: Mapping[str, Any]) -> None:
        if self._closed:
            return
        if self._keeper is None:
            self._start()
        self._write(order)

    def _write(self, order: Mapping[str, Any]) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()
        except (OSError, ValueError):
            pass  # it has died, and the next one gets all that it has to keep

    def _start(self) -> None:
        # It imports this package and the standard library only, from wherever the worker runs.
        command = [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, _ROOT, str(os.getpid())]
        # A signal for the whole process group waits until the keeper ignores it: until then it would end the keeper.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._listener = threading.Thread(target=self._listen, args=(self._keeper,), name="dagctl-leases", daemon=True)
        self._listener.start()
        if self._scribe is None:
            self._scribe = threading.Thread(target=self._take_notes, name="dagctl-progress", daemon=True)
            self._scribe.start()

    # Threads.

    def _listen(self, keeper: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        assert keeper.stdin is not None and keeper.stdout is not None
        with keeper.stdout:
            for line in keeper.stdout:
                message = json.loads(line)
                getattr(self, "_on_" + message.pop("op"))(**message)
        _close(keeper.stdin)
        status = keeper.wait()
        if self._closed:
            return
        log.warning("the process that keeps the leases has ended (%s): another one takes over", status)
        if time.monotonic() - began < QUICK:
            time.sleep(1.0)
        with self._lock:
            if not self._closed:
                self._start()
                for order in [self._registration, *self._kept.values(), self._goodbye]:
                    if order:
                        self._write(order)

    def _take_notes(self) -> None:
        while not self._closed:
            self._notes.wait()
            with self._lock:
                self._notes.clear()
                noted, self._noted = self._noted, set()
                for key in noted:
                    order = self._kept.get(key)
                    if order and self._keeper:
                        self._write({"op": "note", "key": key, "progress": order["progress"], "state": order["state"]})
            time.sleep(NOTE_EVERY)

    # The keeper's messages.

    def _on_heard(self, drain: bool) -> None:
        with self._lock:
            if self._registration:
                self._registration = {**self._registration, "heard": True}
        self._heard(drain)

    def _on_refused(self, call: str, status: int, detail: str, hint: str) -> None:
        self._refused(refusal(call, status, {"detail": detail, "hint": hint}))

    def _on_retired(self) -> None:
        with self._lock:
            self._registration = self._goodbye = None
        self._retired.set()

    def _on_warn(self, text: str, key: str = "") -> None:
        attempt = self._attempts.get(key)
        if attempt:
            log.warning("%s: %s", attempt.name, text)
        elif not key:
            log.warning("%s", text)

    def _on_cancel(self, key: str) -> None:
        self._of(key, lambda attempt: attempt.cancel())

    def _on_drain_task(self, key: str) -> None:
        self._of(key, lambda attempt: attempt.drain())

    def _on_lost(self, key: str, why: str) -> None:
        self._of(key, lambda attempt: attempt.lose(why))

    def _on_capability(self, key: str, token: str) -> None:
        with self._lock:
            if key in self._kept:
                self._kept[key] = {**self._kept[key], "capability": token}
        self._of(key, lambda attempt: attempt.renew(token))

    def _of(self, key: str, do: Callable[[Keepable], None]) -> None:
        attempt = self._attempts.get(key)
        if attempt:
            do(attempt)


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:
        pass  # there was something left to write
