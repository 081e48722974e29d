"""What a handler gets: its task, and all that it may do with it."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, TypeVar, Union

from .attempt import Attempt
from .data import Input, Output, Pending, QueryResult
from .errors import ApiError, Error, NotRetryable
from .frames import is_frame
from .logs import TaskLogHandler
from .protocol import MOST_EVENTS, MOST_TASKS, Cursor, Job, Partition, Task
from .scratch import Scratch
from .typed import Mismatch, decode, encode, sound

Named = TypeVar("Named", Input, Output)


@dataclass(frozen=True)
class EventOutcome:
    """The outcome of an event: accepted, duplicate or rejected."""

    outcome: str
    event_id: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit, in the order in which events were emitted and tasks enqueued."""

    events: Sequence[EventOutcome] = ()
    tasks: Sequence[str] = ()  # ids; that of the existing task if the idempotency key is known


@dataclass(frozen=True)
class Timer:
    """The moments at which a timer job gets a task: once, every year, or by a cron schedule of five fields."""

    timezone: str = field(metadata={"json": "target_timezone"})  # IANA: Europe/Berlin
    at: Union[str, datetime.datetime, None] = field(  # local time in the zone; with a schedule: from then on
        default=None, metadata={"json": "target_timestamp_local"}
    )
    repeat: Optional[str] = None  # none, yearly or cron
    schedule: Optional[str] = None
    group: Optional[str] = None  # timers that are moved and deleted together
    event_type: Optional[str] = None  # for people


class Secrets(Mapping[str, str]):
    """The secrets that the job names. They are fetched when the first one is read, and never printed."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._values: Optional[Dict[str, str]] = None

    def __getitem__(self, name: str) -> str:
        if name not in self._attempt.task.secrets:
            raise KeyError(f"the job names no secret {name}")
        with self._lock:
            if self._values is None:
                answer = self._attempt.post("/v1/task/secrets", {})
                self._values = {str(k): str(v) for k, v in answer["secrets"].items()}
            return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._attempt.task.secrets)

    def __len__(self) -> int:
        return len(self._attempt.task.secrets)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self)})"


class Context:
    """A handler's task.

    What a handler writes, emits, enqueues and keeps as state takes effect in one transaction: at `commit()`, or else when
    the handler returns. If the attempt fails, nothing that was not committed takes effect.

    Every method that calls the server raises CanceledError once the task is canceled, and LeaseLostError once another
    attempt has the task. A handler that computes for long without calls reads `canceled`, or calls `check()`.
    """

    def __init__(self, attempt: Attempt, payload: Any = None) -> None:
        task = attempt.task
        self.task: Task = task
        self.payload = payload
        self.source_version: Optional[str] = None  # version of what a source read, such as an ETag
        self.secrets: Mapping[str, str] = Secrets(attempt)
        self.log = logging.Logger("dagctl.task")
        self.log.addHandler(TaskLogHandler(buffer=attempt.logs))
        self.log.parent = logging.getLogger("dagctl.task")  # passes records on to the process's own log
        self.log.setLevel(self.log.parent.level or logging.INFO)
        self._attempt = attempt
        self._lock = threading.Lock()
        self._pending = Pending()
        self._scratch = Scratch()
        self._lineage: List[Dict[str, Any]] = []
        self._inputs = [Input(spec, attempt, self._scratch) for spec in task.inputs]
        self._outputs = [Output(spec, attempt, self._scratch, lambda: self._pending, self._lineage) for spec in task.outputs]
        self._known_state = _frozen(task.operator_state)
        self._enqueued = 0
        self._unchanged = False
        self._reached: Optional[int] = None
        self.state: Any = task.operator_state

    # `state` is JSON that the job keeps from task to task. The next commit or the end stores changes to it.

    def __repr__(self) -> str:
        return f"Context({self._attempt.name})"

    @property
    def job(self) -> Job:
        return self.task.job

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.task.attempt

    @property
    def config(self) -> Mapping[str, Any]:
        return self.task.config

    @property
    def partition(self) -> Optional[Partition]:
        return self.task.partition

    @property
    def cursor(self) -> Optional[Cursor]:
        return self.task.cursor

    @property
    def timeout_at(self) -> datetime.datetime:
        """When the server ends the attempt."""
        return self.task.timeout_at

    @property
    def canceled(self) -> bool:
        """Whether the handler should stop: the task was canceled, or another attempt has it."""
        return self._attempt.cancel_requested or self._attempt.lost is not None

    @property
    def drain_requested(self) -> bool:
        """Whether a task that runs without end, such as an always_on source, should finish."""
        return self._attempt.drain_requested

    def check(self) -> None:
        """Raise CanceledError or LeaseLostError if the handler should stop."""
        self._attempt.check()

    def wait(self, seconds: float) -> None:
        """Sleep, and raise as soon as the handler should stop."""
        self._attempt.wait(seconds)

    def progress(self, percent: Optional[int] = None, text: Optional[str] = None) -> None:
        """Report how far the task is, for people: 0 to 100, and a short text."""
        self._attempt.check()
        self._attempt.progress(percent, text)

    @property
    def inputs(self) -> Sequence[Input]:
        return self._inputs

    @property
    def outputs(self) -> Sequence[Output]:
        return self._outputs

    def input(self, name: Union[str, int, None] = None) -> Input:
        """Return an input by its name or index; without either, the only one."""
        return _find("input", self._inputs, name, self.job)

    def output(self, name: Union[str, int, None] = None) -> Output:
        """Return an output by its name or index; without either, the only one."""
        return _find("output", self._outputs, name, self.job)

    def query(self, sql: str, *, max_rows: int = 0) -> QueryResult:
        """Run SQL over the inputs, each a relation with its name. max_rows 0 is the server's own limit."""
        body: Dict[str, Any] = {"sql": sql}
        if max_rows:
            body["max_rows"] = max_rows
        return QueryResult.parse(self._attempt.post("/v1/task/query", body))

    def credentials(self) -> Mapping[str, Any]:
        """Return short-lived S3 credentials for the task's inputs and upload prefixes, if its storage is S3."""
        answer: Mapping[str, Any] = self._attempt.post("/v1/task/credentials", {})
        return answer

    def emit(
        self,
        output: Union[str, int, None] = None,
        *,
        partition_key: Optional[str] = None,
        start: Optional[datetime.datetime] = None,
        end: Optional[datetime.datetime] = None,
        cursor: Optional[int] = None,
    ) -> None:
        """Report that a partition of an output, or the positions up to a cursor, are new."""
        self._event(output, {"partition_key": partition_key, "start": start, "end": end, "cursor": cursor})

    def invalidate(
        self,
        output: Union[str, int, None] = None,
        *,
        partition_key: Optional[str] = None,
        from_: Optional[int] = None,
        to: Optional[int] = None,
        reason: str = "correction",
    ) -> None:
        """Report that a published partition or range is wrong. Reasons: reorg, correction, manual, schema."""
        scope = "range" if partition_key is None else "partition"
        self._event(output, {"partition_key": partition_key, "scope": scope, "from": from_, "to": to, "reason": reason})

    def enqueue(
        self,
        job: str,
        payload: Any = None,
        *,
        idempotency_key: Optional[str] = None,
        priority: Optional[int] = None,
        run_at: Optional[datetime.datetime] = None,
        max_attempts: Optional[int] = None,
        metadata: Any = None,
        partition_key: Optional[str] = None,
        concurrency_key: Optional[str] = None,
        timer: Optional[Timer] = None,
    ) -> None:
        """Ask for a task of a manual or timer job that this one may enqueue: JOB of the same DAG, or DAG/JOB.

        Pass an idempotency key if the task must be enqueued only once over all attempts; without
        one, tasks that an earlier attempt has committed are enqueued again. With a timer, a timer is made in place of
        the task: it has a job, a payload and an idempotency key, which no other timer of the org may have.
        """
        self._attempt.check()
        with self._lock:
            if len(self._pending.tasks) == MOST_TASKS:
                raise Error(f"{MOST_TASKS} tasks wait to be enqueued: call ctx.commit() in between")
            self._enqueued += 1
            of = f' of a task of "{job}"'
            task = {
                "job": job,
                # So that a call repeated because of a lost answer enqueues nothing twice.
                "idempotency_key": idempotency_key or f"{self.task.task_id}/{self.attempt}/{self._enqueued}",
                "payload": payload,
                "priority": priority,
                "run_at": run_at,
                "max_attempts": max_attempts,
                "metadata": metadata,
                "partition_key": partition_key,
                "concurrency_key": concurrency_key,
                "timer": None if timer is None else _given(encode(timer), of),
            }
            self._pending.tasks.append(_given(task, of))

    def commit(self) -> Committed:
        """Commit now all that was written, emitted, enqueued and kept as state, while the task goes on."""
        self._attempt.check()
        self._settle()
        with self._lock:
            state = self._changed_state()  # first: if it is not JSON, nothing of the rest is lost
            pending, self._pending = self._pending, Pending()
            body = pending.body()
        body.update(state)
        if not body:
            return Committed()
        try:
            answer = self._attempt.post("/v1/task/events", body)
        except ApiError:
            raise  # it would be refused again
        except Error:
            with self._lock:  # it may have been done; repeating it in the next call does no harm
                _put_back(pending, self._pending)
            raise
        if state:
            self._known_state = _frozen(state["operator_state"])
        return Committed(
            events=decode(List[EventOutcome], answer.get("events") or [], "events"),
            tasks=decode(List[str], answer.get("tasks") or [], "tasks"),
        )

    def unchanged(self) -> None:
        """Declare that there is nothing new: every output stays as it is.

        Without it, an output to which no row was written has no rows from then on.
        """
        self._unchanged = True

    def reached(self, position: int) -> None:
        """Set the position up to which the outputs are complete at the end; default: the highest one written."""
        self._reached = position

    # For the worker.

    def _completion(self, result: Any) -> Dict[str, Any]:
        """Return the completion of a handler that returned."""
        result = self._written(result)
        if not self._unchanged:
            self._settle()
        with self._lock:
            body: Dict[str, Any] = {"status": "Completed", **self._pending.body(), **self._changed_state()}
        if self._unchanged:
            body.pop("outputs", None)
        if result is not None:
            body["result"] = _json(f'result of handler "{self.task.handler}"', result)
        body.update(
            _given(
                {
                    "unchanged": self._unchanged or None,
                    "source_version": self.source_version,
                    "cursor": self._reached,
                    "column_lineage": self._lineage or None,
                }
            )
        )
        return body

    def _settle(self) -> None:
        for output in self._outputs:
            output._settle()

    def _written(self, result: Any) -> Any:
        """Write the frames or rows that a handler returned, and return its result for people: how many rows those were."""
        if _is_rows(result) or len(self._outputs) == 1 and not self._served and _is_list(result):
            return {"rows": self.output().write(result)}
        if isinstance(result, dict) and any(_is_rows(v) for v in result.values()) or self._names_lists(result):
            for name, rows in result.items():
                if not _is_rows(rows) and not _is_list(rows):
                    raise NotRetryable(f"the handler returned a {type(rows).__name__} as the rows of output {name!r}")
            return {"rows": {name: self.output(name).write(rows) for name, rows in result.items()}}
        return result

    @property
    def _served(self) -> bool:
        """Whether the handler has said itself what its outputs get, so that a list that it returns is a result."""
        written = any(output._count for output in self._outputs) or self._pending.files
        return bool(written or self._pending.events or self._unchanged)

    def _names_lists(self, result: Any) -> bool:
        """Report whether a result is a list of rows for each of some outputs."""
        names = {output.name for output in self._outputs}
        return (
            isinstance(result, dict) and bool(result) and not self._served
            and all(name in names and _is_list(rows) for name, rows in result.items())
        )  # fmt: skip

    def _changed_state(self) -> Dict[str, Any]:
        state = _json("state", self.state)
        return {} if _frozen(state) == self._known_state else {"operator_state": state}

    def _event(self, output: Union[str, int, None], fields: Mapping[str, Any]) -> None:
        self._attempt.check()
        event = _given({"output": self.output(output).index, **fields}, " of an event")
        with self._lock:
            if len(self._pending.events) == MOST_EVENTS:
                raise Error(f"{MOST_EVENTS} events wait to be sent: call ctx.commit() in between")
            self._pending.events.append(event)


def _is_rows(value: Any) -> bool:
    return is_frame(value) or inspect.isgenerator(value)


def _is_list(value: Any) -> bool:
    """Report whether a value is a list of rows, which is a result where there is no output to write them to."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) or _is_record(v) for v in value)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _find(what: str, among: Sequence[Named], name: Union[str, int, None], job: Job) -> Named:
    found = [x for x in among if name is None or name in (x.name, x.index)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(x.name for x in among) or "none"
    if name is None:
        raise Error(f"{job} has {len(among)} {what}s, so say which one: {names}")
    raise Error(f"{job} has no {what} {name!r}; it has: {names}")


def _given(fields: Mapping[str, Any], of: str = "") -> Dict[str, Any]:
    """Return those fields that have a value, as JSON. `of` says in errors what they belong to."""
    return {k: _json(k + of, v) for k, v in fields.items() if v is not None}


def _json(what: str, value: Any) -> Any:
    """Return a value of a handler as JSON. What is none fails the attempt here, because no call could say it."""
    try:
        return sound(value)
    except Mismatch as mismatch:
        raise NotRetryable(f"the {what} is not JSON: {mismatch}") from None


def _frozen(state: Any) -> str:
    return json.dumps(encode(state), sort_keys=True, allow_nan=False)


def _put_back(old: Pending, new: Pending) -> None:
    for key, files in old.files.items():
        new.files[key] = files + new.files.get(key, [])
    for key, parts in old.parts.items():
        new.parts[key] = parts + new.parts.get(key, [])
    new.events[:0], new.tasks[:0] = old.events, old.tasks
