"""The messages of the worker protocol, version 1: what a claim contains.

docs/openapi.json in the dagctl repository has the same schemas. Unknown fields are ignored.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from .typed import Mismatch, decode

CLAIMED = "Claimed"

TASK_HEADER = "X-Dagctl-Task"
ATTEMPT_HEADER = "X-Dagctl-Attempt"
LEASE_TOKEN_HEADER = "X-Dagctl-Lease-Token"
CAPABILITY_HEADER = "X-Dagctl-Task-Capability"

# Limits of one call.
MOST_EVENTS = 1000
MOST_TASKS = 1000
MOST_FILES = 10_000
MOST_LINES = 1000
LONGEST_LINE = 16_384  # characters
LONGEST_ERROR = 10_000  # characters
LONGEST_STATE = 1000  # characters


@dataclass(frozen=True)
class Job:
    dag_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.dag_name}/{self.name}"


@dataclass(frozen=True)
class Partition:
    """The output partition that a task makes. `start` and `end`, a half-open range, are set for partitions of time."""

    key: str
    start: Optional[datetime.datetime] = None
    end: Optional[datetime.datetime] = None


@dataclass(frozen=True)
class Cursor:
    """The positions that a task works on: those above `start`. `end` is None if the task finds out the end itself."""

    epoch: int
    start: int = field(metadata={"json": "from"})
    end: Optional[int] = field(default=None, metadata={"json": "to"})


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # DuckDB's name of the type


@dataclass(frozen=True)
class InputPartition:
    """A revision that was pinned at the claim."""

    key: str
    revision: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class InputSpec:
    index: int
    name: str = field(metadata={"json": "as"})
    dataset_uuid: str = ""
    dataset_version: str = ""
    partitions: List[InputPartition] = field(default_factory=list)
    columns: List[Column] = field(default_factory=list, metadata={"json": "schema"})


@dataclass(frozen=True)
class OutputSpec:
    index: int
    name: str
    dataset_uuid: str = ""
    dataset_version: str = ""
    update_strategy: str = "replace"
    storage: str = ""
    prefix: str = ""


@dataclass(frozen=True)
class Task:
    """A claimed task."""

    task_id: str
    attempt: int
    org: str
    job: Job
    timeout_at: datetime.datetime
    kind: str = ""
    operator: str = "handler"
    operator_version: str = ""
    config: Dict[str, Any] = field(default_factory=dict)
    payload: Any = field(default=None, repr=False)
    metadata: Dict[str, Any] = field(default_factory=dict)  # of a timer's task: {"timer": {"due_at": ...}}
    partition: Optional[Partition] = None
    partition_by: Any = None
    cursor: Optional[Cursor] = None
    inputs: List[InputSpec] = field(default_factory=list)
    outputs: List[OutputSpec] = field(default_factory=list)
    operator_state: Any = field(default=None, repr=False)
    secrets: List[str] = field(default_factory=list)  # names
    lease_seconds: int = 60
    traceparent: str = ""

    @property
    def handler(self) -> str:
        """The function that the job names."""
        return str(self.config.get("handler", ""))


@dataclass(frozen=True)
class Claim:
    """A claimed task with all that its run needs, or the reason why it was not claimed."""

    status: str
    reason: str = ""
    attempt: int = 0
    lease_token: str = field(default="", repr=False)
    lease_expires_at: Optional[datetime.datetime] = None
    capability_token: str = field(default="", repr=False)
    base_url: str = ""
    task: Optional[Task] = None

    @classmethod
    def parse(cls, value: Any) -> Claim:
        """Parse a claim. Raises ValueError if it is not one."""
        claim = decode(cls, value, "claim")
        if claim.status == CLAIMED:
            for name in ("task", "lease_token", "capability_token"):
                if not getattr(claim, name):
                    raise Mismatch(f"claim.{name} is missing")
        return claim

    @property
    def fence(self) -> Mapping[str, Any]:
        assert self.task is not None
        return {"task_id": self.task.task_id, "attempt": self.attempt, "lease_token": self.lease_token}
