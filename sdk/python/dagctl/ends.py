"""Completions and heartbeats that come fast, gathered into one call for many tasks.

Where tasks end faster than one per OFTEN, each completion waits up to GATHER_FOR for others. One that comes alone goes at
once, in a call of its own, and so does one that is large or that the server has to seal files for.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from .errors import ApiError, Error, refusal

OFTEN = 0.02  # seconds
GATHER_FOR = 0.005  # seconds
MOST = 100  # completions of one call
LIGHT = 16 << 10  # bytes of a completion that may go with others



class Ends:
    """The completions of a worker's tasks. Threads share it: the first of those that wait makes the call for all."""

    def __init__(
        self, post: Callable[[str, Any], Any], busy: Callable[[], int], name: str = "complete", wait: float = GATHER_FOR
    ) -> None:
        """post makes a call once, with the worker's token; busy says how many tasks have a slot; name is that of the call."""
        self._post, self._busy, self._wait = post, busy, wait
        self._many, self._one = f"/v1/tasks/{name}", f"POST /v1/task/{name}"
        self._changed = threading.Condition()
        self._gathering: Optional[_Call] = None
        self._last = float("-inf")  # when the last completion came
        self._reporting = 0
        self._alone = False  # the server does not know the call

    def __enter__(self) -> Ends:
        """Count a task whose end is being reported: nobody waits for it any more."""
        with self._changed:
            self._reporting += 1
        return self

    def __exit__(self, *_: Any) -> None:
        with self._changed:
            self._reporting -= 1

    def report(self, capability: str, body: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
        """Report the end of a task together with others, and return the task's state.

        Returns None if it has to be reported by itself: because it comes alone, or because nothing is known of what became
        of the call. Raises the ApiError that it would have got by itself.
        """
        if self._alone or not _light(body):
            return None
        one = {"capability_token": capability, "body": body}
        with self._changed:
            now = time.monotonic()
            lone, self._last = now - self._last > OFTEN and self._gathering is None, now
            if lone:
                return None
            call = self._gathering
            first = call is None
            if call is None:
                call = self._gathering = _Call()
            call.ones.append(one)
            place = len(call.ones) - 1
            if self._complete(call):
                self._changed.notify_all()
            if first:
                mine = call
                self._changed.wait_for(lambda: self._complete(mine), self._wait)
                if self._gathering is mine:
                    self._gathering = None
        if first:
            self._make(call)
        else:
            call.made.wait()
        return call.answer(place, self._one)

    def _complete(self, call: _Call) -> bool:
        """Whether a call waits for nobody: it is full, or all tasks that have a slot report their end."""
        if len(call.ones) >= MOST and self._gathering is call:
            self._gathering = None  # the next one begins another
        return len(call.ones) >= MOST or self._busy() <= self._reporting

    def _make(self, call: _Call) -> None:
        try:
            answers = (self._post(self._many, {"calls": call.ones}) or {}).get("answers") or []
            if len(answers) == len(call.ones):
                call.answers = answers
        except ApiError as error:
            self._alone = self._alone or error.status in (404, 405)
        except (Error, ValueError, AttributeError):
            pass  # no answer, or none of a dagctl server: each is repeated by itself
        finally:
            call.made.set()


class _Call:
    """One call for many tasks."""

    def __init__(self) -> None:
        self.ones: List[Dict[str, Any]] = []
        self.answers: List[Dict[str, Any]] = []
        self.made = threading.Event()

    def answer(self, place: int, name: str) -> Optional[Mapping[str, Any]]:
        if not self.answers:
            return None
        said = self.answers[place]
        status = int(said.get("status", 0))
        if status == 200:
            return said.get("answer") or {}
        if status == 429 or not 400 <= status < 500:
            return None
        raise refusal(name, status, said.get("problem"))


def _light(body: Mapping[str, Any]) -> bool:
    if any(body.get(field) for field in ("outputs", "events", "tasks", "column_lineage")):
        return False
    return len(json.dumps(body, allow_nan=False)) <= LIGHT
