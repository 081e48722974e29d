"""Health checks of a worker: GET /healthz and /readyz, as dagctl servers answer them."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional, Tuple


class Health:
    """A small HTTP server in a thread."""

    def __init__(self, address: str, readiness: Callable[[], Optional[str]]) -> None:
        """address is HOST:PORT, or :PORT for all addresses; readiness returns why the worker is not ready, or None."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                status, text = _answer(self.path, readiness)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass  # probes come every few seconds

        host, port = _split(address)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="dagctl-health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(path: str, readiness: Callable[[], Optional[str]]) -> Tuple[int, str]:
    if path == "/healthz":
        return 200, "ok\n"
    if path == "/readyz":
        why = readiness()
        return (503, why + "\n") if why else (200, "ok\n")
    return 404, "use /healthz or /readyz\n"


def _split(address: str) -> Tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"health address {address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
