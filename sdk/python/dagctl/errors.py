"""What can go wrong, as exceptions that a handler may tell apart.

All derive from :class:`Error`. None carries a token or a header of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Type


class Error(Exception):
    """The root of everything this package raises."""


class NotRetryable(Error):
    """Raised by a handler: the task fails now, and trying it again would not help.

    Any other exception fails the attempt; whether and when there is another one is the server's decision.
    """


class PayloadError(NotRetryable):
    """The payload is not what the handler's type says. The next attempt would get the same one."""


class CanceledError(Error):
    """Somebody canceled the task. A handler that lets it pass ends the task as Canceled."""


class LeaseLostError(Error):
    """This attempt no longer holds its task: another one may be at work. Nothing it does counts any more."""


class UnavailableError(Error):
    """A server did not answer, or answered with an error of its own, for as long as the call was repeated."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with what was sent."""

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
        self.status = status  # of HTTP
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
    """401: the token is missing, expired or not one of this server's."""


class ForbiddenError(ApiError):
    """403: the token is of another task, or does not permit this."""


class NotFoundError(ApiError):
    """404: it is not there, or not for this caller."""


class ConflictError(ApiError):
    """409: the fence is stale, or the task has ended otherwise already."""


class TooLargeError(ApiError):
    """413: beyond a limit that the server documents."""


class InvalidError(ApiError):
    """422: the shape is wrong; `problems` lists every fault."""


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
    """The exception for an answer that is not 2xx; `answer` is its problem document (RFC 9457), if it was one."""
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
