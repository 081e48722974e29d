"""The worker of examples/workflow-tasks: documents a repository in four steps, and stops between them if it is canceled.

DAGCTL_URL and DAGCTL_TOKEN say where, and as whom."""

import logging

import dagctl

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
worker = dagctl.Worker(runtime="workflow")

STEPS = ["Cloning", "Analysing", "Writing", "Reviewing"]


@worker.handler("repository:document")
def document(ctx, payload):
    for n, step in enumerate(STEPS):
        ctx.progress(100 * n // len(STEPS), step)  # raises CanceledError if somebody canceled the task meanwhile
        ctx.wait(payload.get("seconds", 0))
        if step == "Analysing" and ctx.attempt <= payload.get("fail", 0):
            raise RuntimeError(f"{payload['repository']} cannot be parsed")
    pages = [{"page": n, "title": f"{payload['repository']} {payload['revision']}, {step}"} for n, step in enumerate(STEPS, 1)]
    ctx.output().write(pages)
    ctx.progress(100, "Done")
    return {"dataset": "pages", "partition": ctx.partition.key, "pages": len(pages)}  # where it is, not what it is


worker.run()
