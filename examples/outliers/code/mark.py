"""Marks what cannot be right in a day's readings: spikes, which are far from the median of their station."""

import csv
import json
import pathlib
import statistics
import sys

task = json.load(sys.stdin)
factor = task["params"]["factor"]
rows = [row for file in task["inputs"][0]["files"] for row in csv.DictReader(open(file))]

stations = {}
for row in rows:
    row["celsius"] = float(row["celsius"])
    stations.setdefault(row["station"], []).append(row)

for readings in stations.values():
    median = statistics.median(row["celsius"] for row in readings)
    usual = statistics.median(abs(row["celsius"] - median) for row in readings)
    for row in readings:
        row["mark"] = "spike" if abs(row["celsius"] - median) > factor * usual else None

with open(pathlib.Path(task["outputs"][0]["dir"]) / "marked.ndjson", "w") as out:
    for row in rows:
        print(json.dumps({**row, "hour": int(row["hour"])}), file=out)
marked = sum(row["mark"] is not None for row in rows)
print(json.dumps({"result": {"readings": len(rows), "marked": marked}}))
