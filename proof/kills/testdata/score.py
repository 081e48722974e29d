"""The handler of the ledger: it reads each row and writes it with twice its total."""

import dagctl

worker = dagctl.Worker(runtime="python", pool_size=2)


@worker.handler("score")
def score(ctx, payload):
    rows = ctx.input("daily").rows()
    ctx.output().write(({"station": row["station"], "score": 2 * row["total"]} for row in rows), columns=["station", "score"])


worker.run()
