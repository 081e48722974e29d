"""A worker whose handlers wait for files, so that a test decides when they go on."""

import logging
import os
import time

import dagctl

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
logging.getLogger().addHandler(dagctl.TaskLogHandler())

GATE = os.environ["GATE"]
worker = dagctl.Worker(
    runtime="python",
    worker_id=os.environ["WORKER"],
    pool_size=int(os.environ.get("POOL", "4")),
    drain_seconds=float(os.environ.get("DRAIN", "20")),
)


def there(name):
    return os.path.exists(os.path.join(GATE, name))


@worker.handler("waits")
def waits(ctx, payload):
    """Looks at nothing but its file: it does not hear that its lease is lost."""
    if ctx.outputs:
        ctx.output().write([{"worker": worker.worker_id, "attempt": ctx.attempt}])
    print(f"begins {ctx.attempt}", flush=True)
    while not there(f"{worker.worker_id}-{payload['gate']}"):
        time.sleep(0.02)
    print(f"goes on {ctx.attempt}", flush=True)
    return {"worker": worker.worker_id, "attempt": ctx.attempt}


@worker.handler("listens")
def listens(ctx):
    """Stops when it is asked to."""
    ctx.progress(25, "a quarter")
    print(f"begins {ctx.attempt}", flush=True)
    try:
        ctx.wait(600)
    except dagctl.CanceledError:
        print("hears of its cancellation", flush=True)
        raise
    except dagctl.LeaseLostError:
        print("hears of its loss", flush=True)
        raise


worker.run()
print("the worker ends", flush=True)
