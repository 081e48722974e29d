"""Reads the rows of a file through the SDK, and writes what a handler gets, with the kind of each value."""

import decimal
import json
import shutil
import sys

sys.path.insert(0, sys.argv[1])

from dagctl.data import Input, Scratch  # noqa: E402
from dagctl.protocol import Column, InputSpec  # noqa: E402


class Attempt:
    def __init__(self, path):
        self.path = path

    def transfer(self, method, url, into):
        with open(self.path, "rb") as rows:
            shutil.copyfileobj(rows, into)

    def check(self):
        pass


def tagged(value):
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float, decimal.Decimal)):
        return ["n", repr(value) if isinstance(value, float) else str(value)]
    if isinstance(value, str):
        return ["s", value]
    if isinstance(value, list):
        return ["l", [tagged(v) for v in value]]
    return ["m", [[k, tagged(v)] for k, v in value.items()]]


for line in sys.stdin:
    asked = json.loads(line)
    columns = [Column(c["name"], c["type"]) for c in asked["columns"]]
    scratch = Scratch()
    source = Input(InputSpec(index=0, name="in", columns=columns), Attempt(asked["file"]), scratch)
    rows = source.csv() if asked["csv"] else source.rows()
    print(json.dumps([tagged(row) for row in rows]), flush=True)
    scratch.remove()
