"""The functions of `dagctl worker conformance`, with this SDK."""

import ctypes
import os
import sys

import dagctl

worker = dagctl.Worker(runtime=os.environ["DAGCTL_RUNTIME"])


@worker.handler("conformance:echo")
def echo(ctx, payload):
    return payload


@worker.handler("conformance:fail")
def fail(ctx, payload):
    if payload.get("crash"):
        sys.exit(3)
    if payload["retryable"]:
        raise RuntimeError(payload["message"])
    raise dagctl.NotRetryable(payload["message"])


@worker.handler("conformance:sleep")
def sleep(ctx, payload):
    ctx.progress(payload["progress"], payload["state"])
    ctx.wait(payload["seconds"])
    return {"slept": payload["seconds"]}


@worker.handler("conformance:hold")
def hold(ctx, payload):
    ctypes.PyDLL(None).sleep(int(payload["seconds"]))  # unlike a CDLL, it does not release the GIL
    return {"held": payload["seconds"]}


@worker.handler("conformance:log")
def log(ctx, payload):
    for n in range(payload["lines"]):
        ctx.log.info("line %d", n + 1)


@worker.handler("conformance:copy")
def copy(ctx):
    return {"rows": ctx.output().write(ctx.input("rows").rows())}


@worker.handler("conformance:norows")
def no_rows(ctx, payload):
    if payload["unchanged"]:
        ctx.unchanged()


@worker.handler("conformance:commit")
def commit(ctx, payload):
    ctx.state = payload["state"]
    for task in payload["tasks"]:
        ctx.enqueue(**task)
    return {"tasks": ctx.commit().tasks}


@worker.handler("conformance:secrets")
def secrets(ctx):
    return {name: len(value) for name, value in ctx.secrets.items()}


@worker.handler("conformance:query")
def query(ctx):
    return {"rows": ctx.query("SELECT count(*) AS rows, sum(n)::BIGINT AS total FROM rows").rows}


worker.run()
