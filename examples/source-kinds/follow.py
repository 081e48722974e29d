"""Follows a file of lines and commits those that are new, until it is asked to end. Each row has the process that wrote
it."""

import json
import os
import signal
import sys
import threading

task = json.load(sys.stdin)
ask = os.fdopen(task["commit"]["ask"], "w", buffering=1)
answers = os.fdopen(task["commit"]["answer"])


def commit(**what):
    print(json.dumps(what), file=ask)
    answer = json.loads(answers.readline())
    if not answer["committed"]:
        sys.exit(answer["error"]["message"])
    return answer


drained = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: drained.set())
seen = task["cursor"]["value"]  # -1, or the position of the last commit, whichever attempt made it
began_at = seen
while not drained.wait(0.2):
    with open(sys.argv[1]) as feed:
        ticks = [json.loads(line) for line in feed if line.endswith("\n")]
    new = [tick for tick in ticks if tick["seq"] > seen]
    if new:
        with open(os.path.join(task["outputs"][0]["dir"], "new.ndjson"), "w") as out:
            for tick in new:
                print(json.dumps({**tick, "pid": os.getpid(), "began_at": began_at}), file=out)
        seen = commit()["cursor"]["value"]
