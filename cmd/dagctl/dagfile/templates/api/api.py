"""Stands in for the API that you read: lists data/earthquakes.json, two of them a page. A page beyond the last is empty.

usage: api.py [PORT]"""

import http.server
import json
import pathlib
import sys
import urllib.parse

DATA = pathlib.Path(__file__).parent / "data" / "earthquakes.json"
PER_PAGE = 2


class Earthquakes(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        first = (int(query.get("page", ["1"])[0]) - 1) * PER_PAGE
        body = json.dumps({"features": json.loads(DATA.read_text())[first : first + PER_PAGE]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
http.server.ThreadingHTTPServer(("127.0.0.1", port), Earthquakes).serve_forever()
