"""Takes one event: writes it as a row."""

import json
import os
import sys

task = json.load(sys.stdin)
row = {"task_id": task["task_id"], "product": task["payload"]["product"], "amount": task["payload"]["amount"]}
with open(os.path.join(task["outputs"][0]["dir"], "order.ndjson"), "w") as out:
    print(json.dumps(row), file=out)
