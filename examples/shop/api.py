"""Stands in for the bank and the wholesaler of examples/shop.

POST /token         gives a client a token for ten minutes (OAuth 2.0, client credentials)
GET /rates          lists data/rates.json to who has a token, four rates a page; `after` is where a page begins
GET /products.csv   is data/products.csv, for everybody"""

import argparse
import base64
import hashlib
import json
import pathlib
import secrets
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int, default=7180)
arguments.add_argument("--client", default="shop")
arguments.add_argument("--secret", default="rates-password")
options = arguments.parse_args()

DATA = pathlib.Path(__file__).parent / "data"
CLIENT = "Basic " + base64.b64encode(f"{options.client}:{options.secret}".encode()).decode()
PER_PAGE = 4
tokens = set()


class API(BaseHTTPRequestHandler):
    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self.path != "/token" or form.get("grant_type") != ["client_credentials"]:
            self.answer(400, {"error": "unsupported_grant_type"})
        elif self.headers["Authorization"] != CLIENT:
            self.answer(401, {"error": "invalid_client"})
        else:
            token = secrets.token_urlsafe()
            tokens.add(f"Bearer {token}")
            self.answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": 600})

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        if url.path == "/products.csv":
            self.send_products()
        elif url.path != "/rates":
            self.answer(404, {"error": "not_found"})
        elif self.headers["Authorization"] not in tokens:
            self.answer(401, {"error": "invalid_token"})
        else:
            first = int(urllib.parse.parse_qs(url.query).get("after", ["0"])[0])
            past = first + PER_PAGE
            rates = json.loads((DATA / "rates.json").read_text())
            self.answer(200, {"rates": rates[first:past], "next": str(past) if past < len(rates) else None})

    def send_products(self):
        body = (DATA / "products.csv").read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        if self.headers["If-None-Match"] == etag:
            self.send(304, b"", ETag=etag)
        else:
            self.send(200, body, **{"Content-Type": "text/csv", "ETag": etag})

    def answer(self, status, what):
        self.send(status, json.dumps(what).encode(), **{"Content-Type": "application/json"})

    def send(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", options.port), API).serve_forever()
