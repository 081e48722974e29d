"""A worker's handlers as an AWS Lambda function.

The server claims a task first and then invokes the function asynchronously with the claim; the function reports through the
server's HTTP API. It holds no worker token.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Dict, Mapping, Optional

from .attempt import UNREPORTED
from .errors import Error
from .protocol import CLAIMED, Claim
from .worker import Worker

log = logging.getLogger("dagctl")

RESERVE = 2.0  # seconds before Lambda ends the function, for reporting the failure


def lambda_handler(worker: Worker) -> Callable[[Mapping[str, Any], Any], Dict[str, Any]]:
    """The function to name as Lambda's handler::

        worker = dagctl.Worker()

        @worker.handler("email:send")
        def send(ctx, mail): ...

        handler = dagctl.lambda_handler(worker)
    """

    def handle(event: Mapping[str, Any], context: Any) -> Dict[str, Any]:
        claim = Claim.parse(event)
        if claim.status != CLAIMED or claim.task is None:
            return {"status": claim.status}
        if not claim.base_url and not worker.url:
            raise Error("the claim has no address for its calls: set base_url in the server's config, or DAGCTL_URL here")
        alarm = _before_the_end(worker, claim, context)
        try:
            status = worker.run_claim(claim)
        finally:
            if alarm:
                alarm.cancel()
        if status == UNREPORTED:
            raise Error("the end of the task could not be reported")  # Lambda counts this as an error of the function
        return {"task_id": claim.task.task_id, "attempt": claim.attempt, "status": status}

    return handle


def _before_the_end(worker: Worker, claim: Claim, context: Any) -> Optional[threading.Timer]:
    """Fail the attempt shortly before Lambda ends the function; otherwise its lease would have to expire first."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    if remaining is None:
        return None
    alarm = threading.Timer(max(0.0, remaining() / 1000 - RESERVE), worker.time_out, [claim])
    alarm.daemon = True
    alarm.start()
    return alarm
