"""A worker of a queue. Its tasks wait for a file where the payload names one."""

import logging
import os
import time

import dagctl

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
worker = dagctl.Worker(runtime="queue", pool_size=4)


@worker.handler("queue:work")
def work(ctx, payload):
    print(f"begins {payload['n']}", flush=True)
    while "gate" in payload and not os.path.exists(payload["gate"]):
        time.sleep(0.02)
    return payload["n"]


worker.run_sqs(os.environ["QUEUE_URL"], endpoint=os.environ["SQS_ENDPOINT"], region="us-east-1", visibility_seconds=2)
