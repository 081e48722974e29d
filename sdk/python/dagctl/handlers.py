"""The functions of a worker by name, and the run of one of them for a claimed task."""

from __future__ import annotations

import asyncio
import inspect
import typing
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar

from .attempt import Attempt, short
from .context import Context
from .ends import Ends
from .errors import CanceledError, Error, LeaseLostError, NotRetryable, PayloadError
from .leases import Leases
from .logs import current
from .protocol import LONGEST_ERROR, Claim
from .traces import traced
from .transport import Transport
from .typed import Mismatch, decode

Function = TypeVar("Function", bound=Callable[..., Any])

LAST_LINES = 10.0  # seconds that the end of a task waits for its last log lines to be stored


@dataclass(frozen=True)
class Handler:
    """A function of the worker and the type of its payload."""

    name: str
    function: Callable[..., Any]
    takes_payload: bool
    payload_type: Any

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Handler:
        """Read a function's signature: (ctx) or (ctx, payload), where the annotation of payload is its type."""
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        needed = [p for p in parameters if p.default is p.empty]
        if not parameters or len(needed) > 2:
            raise TypeError(f"handler {name}: a handler takes (ctx) or (ctx, payload), not {inspect.signature(function)}")
        if len(parameters) == 1:
            return cls(name, function, False, Any)
        annotation = parameters[1].annotation
        if annotation is not inspect.Parameter.empty:
            annotation = typing.get_type_hints(function, include_extras=True)[parameters[1].name]
        return cls(name, function, True, Any if annotation is inspect.Parameter.empty else annotation)

    def payload(self, value: Any) -> Any:
        try:
            return decode(self.payload_type, value, "payload")
        except Mismatch as mismatch:
            raise PayloadError(str(mismatch)) from None

    def __call__(self, ctx: Context) -> Any:
        result = self.function(ctx, ctx.payload) if self.takes_payload else self.function(ctx)
        return asyncio.run(result) if inspect.iscoroutine(result) else result


class Handlers:
    """The handlers of a worker."""

    def __init__(self) -> None:
        self._by_name: Dict[str, Handler] = {}

    def add(self, name: str, function: Callable[..., Any]) -> None:
        if name in self._by_name:
            raise ValueError(f"there is already a handler {name!r}")
        self._by_name[name] = Handler.of(name, function)

    def names(self) -> List[str]:
        return sorted(self._by_name)

    def find(self, name: str) -> Handler:
        if name not in self._by_name:
            raise NotRetryable(f"this worker has no handler {name!r}; it has: {', '.join(self.names()) or 'none'}")
        return self._by_name[name]


class Run:
    """The run of one claimed task."""

    def __init__(
        self, handlers: Handlers, claim: Claim, transport: Transport, leases: Leases, ends: Optional[Ends] = None
    ) -> None:
        self.attempt = Attempt(claim, transport, ends)
        self._leases = leases
        self._handlers = handlers

    def __call__(self) -> str:
        """Run the handler to its end and report it. Returns the task's status, or how else the attempt ended."""
        self.attempt.keep(self._leases)
        try:
            return self._to_its_end()
        except BaseException:
            self.attempt.abandon()  # no heartbeat may hold a task that nobody runs any more
            raise

    def _to_its_end(self) -> str:
        attempt = self.attempt
        ctx = Context(attempt)
        token = current.set(attempt.logs)
        try:
            completion = self._completion(ctx)
        finally:
            current.reset(token)
            ctx._scratch.remove()
        attempt.logs.close(0 if attempt.lost else LAST_LINES)  # while the fence still holds
        return attempt.abandon() if completion is None else attempt.complete(completion)

    def time_out(self) -> None:
        """Report a failure while the handler still runs, because its process is about to be stopped."""
        self.attempt.complete({"status": "Failed", "error": {"message": "the process that ran it is out of time"}}, patience=1.0)
        self.attempt.lose("its time is up")

    def _completion(self, ctx: Context) -> Optional[Mapping[str, Any]]:
        """Return the completion of the handler's run, or None if there is nothing to report."""
        try:
            handler = self._handlers.find(ctx.task.handler)
            ctx.payload = handler.payload(ctx.task.payload)
            return ctx._completion(handler(ctx))
        except CanceledError as error:
            if self.attempt.cancel_requested:
                return {"status": "Canceled"}
            return _failure(ctx, error)
        except LeaseLostError as error:
            if self.attempt.lost:
                return None
            return _failure(ctx, error)
        except BaseException as error:  # a handler that calls sys.exit fails, and the worker goes on
            return _failure(ctx, error)


def _failure(ctx: Context, error: BaseException) -> Mapping[str, Any]:
    told: Dict[str, Any] = {"message": short(traced(short(_described(error)), error, LONGEST_ERROR))}
    if isinstance(error, NotRetryable):
        told["retryable"] = False
    ctx.log.error("%s", told["message"])
    return {"status": "Failed", "error": told}


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:
        text = f"its text could not be made: {type(broken).__name__}"
    if isinstance(error, Error) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
