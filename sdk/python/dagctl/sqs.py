"""An SQS queue, over AWS's JSON protocol."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import uuid
from typing import Any, Callable, Dict, List, Optional
from urllib.parse import urlsplit

from .aws import AWSCredentials, Signer, default_credentials
from .errors import Error
from .transport import Transport

log = logging.getLogger("dagctl")

RECEIVE_WAIT = 20  # seconds, the longest that SQS waits
MOST_MESSAGES = 10  # of one receive; SQS allows no more
LAST_CALL = 5.0  # seconds for a call that a stopping worker still makes


class Queue:
    """Messages that name tasks. Threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: Optional[str] = None,
        region: Optional[str] = None,
        visibility_seconds: int = 60,
        credentials: Callable[[], AWSCredentials] = default_credentials,
    ) -> None:
        if visibility_seconds < 2:
            raise ValueError("visibility_seconds is at least 2, and better 30 or more")
        self.url = url
        host = urlsplit(url).netloc
        found = re.match(r"sqs[.-]([a-z0-9-]+)\.", host)
        region = region or (found.group(1) if found else None) or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            raise ValueError(f"no region: the URL {url!r} does not name it, so pass region= or set AWS_REGION")
        base = endpoint or os.environ.get("AWS_ENDPOINT_URL_SQS") or f"{urlsplit(url).scheme}://{host}"
        self._visibility = visibility_seconds
        self._signer = Signer("sqs", region, credentials)
        self._transport = Transport(base)
        self._receiving = Transport(base)  # a separate one, so that a receive can be interrupted

    def __repr__(self) -> str:
        return f"Queue({self.url!r})"

    def receive(self, most: int) -> List[Dict[str, Any]]:
        """Wait for messages and return at most `most`."""
        body = {
            "MaxNumberOfMessages": min(most, MOST_MESSAGES),
            "WaitTimeSeconds": RECEIVE_WAIT,
            "VisibilityTimeout": self._visibility,
        }
        answer = self._call("ReceiveMessage", body, self._receiving, patience=0, timeout=RECEIVE_WAIT + 15.0)
        return list(answer.get("Messages") or [])

    def stop_receiving(self) -> None:
        self._receiving.close()

    def close(self) -> None:
        self._receiving.close()
        self._transport.close()

    def delete(self, message: Dict[str, Any]) -> None:
        try:
            self._call("DeleteMessage", {"ReceiptHandle": message["ReceiptHandle"]}, self._transport)
        except Error as error:  # it is received again, and not claimed
            log.warning("message %s: not deleted: %s", message.get("MessageId"), error)

    def show(self, message: Dict[str, Any]) -> None:
        """Make a message visible to other receivers at once."""
        body = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        try:
            self._call("ChangeMessageVisibility", body, self._transport, patience=LAST_CALL, timeout=LAST_CALL)
        except Error as error:  # it reappears when its visibility ends
            log.warning("message %s: not left to others: %s", message.get("MessageId"), error)

    def hold(self, message: Dict[str, Any], done: threading.Event) -> None:
        """Hide a message from other receivers until `done`."""
        args = (message, done)
        threading.Thread(target=self._hold, args=args, name="dagctl-visibility", daemon=True).start()

    def _hold(self, message: Dict[str, Any], done: threading.Event) -> None:
        body = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": self._visibility}
        while not done.wait(self._visibility / 2):
            try:
                self._call("ChangeMessageVisibility", body, self._transport, patience=self._visibility / 4)
            except Error as error:  # at worst it is received twice
                log.warning("message %s: visibility not extended: %s", message.get("MessageId"), error)

    def _call(
        self, action: str, body: Dict[str, Any], transport: Transport, patience: float = 30.0, timeout: float = 30.0
    ) -> Dict[str, Any]:
        payload = json.dumps({"QueueUrl": self.url, **body}, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        signed = self._signer.sign("POST", transport.base_url + "/", headers, payload)
        answer = transport.call("POST", "/", headers=signed, body=payload, patience=patience, timeout=timeout)
        return answer.json() or {}


def tasks_of(message: Dict[str, Any]) -> List[str]:
    """Return the tasks that a message names, or none if the message is not from a dagctl server."""
    try:
        body = json.loads(message["Body"])
        named = [body["task_id"]] if "task_id" in body else body["task_ids"]
        return [str(uuid.UUID(task)) for task in named]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


class Held:
    """A received message, hidden from others until all of its tasks are settled or until it is left. Threads share it."""

    def __init__(self, queue: Queue, message: Dict[str, Any], tasks: List[str]) -> None:
        self.waiting = tasks  # those without a slot yet
        self._queue, self._message = queue, message
        self._lock = threading.Lock()
        self._open = len(tasks)  # on which the server has not decided
        self._left = False
        self._done = threading.Event()
        queue.hold(message, self._done)

    def settle(self, decided: bool) -> None:
        """Note what became of a task. If the server has not decided on it, the message reappears by itself."""
        with self._lock:
            self._open -= 1
            self._left = self._left or not decided
            left, settled = self._left, self._open == 0
        if left or settled:
            self._done.set()
        if settled and not left:
            self._queue.delete(self._message)

    @property
    def left(self) -> bool:
        """Whether others may receive it, so that its tasks wait here no more."""
        return self._left

    def leave(self) -> None:
        """Leave it to other workers at once."""
        with self._lock:
            before, self._left = self._left, True
        self._done.set()
        if not before:
            self._queue.show(self._message)
