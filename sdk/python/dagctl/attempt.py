"""One attempt at a task, as the server sees it: its fence, its calls, its lease, and its end.

The server decides everything that matters in the transaction of each call: whether the fence still holds, whether there is
another attempt, what a completion publishes. This side keeps the lease and reports, and never guesses.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import IO, Any, Dict, List, Mapping, Optional

from . import protocol
from .ends import Ends
from .errors import (
    ApiError,
    CanceledError,
    ConflictError,
    Error,
    ForbiddenError,
    LeaseLostError,
    UnauthorizedError,
    UnavailableError,
)
from .leases import Leases
from .logs import LogBuffer, storable
from .protocol import LONGEST_ERROR, LONGEST_STATE, Claim, Task
from .transport import Answer, Body, Transport

log = logging.getLogger("dagctl")

REPORT_PATIENCE = 300.0  # seconds for which reporting the end of an attempt is repeated
CALL_PATIENCE = 60.0
COMMIT_TIMEOUT = 600.0  # seconds that an answer may take while the server seals the uploads

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# How an attempt ended, beyond the statuses that the server gives a task.
STALE = "Stale"  # the server refused its completion: the task continues without it
LOST = "Lost"  # its lease was lost or handed back while it ran
UNREPORTED = "Unreported"  # no server accepted the report; the lease expires, and another attempt follows


class Attempt:
    """The connection between a claimed task and the server. Threads may share it."""

    def __init__(self, claim: Claim, transport: Transport, ends: Optional[Ends] = None) -> None:
        """ends, if any, reports its end together with those of other attempts."""
        assert claim.task is not None
        self.task: Task = claim.task
        self.fence = claim.fence
        self.logs = LogBuffer(self._send_lines)
        self.cancel_requested = False
        self.drain_requested = False
        self._transport = transport
        self._ends = ends
        self._capability = claim.capability_token
        self._lost: Optional[str] = None  # why
        self._interrupted = threading.Event()  # set when canceled or lost, to wake waiting code
        self._lock = threading.Lock()
        self._reported = False
        self._leases: Optional[Leases] = None
        self._key = f"{self.task.task_id}/{self.task.attempt}"
        self._percent = 0
        self._state = ""

    def __repr__(self) -> str:
        return f"Attempt({self.name})"

    @property
    def name(self) -> str:
        return f"task {self.task.task_id} of {self.task.job}, attempt {self.task.attempt}"

    @property
    def lost(self) -> Optional[str]:
        """The reason why this attempt no longer counts, or None."""
        return self._lost

    # Calls of a handler.

    def check(self) -> None:
        """Raise CanceledError or LeaseLostError if this attempt should stop."""
        if self._lost:
            raise LeaseLostError(f"{self.name}: {self._lost}")
        if self.cancel_requested:
            raise CanceledError(f"{self.name} was canceled")

    def wait(self, seconds: float) -> None:
        """Sleep, and raise as soon as the attempt should stop."""
        self._interrupted.wait(seconds)
        self.check()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Call the server for a handler, with the fence in the body. Raises if the task was canceled or lost."""
        self.check()
        return self._post(path, body, CALL_PATIENCE, timeout=COMMIT_TIMEOUT, checked=True).json()

    def transfer(
        self, method: str, path: str, *, body: Body = None, media_type: str = "", into: Optional[IO[bytes]] = None
    ) -> Answer:
        """Send or fetch data, with the fence in the headers."""
        self.check()
        headers = {
            **self._headers(),
            protocol.TASK_HEADER: self.task.task_id,
            protocol.ATTEMPT_HEADER: str(self.task.attempt),
            protocol.LEASE_TOKEN_HEADER: str(self.fence["lease_token"]),
            "Accept": "*/*",
        }
        if body is not None:
            headers["Content-Type"] = media_type
        return self._transport.call(
            method, path, headers=headers, body=body, into=into, timeout=300.0, patience=CALL_PATIENCE, between=self.wait
        )

    def progress(self, percent: Optional[int], state: Optional[str]) -> None:
        """Record the progress for the next heartbeat; there is at most one heartbeat a second.

        A heartbeat that the server refuses would cost the lease, so none may carry what it does not take.
        """
        if percent is not None:
            if percent != percent:
                raise ValueError("percent is NaN, not a number from 0 to 100")
            self._percent = int(min(100, max(0, percent)))
        if state is not None:
            self._state = storable(_CONTROLS.sub(" ", state))[:LONGEST_STATE]
        if self._leases:
            self._leases.note(self._key, self._percent, self._state)

    # The lease.

    def keep(self, leases: Leases) -> None:
        """Let its lease be extended until the attempt ends."""
        self._leases = leases
        leases.keep(
            self, self._key, url=self._transport.base_url, fence=self.fence, capability=self._capability,
            headers=self._trace(), lease_seconds=self.task.lease_seconds,
        )

    def renew(self, capability: str) -> None:
        """Use another capability token from now on."""
        self._capability = capability

    def drain(self) -> None:
        """Ask a handler that runs without end to finish."""
        self.drain_requested = True

    def cancel(self) -> None:
        """Ask the handler to stop, because the task was canceled."""
        self.cancel_requested = True
        self._interrupted.set()

    def lose(self, why: str) -> None:
        """Record that this attempt no longer counts."""
        with self._lock:
            self._lost = self._lost or why
            reported = self._reported
        self._interrupted.set()
        if not reported:
            log.warning("%s is lost: %s", self.name, self._lost)

    # The end.

    def complete(self, completion: Mapping[str, Any], patience: float = REPORT_PATIENCE) -> str:
        """Report the end of the attempt, once. Returns the task's status, or STALE, LOST or UNREPORTED.

        A lost lease does not hold back a result: the result counts as long as no newer attempt has started, and only the
        server knows whether one has.
        """
        with self._lock:
            if self._reported:
                return LOST
            self._reported = True
        try:
            return self._report(completion, patience)
        finally:
            self._end()

    def abandon(self) -> str:
        """End the attempt without a report."""
        with self._lock:
            self._reported = True
        self._end()
        return LOST

    def _end(self) -> None:
        if self._leases:
            self._leases.end(self._key)

    def _report(self, completion: Mapping[str, Any], patience: float) -> str:
        try:
            state = self._reported_together(completion)
            if state is None:
                state = self._post("/v1/task/complete", completion, patience, timeout=COMMIT_TIMEOUT).json() or {}
        except ConflictError as refused:
            log.warning("%s: its end was not accepted: %s", self.name, refused.detail)
            return STALE
        except (UnauthorizedError, ForbiddenError, UnavailableError) as error:
            log.error("%s: its end could not be reported, so its lease will expire: %s", self.name, error)
            return UNREPORTED
        except ApiError as refused:
            if completion["status"] == "Failed":
                log.error("%s: the report of its failure was refused: %s", self.name, refused)
                return UNREPORTED
            # The completion is invalid, so the attempt fails, with the server's reasons as its error.
            log.warning("%s: its completion was refused: %s", self.name, refused)
            error = {"message": short(str(refused)), "retryable": False}
            return self._report({"status": "Failed", "error": error}, patience)
        status = str(state.get("status") or completion["status"])
        log.info("%s: %s", self.name, status)
        return status

    def _reported_together(self, completion: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
        """Report the end together with those of other attempts, unless the server has to seal files for it."""
        if self._ends is None or self.task.outputs and completion["status"] == "Completed":
            return None
        with self._ends as ends:
            return ends.report(self._capability, {**self.fence, **completion})

    def _send_lines(self, lines: List[Dict[str, Any]]) -> int:
        answer = self._post("/v1/task/logs", {"lines": lines}, patience=5.0, timeout=10.0).json() or {}
        return int(answer.get("accepted", 0))

    def _post(
        self, path: str, body: Mapping[str, Any], patience: float, timeout: Optional[float] = None, checked: bool = False
    ) -> Answer:
        return self._transport.call(
            "POST",
            path,
            headers=self._headers(),
            json_body={**self.fence, **body},
            timeout=timeout,
            patience=patience,
            between=self.wait if checked else None,
        )

    def _headers(self) -> Dict[str, str]:
        return {protocol.CAPABILITY_HEADER: self._capability, **self._trace()}

    def _trace(self) -> Dict[str, str]:
        return {"traceparent": self.task.traceparent} if self.task.traceparent else {}


def short(text: str) -> str:
    """Return an error text that the protocol accepts: storable, not empty and not too long."""
    return storable(text)[:LONGEST_ERROR] or "it failed without saying why"
