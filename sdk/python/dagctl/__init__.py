"""Workers for dagctl, a data orchestrator: functions that its tasks run.

::

    import dagctl

    worker = dagctl.Worker(runtime="python")  # DAGCTL_URL and DAGCTL_TOKEN say where and as whom

    @worker.handler("email:send")
    def send(ctx: dagctl.Context, mail: Mail) -> None:
        ctx.log.info("to %s", mail.to)

    worker.run()

Vocabulary: a worker claims tasks of a runtime; a handler is a function that runs a job's tasks; an attempt is one run of a
task, which holds a lease while it runs; a fence identifies an attempt, so that no other one can commit in its place.
"""

from .aws import AWSCredentials
from .context import Committed, Context, EventOutcome, Timer
from .data import Input, Output, QueryResult
from .errors import (
    ApiError,
    CanceledError,
    ConflictError,
    Error,
    ForbiddenError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    NotRetryable,
    PayloadError,
    Problem,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from .lambdas import lambda_handler
from .logs import TaskLogHandler
from .protocol import Claim, Column, Cursor, InputPartition, Job, Partition, Task
from .rows import RowWriter
from .typed import decode, encode
from .worker import VERSION as __version__
from .worker import Worker

__all__ = [
    "AWSCredentials",
    "ApiError",
    "CanceledError",
    "Claim",
    "Column",
    "Committed",
    "ConflictError",
    "Context",
    "Cursor",
    "Error",
    "EventOutcome",
    "ForbiddenError",
    "Input",
    "InputPartition",
    "InvalidError",
    "Job",
    "LeaseLostError",
    "NotFoundError",
    "NotRetryable",
    "Output",
    "Partition",
    "PayloadError",
    "Problem",
    "QueryResult",
    "RowWriter",
    "Task",
    "TaskLogHandler",
    "Timer",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "Worker",
    "__version__",
    "decode",
    "encode",
    "lambda_handler",
]
