"""Takes one task: writes what it was asked for as a row."""

import json
import os
import sys

task = json.load(sys.stdin)
partition = task.get("partition") or {}
timer = task.get("metadata", {}).get("timer", {})
row = {
    "task_id": task["task_id"],
    "partition_key": partition.get("key"),
    "partition_start": partition.get("start"),
    "due": timer.get("due_at"),
    "payload": json.dumps(task.get("payload"), sort_keys=True),
}
with open(os.path.join(task["outputs"][0]["dir"], "taken.ndjson"), "w") as out:
    print(json.dumps(row), file=out)
