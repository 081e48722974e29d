"""The process that sends the heartbeats of a worker and of its tasks.

A handler may keep the interpreter to itself for minutes: in a regular expression, or in a C extension that does not
release the GIL. Threads beside it are silent meanwhile. So a worker starts this process, tells it over a pipe which
attempts run, and hears over another what the servers answer. A message is an object of JSON in a line, and `op` says
what it is; `Keeper` handles those of the worker, `leases.Leases` those of the keeper.

The keeper never outlives its worker, whose death it notices by the end of the pipe and by having another parent: then it
reports that the attempts failed, so that others need not wait for the ends of their leases. While the worker's process is
stopped (SIGSTOP), it sends nothing, because nobody works on the tasks.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import IO, Any, Dict, List, Mapping, Optional

from .ends import Ends
from .errors import ApiError, ConflictError, Error, ForbiddenError, UnauthorizedError
from .protocol import CAPABILITY_HEADER
from .token import Token
from .transport import Transport

HEARTBEAT = 3.0  # seconds between heartbeats of the worker; they also say which tasks are canceled
HEAR_WITHIN = 3.0  # seconds between heartbeats of an attempt about which those of the worker say nothing
SOONEST = 1.0  # least seconds between heartbeats of an attempt when progress changes or one fails; less for short leases
FEW = 3  # attempts whose leases are renewed one by one; of more, many are renewed by one call
TOGETHER = 0.02  # seconds that a heartbeat waits for others
LOOK = 0.5  # seconds between two looks at the worker's process
LAST_WORDS = 10.0  # seconds for reporting that the worker has died
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # meant for the worker, which says when it has finished


class Keeper:
    """The state of the process: the worker it belongs to, and the attempts that run."""

    def __init__(self, worker: int, tell: IO[bytes]) -> None:
        self._worker = worker  # id of its process
        self._told: "queue.SimpleQueue[Mapping[str, Any]]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._kept: Dict[str, Kept] = {}
        self._transports: Dict[str, Transport] = {}
        self._registration: Optional[Registration] = None
        self._beats = Ends(self._post_many, lambda: sys.maxsize, "heartbeat", TOGETHER)
        self._hung_up = threading.Event()
        self._left = False  # the worker said that it needs the keeper no more
        threading.Thread(target=self._speak, args=(tell,), daemon=True).start()

    def serve(self, orders: IO[bytes]) -> None:
        """Keep leases until the worker hangs up or is gone."""
        threading.Thread(target=self._listen, args=(orders,), daemon=True).start()
        while not self._hung_up.wait(LOOK) and self._lives():
            pass
        # A process that dies closes its pipe shortly before its children get another parent.
        until = time.monotonic() + 2 * LOOK
        while not self._left and self._lives() and time.monotonic() < until:
            time.sleep(LOOK / 10)
        if not self._left and not self._lives():
            self._bury()

    def tell(self, op: str, **more: Any) -> None:
        """Send a message to the worker, without waiting for it."""
        self._told.put({"op": op, **more})

    def stopped(self) -> bool:
        """Whether the worker's process is stopped or gone. Where there is no /proc, a stopped one counts as running."""
        try:
            with open(f"/proc/{self._worker}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            return not self._lives()
        return state in b"TtZX" or not self._lives()

    def transport(self, url: str) -> Transport:
        with self._lock:
            if url not in self._transports:
                self._transports[url] = Transport(url)
            return self._transports[url]

    def kept(self) -> List[Kept]:
        """The attempts that run."""
        with self._lock:
            return list(self._kept.values())

    def beat(self, kept: Kept, capability: str, body: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
        """Send a heartbeat with those of other attempts that are due soon. Returns None if it has to be sent by itself."""
        others = self.kept()
        if len(others) <= FEW:
            return None
        for other in others:
            if other is not kept:
                other.join()
        return self._beats.report(capability, body)

    def _post_many(self, path: str, body: Any) -> Any:
        registration = self._registration
        assert registration is not None  # the attempts that share calls have it
        headers = {"Authorization": f"Bearer {registration.token}"}
        answer = registration.transport.call("POST", path, headers=headers, json_body=body, patience=0, timeout=2 * HEARTBEAT)
        return answer.json()

    def _lives(self) -> bool:
        return os.getppid() == self._worker

    def _listen(self, orders: IO[bytes]) -> None:
        for line in orders:
            order = json.loads(line)
            getattr(self, "_" + order.pop("op"))(**order)
        self._hung_up.set()

    def _speak(self, tell: IO[bytes]) -> None:
        while True:
            line = json.dumps(self._told.get()).encode() + b"\n"
            try:
                tell.write(line)
                tell.flush()
            except (OSError, ValueError):
                return  # the worker has gone

    # The worker's orders.

    def _register(self, url: str, token: str, token_file: str, beat: Mapping[str, Any], heard: bool) -> None:
        self._registration = Registration(self, self.transport(url), Token(token, token_file), beat, heard)

    def _leave(self) -> None:
        self._left = True
        self._hung_up.set()

    def _retire(self) -> None:
        if self._registration:
            self._registration.retire()

    def _keep(self, key: str, url: str, **lease: Any) -> None:
        kept = Kept(self, key, self.transport(url), **lease)
        with self._lock:
            self._kept[key] = kept
        kept.start()

    def _note(self, key: str, progress: int, state: str) -> None:
        kept = self._kept.get(key)
        if kept:
            kept.note(progress, state)

    def _end(self, key: str) -> None:
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept:
            kept.end()

    def _bury(self) -> None:
        """Report that the attempts of a dead worker failed."""
        reports = [threading.Thread(target=kept.fail, daemon=True) for kept in self.kept()]
        for report in reports:
            report.start()
        for report in reports:
            report.join(LAST_WORDS)


class Kept:
    """An attempt whose lease is extended."""

    def __init__(
        self, keeper: Keeper, key: str, transport: Transport, fence: Mapping[str, Any], capability: str,
        headers: Mapping[str, str], lease_seconds: float, progress: int, state: str,
    ) -> None:
        self.task_id = str(fence["task_id"])
        self._keeper, self._key, self._transport = keeper, key, transport
        self._fence, self._capability, self._headers = fence, capability, headers
        self._interval = max(0.1, lease_seconds / 3)
        self._progress, self._state = progress, state
        self._registration = keeper._registration  # whose heartbeats bring its cancel, as long as the token is the same
        self._token = self._registration.token if self._registration else ""
        self._canceled = False
        self._due = 0.0  # when the next heartbeat is due; 0: it is on its way
        self._alone = False  # the last heartbeat got no answer
        self._ended = threading.Event()
        self._soon = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def note(self, progress: int, state: str) -> None:
        self._progress, self._state = progress, state
        self.wake()

    def wake(self) -> None:
        """Send a heartbeat soon."""
        self._soon.set()

    def join(self) -> None:
        """Send a heartbeat now if it is due within half of the time between two."""
        if 0.0 < self._due - time.monotonic() < self._pause() / 2:
            self.wake()

    def cancel(self) -> None:
        """Tell the worker, once, that the task is canceled."""
        if not self._canceled:
            self._canceled = True
            self._keeper.tell("cancel", key=self._key)

    def drain(self) -> None:
        self._keeper.tell("drain_task", key=self._key)

    def end(self) -> None:
        self._ended.set()
        self._soon.set()

    def fail(self) -> None:
        """Report that the attempt failed, because its worker is gone."""
        error = {"message": "the worker's process ended while the handler ran"}
        try:
            self._post("/v1/task/complete", {"status": "Failed", "error": error}, patience=LAST_WORDS / 2, timeout=LAST_WORDS / 2)
        except Error:
            pass  # then the lease ends by itself

    def _run(self) -> None:
        last = time.monotonic()
        wait = self._pause()
        while True:
            self._due = time.monotonic() + wait
            self._soon.wait(wait)
            self._due = 0.0
            soonest = min(SOONEST, self._interval / 4)
            self._ended.wait(max(0.0, last + soonest - time.monotonic()))
            if self._ended.is_set():
                return
            if self._keeper.stopped():
                wait = min(LOOK, soonest)
                continue
            self._soon.clear()
            last = time.monotonic()
            try:
                wait = self._pause() if self._beat() else soonest
            except (ConflictError, UnauthorizedError, ForbiddenError) as refused:
                self._keeper.tell("lost", key=self._key, why=refused.detail)
                return

    def _pause(self) -> float:
        told = self._registration is not None and self._registration.token == self._token
        return self._interval if told else min(self._interval, HEAR_WITHIN)

    def _beat(self) -> bool:
        """Extend the lease. Returns False if no server did, and another try should follow soon."""
        note = {"progress": self._progress, "state": self._state}
        alone, self._alone = self._alone, True
        try:
            answer = None if alone or not self._shares() else self._keeper.beat(self, self._capability, {**self._fence, **note})
            if answer is None:
                answer = self._post("/v1/task/heartbeat", note, patience=0, timeout=max(1.0, min(self._interval, 30.0)))
        except (ConflictError, UnauthorizedError, ForbiddenError):
            raise
        except Error as error:
            self._keeper.tell("warn", key=self._key, text=f"no heartbeat: {error}")
            return False
        self._alone = False
        if answer.get("capability_token"):
            self._capability = str(answer["capability_token"])
            self._keeper.tell("capability", key=self._key, token=self._capability)
        if answer.get("drain_requested"):
            self.drain()
        if answer.get("cancel_requested"):
            self.cancel()
        return True

    def _shares(self) -> bool:
        """Whether its calls go where those of the worker go."""
        return self._registration is not None and self._registration.transport is self._transport

    def _post(self, path: str, body: Mapping[str, Any], patience: float, timeout: float) -> Mapping[str, Any]:
        headers = {**self._headers, CAPABILITY_HEADER: self._capability}
        answer = self._transport.call(
            "POST", path, headers=headers, json_body={**self._fence, **body}, patience=patience, timeout=timeout
        )
        return answer.json() or {}


class Registration:
    """The heartbeats of the worker."""

    def __init__(self, keeper: Keeper, transport: Transport, token: Token, beat: Mapping[str, Any], heard: bool) -> None:
        self.token = token.read()  # of the last heartbeat
        self.transport = transport
        self._keeper, self._tokens, self._beat = keeper, token, beat
        self._heard = heard  # a server has taken the token once
        self._retired = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def retire(self) -> None:
        """Let the last heartbeat say that the worker stops."""
        self._retired.set()

    def _run(self) -> None:
        while not self._retired.is_set():
            if not self._keeper.stopped():
                try:
                    self._obey(self._send(patience=0, timeout=2 * HEARTBEAT))
                except UnauthorizedError as error:
                    # After a rotation, the new token may come a while after the old one has ended.
                    if not (self._heard and self._tokens.file):
                        return self._refuse(error)
                    self._keeper.tell("warn", text=f"{error}; waiting for another token in {self._tokens.file}")
                except ApiError as error:
                    return self._refuse(error)
                except Error as error:
                    self._keeper.tell("warn", text=str(error))
            self._retired.wait(HEARTBEAT)
        try:
            # Remaining tasks go to others at once, instead of when the leases expire.
            self._send(patience=HEARTBEAT, timeout=HEARTBEAT, stopping=True)
        except Error as error:
            self._keeper.tell("warn", text=str(error))
        self._keeper.tell("retired")

    def _send(self, patience: float, timeout: float, **more: Any) -> Mapping[str, Any]:
        before, self.token = self.token, self._tokens.read()
        if self.token != before:
            for kept in self._keeper.kept():
                kept.wake()  # its cancel comes with its own heartbeats from now on
        body = {**self._beat, "current_tasks": len(self._keeper.kept()), **more}
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = self.transport.call(
            "POST", "/internal/worker-heartbeat", headers=headers, json_body=body, patience=patience, timeout=timeout
        )
        self._heard = True
        return answer.json() or {}

    def _obey(self, orders: Mapping[str, Any]) -> None:
        canceled, drained = orders.get("canceled") or [], orders.get("drained") or []
        for kept in self._keeper.kept():
            if kept.task_id in canceled:
                kept.cancel()
            if kept.task_id in drained:
                kept.drain()
        self._keeper.tell("heard", drain=bool(orders.get("drain")))

    def _refuse(self, error: ApiError) -> None:
        told = {"call": error.call, "status": error.status, "detail": error.detail, "hint": error.hint}
        self._keeper.tell("refused", **told)
        self._retired.wait()
        self._keeper.tell("retired")


def main(worker: int) -> None:
    """Serve the worker with a process id, over standard input and output."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the worker has held back what came while this process started
    Keeper(worker, sys.stdout.buffer).serve(sys.stdin.buffer)
    os._exit(0)  # whatever threads still wait for
