"""Receives greetings: an HTTP server of Python's standard library that accepts each Idempotency-Key once.

    receiver.py PORT [JOURNAL [SCRIPT]]

It answers a repeated key with 200 and accepts nothing. The journal gets a line of JSON for each request. A script, a
JSON file, makes the receiver behave badly on purpose: by user, what to do with the first, second, ... request of each of
the user's keys, after which requests are accepted as usual.

    500, 503, 400    answer so, and accept nothing
    429              the same, with Retry-After
    hang             accept, and do not answer until the sender gives up
    drop             accept, and close the connection without an answer
    reset            accept, answer, and close the connection at once
"""

import http.server
import json
import socket
import sys
import threading
import time

port, journal, script = (sys.argv[1:] + [None, None])[:3]
lock = threading.Lock()
accepted: set[str] = set()
requests: dict[str, int] = {}
behaviour = {}
if script:
    with open(script, encoding="utf-8") as text:
        behaviour = json.load(text)


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        at = time.time()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key, greeting = self.headers.get("Idempotency-Key"), json.loads(body)
        with lock:
            n = requests[key] = requests.get(key, 0) + 1
            planned = behaviour.get(greeting["user"], [])
            act = planned[n - 1] if n <= len(planned) else "accept"
            new = not act.isdigit() and key not in accepted
            if new:
                accepted.add(key)
            self.note({"key": key, "at": at, "act": act, "accepted": new, **greeting})

        if act == "hang":
            self.rfile.read(1)  # until the sender gives up
        if act in ("hang", "drop"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.answer(int(act) if act.isdigit() else 200)
        if act == "reset":
            self.close_connection = True

    def note(self, entry):
        if entry["accepted"]:
            print(f"{entry['first_name']} {entry['last_name']} is greeted", flush=True)
        if journal:
            with open(journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def answer(self, status):
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024  # of connections that wait to be accepted: more would wait for a second or longer


Server(("127.0.0.1", int(port)), Receiver).serve_forever()
