"""A small HTTP server that answers as a test says, in the shapes that the protocol documents, and keeps what it was asked.

It stands for the server only where a real one cannot be made to misbehave: broken connections, 503 in between, garbage. How
workers and servers get on is proved against the real server, by python_test.go.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Optional, Tuple

BREAK = object()  # an answer that breaks the connection


@dataclass
class Request:
    method: str
    path: str
    headers: Dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    status: int = 200
    body: Any = None  # bytes, or JSON
    headers: Dict[str, str] = field(default_factory=dict)
    cut: int = 0  # bytes at the end that never come


Answers = Callable[[Request], Any]


class Replay:
    """The server. `routes` maps "POST /path" to what answers it: a function of the request, or a value that is JSON."""

    def __init__(self, routes: Optional[Dict[str, Any]] = None) -> None:
        self.routes: Dict[str, Any] = dict(routes or {})
        self.requests: List[Request] = []
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                with outer._changed:
                    outer.requests.append(request)
                    outer._changed.notify_all()
                answer = outer._answer(request)
                if answer is BREAK:
                    self.close_connection = True
                    return
                reply = answer if isinstance(answer, Reply) else Reply(body=answer)
                self._send(reply)

            def _send(self, reply: Reply) -> None:
                headers = dict(reply.headers)
                text = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                if not isinstance(reply.body, bytes):
                    headers.setdefault("Content-Type", "application/json")
                self.send_response(reply.status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text[: len(text) - reply.cut])
                if reply.cut:
                    self.wfile.flush()
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients break off, too

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def _answer(self, request: Request) -> Any:
        found = self.routes.get(f"{request.method} {request.path.partition('?')[0]}")
        if found is None:
            return Reply(404, {"title": "Not Found", "status": 404, "detail": f"there is no {request.path}"})
        return found(request) if callable(found) else found

    def of(self, path: str) -> List[Request]:
        """The requests to a path so far."""
        with self._changed:
            return [r for r in self.requests if r.path.partition("?")[0] == path]

    def wait_for(self, path: str, count: int = 1) -> List[Request]:
        """Wait until so many requests came to a path."""
        with self._changed:
            found = lambda: [r for r in self.requests if r.path.partition("?")[0] == path]
            assert self._changed.wait_for(lambda: len(found()) >= count, 30), f"{path} was asked {len(found())} times"
            return found()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def in_turn(*answers: Any) -> Answers:
    """Give one answer after the other, and the last one for ever."""
    lock, left = threading.Lock(), list(answers)

    def answer(request: Request) -> Any:
        with lock:
            value = left.pop(0) if len(left) > 1 else left[0]
        return value(request) if callable(value) else value

    return answer


def problem(status: int, detail: str, **more: Any) -> Reply:
    body = {"title": "Refused", "status": status, "kind": "x", "detail": detail, **more}
    return Reply(status, body, {"Content-Type": "application/problem+json"})


TASK_ID = "0190c0de-0000-7000-8000-000000000001"
LEASE_TOKEN = "0190c0de-0000-7000-8000-0000000000aa"
CAPABILITY = "capability-that-nobody-may-see"
WORKER_TOKEN = "worker-token-that-nobody-may-see"


def claim(url: str = "", **task: Any) -> Dict[str, Any]:
    """A claim as servers send it."""
    return {
        "status": "Claimed",
        "attempt": 1,
        "lease_token": LEASE_TOKEN,
        "lease_expires_at": "2026-01-01T00:00:30.123456789Z",
        "capability_token": CAPABILITY,
        "base_url": url,
        "task": {
            "task_id": TASK_ID,
            "attempt": 1,
            "org": "acme",
            "job": {"dag_name": "mail", "name": "send"},
            "kind": "task",
            "operator": "handler",
            "config": {"handler": "email:send"},
            "payload": {"to": "ada@example.com"},
            "inputs": [],
            "outputs": [],
            "timeout_at": "2099-01-01T00:00:00Z",
            "lease_seconds": 30,
            "a_field_of_tomorrow": {"is": "passed over"},
            **task,
        },
    }


def output(index: int = 0, name: str = "rows") -> Dict[str, Any]:
    return {
        "index": index, "name": name, "dataset_uuid": str(uuid.uuid4()), "dataset_version": str(uuid.uuid4()),
        "update_strategy": "replace", "storage": "parquet",
    }


def source(index: int = 0, name: str = "orders") -> Dict[str, Any]:
    return {
        "index": index, "as": name, "dataset_uuid": str(uuid.uuid4()), "dataset_version": str(uuid.uuid4()),
        "partitions": [{"key": "2026-01-01", "revision": 3, "rows": 2, "bytes": 100}],
        "schema": [{"name": "id", "type": "BIGINT"}, {"name": "amount", "type": "DOUBLE"}],
    }


def task_routes(**more: Any) -> Dict[str, Any]:
    """A server on which a task goes well."""
    return {
        "POST /v1/task/heartbeat": {"lease_expires_at": "2026-01-01T00:01:00Z", "cancel_requested": False, "drain_requested": False},
        "POST /v1/task/logs": lambda r: {"accepted": r.json["lines"][-1]["seq"]},
        "POST /v1/task/complete": lambda r: {"task_id": TASK_ID, "status": r.json["status"], "attempt": 1},
        **more,
    }


def files_of(request: Request) -> Tuple[str, str]:
    """The name and the format of an upload."""
    path, _, query = request.path.partition("?")
    return path.rsplit("/", 1)[1], query.partition("=")[2]
