"""The ranking of us-flights by a worker of one's own: the server runs the query, this turns its rows into the output's."""

import logging

import dagctl

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
worker = dagctl.Worker(runtime="python")


@worker.handler("flights:rank")
def rank(ctx):
    answer = ctx.query(ctx.config["query"])
    names = [column.name for column in answer.columns]
    return {"airports": ctx.output().write(dict(zip(names, row)) for row in answer.rows)}


worker.run()
