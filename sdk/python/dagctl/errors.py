"""The exceptions that a handler may distinguish.

All derive from :class:`Error`. None carries a token or a header of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Type


class Error(Exception):
    """The base class of the exceptions of this package."""


class NotRetryable(Error):
    """Raised by a handler: the task fails, and another attempt would not help.

    Any other exception fails the attempt; the server decides whether and when another one follows.
    """


class PayloadError(NotRetryable):
    """The payload does not fit the handler's type. The next attempt would get the same one."""


class CanceledError(Error):
    """Somebody canceled the task. A handler that does not catch it ends the task as Canceled."""


class LeaseLostError(Error):
    """This attempt has lost its task, and another one may run. Nothing that it does counts any more."""


class UnavailableError(Error):
    """A server did not answer, or answered with an error of its own, for as long as the call was repeated."""


@dataclass(frozen=True)
class Problem:
    """One fault of a call."""

    message: str
    location: str = ""
    suggestion: str = ""

    def __str__(self) -> str:
        text = f"{self.location}: {self.message}" if self.location else self.message
        return f"{text} ({self.suggestion})" if self.suggestion else text


class ApiError(Error):
    """The server refused a call."""

    def __init__(
        self,
        call: str,
        status: int,
        detail: str,
        hint: str = "",
        problems: Sequence[Problem] = (),
        request_id: str = "",
    ) -> None:
        self.call = call  # such as "POST /v1/task/events"
        self.status = status  # HTTP status
        self.detail = detail
        self.hint = hint
        self.problems: Tuple[Problem, ...] = tuple(problems)
        self.request_id = request_id
        text = f"{call}: {detail}"
        if problems:
            text += ": " + "; ".join(str(p) for p in problems)
        if hint:
            text += f" ({hint})"
        super().__init__(text)


class UnauthorizedError(ApiError):
    """401: the token is missing, expired or unknown to the server."""


class ForbiddenError(ApiError):
    """403: the token belongs to another task or does not allow this."""


class NotFoundError(ApiError):
    """404: it does not exist, or not for this caller."""


class ConflictError(ApiError):
    """409: the fence is stale, or the task has already ended differently."""


class TooLargeError(ApiError):
    """413: the call exceeds a limit that the server documents."""


class InvalidError(ApiError):
    """422: the call is malformed; `problems` lists every fault."""


_BY_STATUS: Mapping[int, Type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    413: TooLargeError,
    422: InvalidError,
}


def refusal(call: str, status: int, answer: Optional[Mapping[str, Any]]) -> ApiError:
    """Return the exception for an answer other than 2xx. `answer` is its problem document (RFC 9457), if it has one."""
    answer = answer or {}
    problems = [
        Problem(str(p.get("message", "")), str(p.get("location", "")), str(p.get("suggestion", "")))
        for p in _dicts(answer.get("errors"))
    ]
    return _BY_STATUS.get(status, ApiError)(
        call,
        status,
        str(answer.get("detail") or answer.get("title") or f"the server answered {status}"),
        str(answer.get("hint") or ""),
        problems,
        str(answer.get("request_id") or ""),
    )


def _dicts(value: Any) -> Sequence[Dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
