"""HTTP to one server: reused connections, and calls that are repeated until they are answered.

Every call of the protocol may be repeated with the same body, because the server recognizes what it has already done. So a
call that meets a broken connection, 429 or 5xx is repeated after a random pause whose bound doubles.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Union
from urllib.parse import urlsplit

from .errors import Error, TooLargeError, UnavailableError, refusal

VERSION_HEADER = "X-Dagctl-Protocol"
PROTOCOL = "1"
USER_AGENT = "dagctl-python/0.1.0"

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 10.0
LARGEST_ANSWER = 64 << 20  # bytes of an answer in memory
_BLOCK = 1 << 18
_KEPT = 16  # idle connections
_IDLE = 20.0  # seconds after which an idle connection is no longer reused

Body = Union[bytes, str, None]  # a str is the path of a file


@dataclass(frozen=True)
class Answer:
    """A 2xx answer. The body is empty if it went to a file."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body) if self.body.strip() else None


class _Broken(Exception):
    """A connection that failed, or an answer that says to try again later."""

    def __init__(self, why: str, after: float = 0.0, stale: bool = False) -> None:
        super().__init__(why)
        self.after = after  # seconds that the server asks to wait
        self.stale = stale  # it was a reused connection that the server had closed


def pause(tries: int, draw: Callable[[], float] = random.random) -> float:
    """Return the seconds before the next try: between half and all of a bound that doubles."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries, 20)) * (0.5 + draw() / 2)


class Transport:
    """Calls to one server. Threads may share it."""

    def __init__(self, base_url: str, *, timeout: float = 30.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is not the URL of a server, such as https://dagctl.example.com")
        if parts.username or parts.password:
            raise ValueError("the URL of a server cannot have a user and password: pass a token instead")
        self.base_url = base_url.rstrip("/")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._context = ssl.create_default_context() if self._https else None
        self._lock = threading.Lock()
        self._idle: List[_Connection] = []
        self._busy: Dict[int, _Connection] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"Transport({self.base_url!r})"

    def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        json_body: Any = None,
        body: Body = None,
        into: Optional[IO[bytes]] = None,
        timeout: Optional[float] = None,
        patience: float = 60.0,
        between: Optional[Callable[[float], None]] = None,
    ) -> Answer:
        """Repeat a call until it is answered, for `patience` seconds; 0 tries once.

        `into` is a file that gets the answer's body, from its present position. `between` waits between tries for the seconds
        it gets, and may raise to stop trying. Raises ApiError if the call is refused, UnavailableError otherwise.
        """
        sent = dict(headers)
        sent.setdefault(VERSION_HEADER, PROTOCOL)
        sent.setdefault("User-Agent", USER_AGENT)
        sent.setdefault("Accept", "application/json")
        if json_body is not None:
            body = json.dumps(json_body, allow_nan=False, separators=(",", ":")).encode()
            sent.setdefault("Content-Type", "application/json")
        name = f"{method} {path.partition('?')[0]}"
        start, begin, tries = time.monotonic(), into.tell() if into else 0, 0
        while True:
            try:
                return self._try(name, method, path, sent, body, into, timeout or self._timeout)
            except _Broken as broken:
                if into:
                    into.seek(begin)
                    into.truncate()
                if broken.stale:
                    continue  # there are only a few of them
                wait = max(pause(tries), broken.after)
                tries += 1
                elapsed = time.monotonic() - start
                if self._closed or elapsed + wait > patience:
                    raise UnavailableError(
                        f"{name}: {broken} ({self.base_url}, tried {tries} times in {elapsed:.0f} s)"
                    ) from None
                (between or time.sleep)(wait)

    def close(self) -> None:
        """Interrupt pending calls and refuse new ones."""
        with self._lock:
            self._closed = True
            idle, busy, self._idle = self._idle, list(self._busy.values()), []
        for c in idle:
            c.shut()
        for c in busy:
            c.interrupt()  # the thread that uses it closes it

    def _try(
        self,
        name: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body,
        into: Optional[IO[bytes]],
        timeout: float,
    ) -> Answer:
        connection = self._take(timeout)
        kept = False
        try:
            response = connection.exchange(method, self._prefix + path, headers, body)
            if response.status == 429 or response.status >= 500:
                why = f"the server answered {response.status}"
                raise _Broken(why, _retry_after(response.getheader("Retry-After")))
            if not 200 <= response.status < 300:
                text = _read(response, LARGEST_ANSWER)
                kept = not response.will_close
                raise refusal(name, response.status, _problem(text))
            if into is None:
                text = _read(response, LARGEST_ANSWER)
                if len(text) > LARGEST_ANSWER:
                    raise TooLargeError(name, 413, f"the answer is larger than {LARGEST_ANSWER} bytes", "ask for less at once")
            else:
                text = b""
                _copy(response, into)
            kept = not response.will_close
            found = {k.lower(): v for k, v in response.getheaders()}
            return Answer(response.status, found, text)
        except (OSError, http.client.HTTPException) as error:
            stale = connection.used > 1 and isinstance(error, (http.client.RemoteDisconnected, ConnectionError))
            raise _Broken(_reason(error), stale=stale) from None
        except (AttributeError, ValueError) as error:
            if self._closed:  # http.client and ssl raise many errors for a socket that was shut down
                raise _Broken(_reason(error)) from None
            raise
        finally:
            self._give(connection, kept)

    def _take(self, timeout: float) -> _Connection:
        with self._lock:
            if self._closed:
                raise _Broken("the worker stops")
            found: Optional[_Connection] = None
            while self._idle and found is None:
                candidate = self._idle.pop()
                if time.monotonic() - candidate.since < _IDLE:
                    found = candidate
                else:
                    candidate.shut()
            if found is None:
                found = _Connection(self._host, self._port, self._context if self._https else None)
            self._busy[id(found)] = found
        found.wait(timeout)
        return found

    def _give(self, connection: _Connection, kept: bool) -> None:
        with self._lock:
            self._busy.pop(id(connection), None)
            if kept and not self._closed and len(self._idle) < _KEPT:
                connection.since = time.monotonic()
                self._idle.append(connection)
                return
        connection.shut()


class _Connection:
    """One connection to the server."""

    def __init__(self, host: str, port: Optional[int], context: Optional[ssl.SSLContext]) -> None:
        self.used = 0
        self.since = 0.0
        if context is None:
            self._http = http.client.HTTPConnection(host, port, blocksize=_BLOCK)
        else:
            self._http = http.client.HTTPSConnection(host, port, context=context, blocksize=_BLOCK)

    def wait(self, timeout: float) -> None:
        """Set a timeout for every single read and write, in seconds."""
        self._http.timeout = timeout
        if self._http.sock is not None:
            self._http.sock.settimeout(timeout)

    def exchange(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> http.client.HTTPResponse:
        self.used += 1
        if self._http.sock is None:
            self._http.connect()
        try:
            if isinstance(body, str):
                with _opened(body) as file:
                    length = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
                    self._http.request(method, path, file, {**headers, **length})
            else:
                self._http.request(method, path, body, dict(headers))
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse a body before reading it; then its answer says why.
            if body is None or self._http.sock is None:
                raise
        return self._http.getresponse()

    def interrupt(self) -> None:
        """Wake the thread that waits for an answer; closing alone does not."""
        sock = self._http.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was no longer connected

    def shut(self) -> None:
        self._http.close()


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise Error(f"cannot upload {path}: {error.strerror}") from None


def _copy(response: http.client.HTTPResponse, into: IO[bytes]) -> None:
    expected, size = response.getheader("Content-Length"), 0
    while True:
        block = response.read(_BLOCK)
        if not block:
            break
        size += len(block)
        try:
            into.write(block)
        except OSError as error:
            raise Error(f"cannot store the download: {error.strerror}") from None
    if expected is not None and size != int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - size)


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    text = response.read(most + 1)
    expected = response.getheader("Content-Length")
    if expected is not None and len(text) < min(int(expected), most + 1):
        raise http.client.IncompleteRead(b"", int(expected) - len(text))
    return text


def _problem(text: bytes) -> Optional[Mapping[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _retry_after(value: Optional[str]) -> float:
    try:
        return min(60.0, max(0.0, float(value or 0)))
    except ValueError:
        return 0.0  # a date; the client's own pause will do


def _reason(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "the server did not answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut short"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
