"""Sends an event as a shop does: signed as https://www.standardwebhooks.com says.

usage: send.py ID BODY   with the key in SHOP_KEY, and the server's address in DAGCTL_URL"""

import base64
import hashlib
import hmac
import os
import sys
import time
import urllib.error
import urllib.request

server = os.environ.get("DAGCTL_URL", "http://127.0.0.1:7070")
delivery, body = sys.argv[1:]
at = str(int(time.time()))
signed = hmac.new(os.environ["SHOP_KEY"].encode(), f"{delivery}.{at}.{body}".encode(), hashlib.sha256).digest()
request = urllib.request.Request(server + "/v1/hooks/local/shop/orders", body.encode(), {
    "Content-Type": "application/json",
    "webhook-id": delivery,
    "webhook-timestamp": at,
    "webhook-signature": "v1," + base64.b64encode(signed).decode(),
})
try:
    with urllib.request.urlopen(request) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    sys.exit(f"{refused.code} {refused.read().decode()}")
