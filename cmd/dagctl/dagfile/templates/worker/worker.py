"""A worker: functions that jobs with operator `handler` call by name. It needs the package `dagctl`, which is sdk/python
of dagctl's repository (`pip install ./sdk/python`). `dagctl dev` runs it as dev.yaml says. With another server:

    DAGCTL_URL=https://dagctl.example.com DAGCTL_TOKEN=... python3 worker.py

docs/workers.md describes what a function can do, and how it is told to stop. There is an SDK for Go, too."""

import logging

import dagctl

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
worker = dagctl.Worker(runtime="python")


@worker.handler("orders:price")
def price(ctx):
    """Writes one partition. It takes effect as a whole when the function returns."""
    factor = 1 + ctx.config["vat"]
    rows = ctx.output().write(
        {"id": order["id"], "price": round(order["amount"] * factor, 2)} for order in ctx.input("orders").rows()
    )
    return {"orders": rows}


@worker.handler("mail:send")
def send(ctx, payload):
    """Acts outside. It may run again if its process is lost, so what it calls should know the task's id."""
    if "@" not in payload["to"]:
        raise dagctl.NotRetryable(f"{payload['to']} is no address")
    ctx.log.info("to %s, as %s", payload["to"], ctx.task.task_id)
    return {"sent": payload["to"]}


worker.run()
