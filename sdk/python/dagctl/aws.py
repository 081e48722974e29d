"""AWS credentials, and signatures of version 4 over requests.

The signatures follow "Create a signed AWS API request" in the IAM User Guide; the tests compare them with AWS's own examples.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import threading
import urllib.request
from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Optional
from urllib.parse import quote, unquote, urlsplit

from .errors import Error
from .typed import timestamp

_ECS = "http://169.254.170.2"  # address of the task role's credentials in a container on ECS
_EARLY = datetime.timedelta(minutes=5)  # how long before they expire new ones are fetched


@dataclass(frozen=True)
class AWSCredentials:
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: Optional[datetime.datetime] = None


def default_credentials() -> AWSCredentials:
    """Return the credentials of the environment (AWS_ACCESS_KEY_ID and so on), or of the ECS task role."""
    env = os.environ
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        return AWSCredentials(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN", ""))
    url = env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        url = _ECS + env["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]
    if not url:
        raise Error("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run as an ECS task with a task role")
    authorization = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    if env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        with open(env["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"], encoding="utf-8") as file:
            authorization = file.read().strip()
    request = urllib.request.Request(url, headers={"Authorization": authorization} if authorization else {})
    try:
        # The address is on this machine, so no proxy is used.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as response:
            answer = json.load(response)
        return AWSCredentials(
            answer["AccessKeyId"], answer["SecretAccessKey"], answer.get("Token", ""), timestamp(answer["Expiration"])
        )
    except (OSError, ValueError, KeyError) as error:
        raise Error(f"no AWS credentials from the container's task role: {type(error).__name__}") from None


class Signer:
    """Signs requests to one service in one region. Threads may share it."""

    def __init__(self, service: str, region: str, credentials: Callable[[], AWSCredentials]) -> None:
        self._service, self._region, self._find = service, region, credentials
        self._lock = threading.Lock()
        self._known: Optional[AWSCredentials] = None

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], payload: bytes, now: Optional[datetime.datetime] = None
    ) -> Dict[str, str]:
        """Return the given headers and a signature over them, the URL and the payload."""
        now = now or datetime.datetime.now(datetime.timezone.utc)
        credentials = self._credentials(now)
        at = now.strftime("%Y%m%dT%H%M%SZ")
        parts = urlsplit(url)
        signed = {**headers, "Host": parts.netloc, "X-Amz-Date": at}
        if credentials.session_token:
            signed["X-Amz-Security-Token"] = credentials.session_token
        lines = {k.lower(): " ".join(v.split()) for k, v in signed.items()}
        names = ";".join(sorted(lines))
        request = "\n".join(
            [
                method,
                quote(unquote(parts.path) or "/", safe="/-_.~"),
                _canonical_query(parts.query),
                *(f"{k}:{lines[k]}" for k in sorted(lines)),
                "",
                names,
                hashlib.sha256(payload).hexdigest(),
            ]
        )
        scope = f"{at[:8]}/{self._region}/{self._service}/aws4_request"
        to_sign = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{credentials.secret_access_key}".encode()
        for part in (at[:8], self._region, self._service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
        signed["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _credentials(self, now: datetime.datetime) -> AWSCredentials:
        with self._lock:
            known = self._known
            if known is None or (known.expires_at is not None and known.expires_at - now < _EARLY):
                known = self._known = self._find()
            return known


def _canonical_query(query: str) -> str:
    pairs = [p.partition("=") for p in query.split("&") if p]
    encoded = [(quote(unquote(k), safe="-_.~"), quote(unquote(v), safe="-_.~")) for k, _, v in pairs]
    return "&".join(f"{k}={v}" for k, v in sorted(encoded))
