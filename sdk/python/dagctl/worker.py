"""A worker: it takes tasks of a runtime, runs their handlers in threads, and stops without losing tasks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Set, Tuple

from . import protocol, scratch
from .attempt import LOST, UNREPORTED
from .ends import Ends
from .errors import UnauthorizedError, UnavailableError
from .handlers import Function, Handlers, Run
from .health import Health
from .leases import Leases
from .protocol import Claim
from .sqs import MOST_MESSAGES, Held, Queue, tasks_of
from .token import Token
from .transport import Transport, pause

log = logging.getLogger("dagctl")

VERSION = "0.1.0"
POLL_WAIT = 20  # seconds that a server holds a poll without tasks
SOONEST = 0.5  # least seconds between two polls without tasks

STOPS = {b".", bytes([signal.SIGTERM]), bytes([signal.SIGINT])}  # what is written to the pipe that wakes `run`

Work = Callable[[], None]


class Source(Protocol):
    """A source of tasks."""

    def take(self, most: int) -> Sequence[Work]:
        """Wait for work and return at most `most` pieces, or none after a while."""
        ...

    def stop(self) -> None:
        """Interrupt a `take` that waits in another thread."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


class Worker:
    """Runs handlers for the tasks of a runtime.

    ::

        worker = dagctl.Worker("https://dagctl.example.com", token, runtime="python")

        @worker.handler("email:send")
        def send(ctx: dagctl.Context, mail: Mail) -> None: ...

        worker.run()

    url and token default to DAGCTL_URL and DAGCTL_TOKEN in the environment; the token is a worker token. token_file, or
    DAGCTL_TOKEN_FILE, names a file with a token that may be replaced while the worker runs. pool_size is how many tasks run
    at once, each in a thread of its own; another process extends their leases, so no handler can stop that. health_address,
    such as "0.0.0.0:8081", answers GET /healthz and /readyz. On SIGTERM or SIGINT a worker claims no more tasks, gives running ones drain_seconds to end, and hands the rest
    back; ECS ends a container 30 s after SIGTERM. Drained by `dagctl workers drain`, it waits for all running tasks. With
    exit_when_idle it ends when the server says that its jobs have been idle for their idle_timeout.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        token_file: Optional[str] = None,
        runtime: Optional[str] = None,
        pool_size: int = 4,
        worker_id: Optional[str] = None,
        health_address: Optional[str] = None,
        drain_seconds: float = 24.0,
        exit_when_idle: bool = False,
    ) -> None:
        if pool_size < 1:
            raise ValueError("pool_size is at least 1")
        self.url = url or os.environ.get("DAGCTL_URL", "")
        self.runtime = runtime
        self.pool_size = pool_size
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._incarnation = uuid.uuid4().hex  # a process that takes the name over has another
        self._token = Token(token, token_file)
        self._health_address = health_address
        self._drain_seconds = drain_seconds
        self._exit_when_idle = exit_when_idle
        self._handlers = Handlers()
        self._transports: Dict[str, Transport] = {}
        self._leases = Leases(self._heard, self._fail)
        self._ends = Ends(lambda path, body: self.post(path, body, patience=0), lambda: self._busy)
        self._changed = threading.Condition()
        self._runs: Set[Run] = set()
        self._busy = 0  # number of occupied slots
        self._stopping = threading.Event()
        self._why = ""
        self._patient = False  # drained by order, so there is no hurry
        self._fatal: Optional[BaseException] = None
        self._contact = time.monotonic()  # when a server last answered
        self._answered = False  # a server has accepted the token once
        self._wake: Optional[int] = None  # write end of a pipe that wakes `run`

    def __repr__(self) -> str:
        return f"Worker({self.url!r}, runtime={self.runtime!r}, worker_id={self.worker_id!r}, handlers={self._handlers.names()})"

    def handler(self, name: str) -> Callable[[Function], Function]:
        """Register the function that runs jobs with `operator: handler` and `config: {handler: NAME}`.

        It takes (ctx) or (ctx, payload). The payload is converted to its annotation, such as a dataclass. The return value is
        the task's result: light JSON for people. It may be a coroutine function.
        """

        def register(function: Function) -> Function:
            self._handlers.add(name, function)
            return function

        return register

    @property
    def handlers(self) -> List[str]:
        """The names of the handlers."""
        return self._handlers.names()

    def run(self) -> None:
        """Take tasks by long poll until the process is stopped. Raises errors that waiting cannot fix, such as 401."""
        if not self.runtime:
            raise ValueError("a worker that polls needs a runtime of the server's config: Worker(..., runtime=NAME)")
        self._serve(lambda: PollSource(self))

    def run_sqs(self, queue_url: str, **options: Any) -> None:
        """Take tasks from an SQS queue until the process is stopped.

        Options: endpoint and region (by default those of the queue's URL, or AWS_REGION), visibility_seconds (60), and
        credentials, a function that returns `dagctl.AWSCredentials`; by default the environment's or the ECS task role's.
        """
        self._serve(lambda: SQSSource(self, Queue(queue_url, **options)))

    def stop(self, why: str = "stop was called") -> None:
        """Make `run` drain and return. Any thread may call it."""
        self._why = self._why or why
        self._stopping.set()
        if self._wake is not None:
            os.write(self._wake, b".")

    def close(self) -> None:
        """Close idle connections and end the process that keeps leases. A running worker closes its own at the end."""
        self._leases.close()
        self._leases = Leases(self._heard, self._fail)
        with self._changed:
            transports, self._transports = list(self._transports.values()), {}
        for transport in transports:
            transport.close()

    # One task.

    def run_claim(self, claim: Claim) -> str:
        """Run a claimed task. Returns its status, or STALE, LOST or UNREPORTED."""
        assert claim.task is not None
        ends = self._ends if self.url and self._answered else None
        run = Run(self._handlers, claim, self._transport(self.url or claim.base_url), self._leases, ends)
        with self._changed:
            self._runs.add(run)
            run.attempt.drain_requested = self._stopping.is_set()
        log.info("%s: begins, handler %s", run.attempt.name, claim.task.handler)
        try:
            return run()
        finally:
            with self._changed:
                self._runs.discard(run)

    def time_out(self, claim: Claim) -> None:
        """Fail the run of a claim, because the worker's process is about to be stopped."""
        with self._changed:
            runs = [r for r in self._runs if r.attempt.fence == claim.fence]
        for run in runs:
            run.time_out()

    def claim(self, task_id: str) -> Claim:
        """Claim one task by its id."""
        body: Dict[str, Any] = {"task_id": task_id, **self._name(), **self._abilities()}
        if self.runtime:
            body["runtime"] = self.runtime
        return Claim.parse(self.post("/internal/task-claim", body))

    def poll(self, most: int, transport: Transport) -> List[Claim]:
        """Claim at most `most` tasks of the runtime, waiting for the first one."""
        body = {
            **self._name(),
            "runtime": self.runtime,
            "max": min(most, 1000),
            "wait_seconds": POLL_WAIT,
            **self._abilities(),
        }
        answer = self.post("/internal/task-poll", body, transport=transport, patience=0, timeout=POLL_WAIT + 15.0) or {}
        claims = [Claim.parse(c) for c in answer.get("tasks") or []]
        if answer.get("drain"):
            self._be_drained()
        elif answer.get("idle") and not claims and self._exit_when_idle:
            self.stop("its jobs are idle")
        return claims

    def post(
        self, path: str, body: Any, transport: Optional[Transport] = None, patience: float = 60.0, timeout: float = 30.0
    ) -> Any:
        """Call the server as this worker."""
        headers = {"Authorization": f"Bearer {self._token.read()}"}
        try:
            answer = (transport or self._transport(self.url)).call(
                "POST", path, headers=headers, json_body=body, patience=patience, timeout=timeout
            )
        except UnauthorizedError as error:
            # After a rotation, the new token may come a while after the old one has ended.
            if self._answered and self._token.file:
                raise UnavailableError(f"{error}; waiting for another token in {self._token.file}") from None
            raise
        self._contact, self._answered = time.monotonic(), True
        return answer.json()

    def _abilities(self) -> Dict[str, Any]:
        return {"operators": [{"name": "handler"}], "handlers": self._handlers.names()}

    def _transport(self, url: str) -> Transport:
        with self._changed:
            if url not in self._transports:
                self._transports[url] = Transport(url)
            return self._transports[url]

    # The life of a worker.

    def _serve(self, source_of: Callable[[], Source]) -> None:
        if not self.url or not self._token.read():
            raise ValueError("a worker needs the URL of a server and a worker token: pass them, or set DAGCTL_URL and DAGCTL_TOKEN")
        if not self._handlers.names():
            raise ValueError("a worker needs handlers: register them with @worker.handler(NAME)")
        scratch.sweep()
        source = source_of()
        wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        before, woken = self._take_signals(self._wake)
        health = Health(self._health_address, self._readiness) if self._health_address else None
        taking = threading.Thread(target=self._take, args=(source,), name="dagctl-take", daemon=True)
        log.info("worker %s takes tasks of runtime %s from %s", self.worker_id, self.runtime or "any", self.url)
        try:
            self._leases.register(self.url, self._token, self._sign_of_life())
            taking.start()
            while os.read(wakes, 1) not in STOPS:
                pass
            self._stopping.set()
            log.info("worker %s stops: %s", self.worker_id, self._why)
            source.stop()
            taking.join(2.0)  # tasks that it has just taken run, too
            self._drain(wakes)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if before:
                signal.set_wakeup_fd(woken)
            wake, self._wake = self._wake, None
            os.close(wake)
            os.close(wakes)
            if health:
                health.close()
            source.close()
            self.close()
        if self._fatal is not None:
            raise self._fatal

    def _take_signals(self, wake: int) -> Tuple[Dict[int, Any], int]:
        """Let SIGTERM and SIGINT wake `run`. Only the main thread can; in other threads the program handles signals.

        A signal may come to any thread of the process, and does so if the process was stopped. The main thread, which
        waits, would not be interrupted then: so Python itself writes the signal's number to the pipe. Returns the
        handlers and the file descriptor for that as they were before.
        """
        if threading.current_thread() is not threading.main_thread():
            return {}, -1

        def note(number: int, _: Any) -> None:
            # No lock may be taken here: the thread that is interrupted may hold it.
            self._why = self._why or signal.Signals(number).name

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        return before, signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def _take(self, source: Source) -> None:
        tries = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._busy < self.pool_size or self._stopping.is_set())
                free = self.pool_size - self._busy
            if self._stopping.is_set():
                return
            began = time.monotonic()
            try:
                works = source.take(free)
                tries = 0
                if not works and time.monotonic() - began < SOONEST:
                    self._stopping.wait(SOONEST)  # the server did not wait, for example because the worker drains
            except UnavailableError as error:
                if not self._stopping.is_set():
                    log.warning("%s", error)
                self._stopping.wait(pause(tries))
                tries += 1
                continue
            except BaseException as error:  # an invalid token or a wrong URL, for example: waiting does not help
                self._fail(error)
                return
            with self._changed:
                self._busy += len(works)  # before the first of them runs: one that ends waits for those that will
            for work in works:
                threading.Thread(target=self._do, args=(work,), name="dagctl-task", daemon=True).start()

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception as error:
            log.exception("a task could not be run: %s", error)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _be_drained(self) -> None:
        if not self._stopping.is_set():
            self._patient = True
            self.stop("the worker was drained")

    def _fail(self, error: BaseException) -> None:
        self._fatal = self._fatal or error
        if isinstance(error, UnauthorizedError):
            self._patient = True  # tasks that run have tokens of their own
        if not self._stopping.is_set():
            self.stop(str(error))

    def _heard(self, drain: bool) -> None:
        """Note that a server has answered a heartbeat of the worker."""
        self._contact, self._answered = time.monotonic(), True
        if drain:
            self._be_drained()

    def _name(self) -> Dict[str, Any]:
        return {"worker_id": self.worker_id, "incarnation": self._incarnation}

    def _sign_of_life(self) -> Dict[str, Any]:
        return {
            **self._name(),
            "hostname": socket.gethostname()[:255],
            "version": f"python-{VERSION}",
            "pool_size": self.pool_size,
            "runtimes": [self.runtime] if self.runtime else [],
            **self._abilities(),
        }

    def _drain(self, wakes: int) -> None:
        """Wait for running tasks. Hand back those that do not end in time, or at a second signal."""
        with self._changed:
            for run in self._runs:
                run.attempt.drain()
        until = time.monotonic() + self._drain_seconds
        os.set_blocking(wakes, False)
        hurry = False
        while True:
            with self._changed:
                if self._busy == 0:
                    break
                self._changed.wait(0.1)
            try:
                hurry = os.read(wakes, 1) in STOPS or hurry
            except BlockingIOError:
                pass
            # A worker drained by order has time until a signal says that the process ends.
            if self._patient and hurry:
                self._patient, hurry, until = False, False, time.monotonic() + self._drain_seconds
            elif hurry or time.monotonic() >= until and not (self._patient and self._holds()):
                break
        with self._changed:
            left = list(self._runs)
        for run in left:
            run.attempt.lose("the worker is stopping and hands it back")
        self._leases.retire()
        log.info("worker %s has stopped; tasks handed back: %d", self.worker_id, len(left))

    def _holds(self) -> bool:
        """Whether a task runs whose lease is not lost."""
        with self._changed:
            return any(not run.attempt.lost for run in self._runs)

    def _readiness(self) -> Optional[str]:
        """Return why the worker is not ready, or None."""
        if self._stopping.is_set():
            return "the worker stops"
        silent = time.monotonic() - self._contact
        return f"no server has answered for {silent:.0f} s" if silent > 30 else None


class PollSource:
    """Tasks by long poll, for runtimes without a queue."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._transport = Transport(worker.url)  # a separate one, so that a poll can be interrupted

    def take(self, most: int) -> Sequence[Work]:
        return [self._work(claim) for claim in self._worker.poll(most, self._transport)]

    def stop(self) -> None:
        self._transport.close()

    def close(self) -> None:
        self._transport.close()

    def _work(self, claim: Claim) -> Work:
        return lambda: _ignored(self._worker.run_claim(claim))


class SQSSource:
    """Tasks from the messages of an SQS queue, which may come twice, late, in any order, or not at all.

    A message names a task or a block of tasks. Those for which there is no slot wait here, and the message stays hidden.
    """

    def __init__(self, worker: Worker, queue: Queue) -> None:
        self._worker, self._queue = worker, queue
        self._lock = threading.Lock()
        self._waiting: List[Held] = []  # messages with tasks for which there was no slot yet
        self._block = MOST_MESSAGES  # tasks of the largest message of the last receive
        self._stopped = False

    def take(self, most: int) -> Sequence[Work]:
        works = self._next(most)
        if works:
            return works
        # What this worker keeps waiting, another one could run: so it asks for no more than it has slots for.
        messages = self._queue.receive(max(1, most // self._block))
        if messages:
            self._block = 1
        for message in messages:
            tasks = tasks_of(message)
            if not tasks:
                # It is received again until the queue moves it to its dead-letter queue.
                log.warning("message %s names no task: ignored", message.get("MessageId"))
                continue
            self._block = max(self._block, len(tasks))
            held = Held(self._queue, message, tasks)
            with self._lock:
                self._waiting.append(held)
        return self._next(most)

    def stop(self) -> None:
        self._queue.stop_receiving()
        with self._lock:
            self._stopped = True
            waiting, self._waiting = self._waiting, []
        for held in waiting:
            held.leave()

    def close(self) -> None:
        self._queue.close()

    def _next(self, most: int) -> List[Work]:
        """Return the first of the tasks that wait."""
        works: List[Work] = []
        left: List[Held] = []
        with self._lock:
            for held in self._waiting:
                while held.waiting and not held.left and len(works) < most:
                    works.append(self._work(held, held.waiting.pop(0)))
            self._waiting = [held for held in self._waiting if held.waiting and not held.left]
            if self._stopped:
                left, self._waiting = self._waiting, []
        for held in left:
            held.leave()
        return works

    def _work(self, held: Held, task_id: str) -> Work:
        return lambda: self._process(held, task_id)

    def _process(self, held: Held, task_id: str) -> None:
        decided = False
        try:
            claim = self._worker.claim(task_id)
            if claim.status == protocol.CLAIMED:
                # Of one that was lost, the server decides when the message is received again.
                decided = self._worker.run_claim(claim) not in (LOST, UNREPORTED)
            else:
                log.info("task %s was not claimed: %s", task_id, claim.reason)
                decided = True
        finally:
            held.settle(decided)


def _ignored(_: Any) -> None:
    return None
