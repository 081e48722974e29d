"""The receiver of examples/alerts: a webhook that prints what it is told, once.

A message may come more than once, always with the same Idempotency-Key: one that is known is answered and not printed.
With --fail N, the first N requests are answered 503, as by a receiver that has trouble of its own."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int, default=9093)
arguments.add_argument("--fail", type=int, default=0)
options = arguments.parse_args()
seen = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        if options.fail > 0:
            options.fail -= 1
            self.answer(503)
            return
        if key not in seen:
            seen.add(key)
            for alert in message["data"]["alerts"]:
                text = alert["summary"] if alert["status"] == "firing" else "it is over"
                print(message["data"]["receiver"], alert["status"], alert["alert"], alert["key"], "-", text, flush=True)
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", options.port), Receiver).serve_forever()
