"""The functions of examples/planner-worker. A planner or a worker is the operator state of its entity_id: what it knows,
and which functions have run for it, in order.

DAGCTL_URL and DAGCTL_TOKEN say where, and as whom. If AGENTS_JOURNAL names a file, each run adds a line there when it
begins and one when it ends."""

import json
import logging
import os
import time

import dagctl

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
runner = dagctl.Worker(runtime="agents", pool_size=int(os.environ.get("AGENTS_POOL_SIZE", "4")))


def execute_initial_planning(ctx, planner, payload):
    planner.setdefault("question", payload["user_question"])
    planner.setdefault("plan", [f"{payload['instruction']}: part {n}" for n in (1, 2)])


def execute_task_creation(ctx, planner, payload):
    planner["workers"] = [f"{payload['entity_id']}-{n}" for n, _ in enumerate(planner["plan"], 1)]
    for worker in planner["workers"]:
        # A worker is made once, however often its planner's function runs.
        ctx.enqueue("worker", {"entity_id": worker, "function_name": "worker_initialisation"}, idempotency_key=worker)


def execute_synthesis(ctx, planner, payload):
    planner["synthesis"] = f"{len(planner['workers'])} answers to {planner['question']}"


def worker_initialisation(ctx, worker, payload):
    worker.setdefault("tools", ["python", "sql"])


def execute_standard_worker(ctx, worker, payload):
    worker["answered"] = worker.get("answered", 0) + 1


def execute_sql_worker(ctx, worker, payload):
    worker["queried"] = worker.get("queried", 0) + 1


REGISTRY = {
    "planner": [execute_initial_planning, execute_task_creation, execute_synthesis],
    "worker": [worker_initialisation, execute_standard_worker, execute_sql_worker],
}


def register(entity_type, functions):
    first = functions[0]  # makes the entity; the others need one that exists
    by_name = {function.__name__: function for function in functions}

    @runner.handler(entity_type)
    def execute(ctx, payload):
        function = by_name[payload["function_name"]]
        entity = f"{entity_type}:{payload['entity_id']}"
        if ctx.state is None and function is not first:
            raise dagctl.NotRetryable(f"there is no {entity}")
        journal(ctx, entity, "begin")
        try:
            ctx.wait(payload.get("seconds", 0))
            if ctx.attempt <= payload.get("fail", 0):
                raise RuntimeError(f"{entity} does not answer")
            record = json.loads(json.dumps(ctx.state)) if ctx.state else {"runs": 0}
            function(ctx, record, payload)
            record.update(runs=record["runs"] + 1, last=function.__name__)
            ctx.state = record
            return {"entity": entity, "run": record["runs"]}
        finally:
            journal(ctx, entity, "end")


def journal(ctx, entity, event):
    path = os.environ.get("AGENTS_JOURNAL")
    if path is None:
        return
    line = {"task": ctx.task.task_id, "attempt": ctx.attempt, "of": entity, "event": event, "at": time.time_ns(), "pid": os.getpid()}
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


for entity_type, functions in REGISTRY.items():
    register(entity_type, functions)
runner.run()
