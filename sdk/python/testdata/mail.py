"""A worker with handlers of all that they may do without inputs and outputs."""

import dataclasses
import logging
import typing

import dagctl

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
worker = dagctl.Worker(runtime="python", pool_size=8)


@dataclasses.dataclass
class Mail:
    to: str
    copies: typing.List[str] = dataclasses.field(default_factory=list)


@worker.handler("email:send")
def send(ctx: dagctl.Context, mail: Mail):
    ctx.log.info("to %s", mail.to)
    if mail.to == "nobody":
        raise dagctl.NotRetryable("there is no nobody")
    if mail.to == "later" and ctx.attempt == 1:
        raise RuntimeError("the other side is away")
    for copy in mail.copies:
        ctx.enqueue("send", {"to": copy}, idempotency_key=f"copy-{copy}")
    return {"to": mail.to, "attempt": ctx.attempt}


@worker.handler("email:count")
def count(ctx):
    ctx.state = {"seen": (ctx.state or {"seen": 0})["seen"] + 1}
    done = ctx.commit()
    assert not done.tasks and not done.events
    return ctx.state


@worker.handler("email:secret")
def secret(ctx):
    assert repr(ctx.secrets) == "Secrets(smtp)", ctx.secrets
    return {"length": len(ctx.secrets["smtp"])}


@worker.handler("email:leak")
def leak(ctx):
    login(ctx.secrets["smtp"])


def login(password):
    raise ConnectionError(f"smtp://ada:{password}@mail.example.com refused")


@worker.handler("email:bounced")
def bounced(ctx):
    ctx.output().write([], columns=["address", "a reason, or none"])


@worker.handler("email:wrong")
def wrong(ctx):
    try:
        ctx.enqueue("elsewhere/job")
        ctx.commit()
    except dagctl.ApiError as refused:
        return {"status": refused.status, "detail": refused.detail, "kind": type(refused).__name__}


worker.run()
