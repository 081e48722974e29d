"""Copies the flights of a day, with whether each was late."""
import csv
import json
import sys

task = json.load(sys.stdin)
with (open(task["inputs"][0]["files"][0], newline="") as rows,
      open(task["outputs"][0]["dir"] + "/scored.csv", "w", newline="") as out):
    scored = csv.writer(out)
    scored.writerow(["date", "carrier", "delay", "late"])
    for row in csv.DictReader(rows):
        scored.writerow([row["date"], row["carrier"], row["delay"], int(int(row["delay"]) >= 15)])
