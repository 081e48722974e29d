"""An operator of one's own. It gets one JSON object on stdin, writes files into the folders of its outputs, and ends
with one line of JSON: what people see, and what the next run finds as operator_state.

docs/operators.md#command describes all of it, also for programs with inputs and for those that run without end."""

import hashlib
import json
import os
import sys

task = json.load(sys.stdin)
slow_ms = int(os.environ["SLOW_MS"])
with open(sys.argv[1], "rb") as log:
    text = log.read()

version = hashlib.sha256(text).hexdigest()
if task.get("operator_state") == {"version": version, "slow_ms": slow_ms}:
    print(json.dumps({"unchanged": True}))  # nothing is new: readers keep what they have
    sys.exit()

lines = text.decode().splitlines()
with open(os.path.join(task["outputs"][0]["dir"], "requests.ndjson"), "w") as out:
    for line in lines:
        time, path, ms = line.split()
        print(json.dumps({"at": time, "path": path, "ms": int(ms), "slow": int(ms) >= slow_ms}), file=out)

print(f"{len(lines)} requests")  # a line of the task's log
print(json.dumps({
    "result": {"requests": len(lines)},
    "source_version": version,
    "operator_state": {"version": version, "slow_ms": slow_ms},
}))
