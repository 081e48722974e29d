"""The life of a worker: taking tasks, being stopped, and SQS and Lambda in place of the long poll."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional
from unittest import mock

import dagctl
from dagctl import keeper
from dagctl.aws import AWSCredentials
from dagctl.health import Health
from dagctl.sqs import Queue
from tests import replay
from tests.replay import Replay, Reply, in_turn, problem

NONE = {"tasks": []}


def routes(*polls: Any, **more: Any) -> Dict[str, Any]:
    hold = threading.Event()

    def idle(_: Any) -> Any:
        hold.wait(20)  # as a long poll does
        return NONE

    return replay.task_routes(**{"POST /internal/task-poll": in_turn(*polls, idle), "POST /internal/worker-heartbeat": {"drain": False}, **more})


def numbered(n: int, url: str = "", **task: Any) -> Dict[str, Any]:
    return replay.claim(url, task_id=f"0190c0de-0000-7000-8000-{n:012d}", **task)


class Case(unittest.TestCase):
    def start(self, server_routes: Dict[str, Any], **options: Any) -> dagctl.Worker:
        logger = logging.getLogger("dagctl")
        logger.propagate, logger.handlers = False, [logging.NullHandler()]
        self.server = Replay(server_routes)
        self.addCleanup(self.server.close)
        options.setdefault("runtime", "python")
        return dagctl.Worker(self.server.url, replay.WORKER_TOKEN, worker_id="w1", **options)

    def run_in_thread(self, run: Any) -> threading.Thread:
        self.raised: List[BaseException] = []

        def go() -> None:
            try:
                run()
            except BaseException as error:
                self.raised.append(error)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        return thread

    def ended(self, thread: threading.Thread) -> None:
        thread.join(20)
        self.assertFalse(thread.is_alive())


class TestPoll(Case):
    def test_tasks_run_at_once_up_to_the_size_of_the_pool(self) -> None:
        both = threading.Barrier(2, timeout=20)
        worker = self.start(routes({"tasks": [numbered(1), numbered(2)]}, {"tasks": [numbered(3)]}), pool_size=2)
        worker.handler("email:send")(lambda ctx: both.wait() if ctx.task.task_id[-1] in "12" else None)
        thread = self.run_in_thread(worker.run)
        self.server.wait_for("/v1/task/complete", 3)
        worker.stop()
        self.ended(thread)
        poll = self.server.of("/internal/task-poll")[0]
        self.assertEqual(poll.headers["authorization"], f"Bearer {replay.WORKER_TOKEN}")
        self.assertEqual(
            poll.json,
            {**worker._name(), "runtime": "python", "max": 2, "wait_seconds": 20, "operators": [{"name": "handler"}], "handlers": ["email:send"]},
        )
        beats = [r.json for r in self.server.of("/internal/worker-heartbeat")]
        self.assertEqual((beats[0]["runtimes"], beats[0]["pool_size"], beats[-1]["stopping"]), (["python"], 2, True))

    def test_a_server_that_is_away_for_a_while(self) -> None:
        worker = self.start(routes(replay.BREAK, Reply(503, {}), {"tasks": [numbered(1)]}))
        worker.handler("email:send")(lambda ctx: None)
        thread = self.run_in_thread(worker.run)
        self.server.wait_for("/v1/task/complete")
        worker.stop()
        self.ended(thread)

    def test_a_token_that_is_not_valid_ends_the_worker(self) -> None:
        worker = self.start(routes(problem(401, "the token is not valid")))
        worker.handler("email:send")(lambda ctx: None)
        self.ended(self.run_in_thread(worker.run))
        self.assertIsInstance(self.raised[0], dagctl.UnauthorizedError)
        self.assertNotIn(replay.WORKER_TOKEN, str(self.raised[0]))

    def test_stopping_waits_for_what_runs(self) -> None:
        go = threading.Event()
        worker = self.start(routes({"tasks": [numbered(1)]}))

        @worker.handler("email:send")
        def send(ctx: dagctl.Context) -> bool:
            go.wait(20)
            return ctx.drain_requested

        thread = self.run_in_thread(worker.run)
        self.server.wait_for("/internal/task-poll", 2)
        worker.stop()
        thread.join(0.3)
        self.assertTrue(thread.is_alive())
        go.set()
        self.ended(thread)
        self.assertEqual(self.server.of("/v1/task/complete")[0].json["result"], True)

    def test_what_does_not_end_in_time_is_handed_back(self) -> None:
        lost = threading.Event()
        worker = self.start(routes({"tasks": [numbered(1)]}), drain_seconds=0.2)

        @worker.handler("email:send")
        def send(ctx: dagctl.Context) -> None:
            try:
                ctx.wait(60)
            finally:
                lost.set()

        thread = self.run_in_thread(worker.run)
        self.server.wait_for("/internal/task-poll", 2)
        worker.stop()
        self.ended(thread)
        self.assertTrue(lost.wait(20))
        self.assertTrue(self.server.of("/internal/worker-heartbeat")[-1].json["stopping"])
        self.assertEqual(self.server.of("/v1/task/complete"), [])

    def test_orders_to_drain(self) -> None:
        for where in ("poll", "heartbeat"):
            with self.subTest(where):
                polls: List[Any] = [{"tasks": [], "drain": True}] if where == "poll" else []
                worker = self.start(routes(*polls, **{"POST /internal/worker-heartbeat": {"drain": where == "heartbeat"}}))
                worker.handler("email:send")(lambda ctx: None)
                self.ended(self.run_in_thread(worker.run))
                self.assertEqual(self.raised, [])

    def test_idle_workers_may_go(self) -> None:
        worker = self.start(routes({"tasks": [], "idle": True}), exit_when_idle=True)
        worker.handler("email:send")(lambda ctx: None)
        self.ended(self.run_in_thread(worker.run))

    def test_what_a_worker_needs(self) -> None:
        worker = self.start({})
        with self.assertRaisesRegex(ValueError, "needs handlers"):
            worker.run()
        with self.assertRaisesRegex(ValueError, "needs a runtime"):
            dagctl.Worker(self.server.url, "t").run()
        with mock.patch.dict(os.environ, {}, clear=True), self.assertRaisesRegex(ValueError, "DAGCTL_URL and DAGCTL_TOKEN"):
            dagctl.Worker(runtime="python").run()
        with mock.patch.dict(os.environ, {"DAGCTL_URL": "http://there", "DAGCTL_TOKEN": "t"}):
            self.assertEqual(dagctl.Worker().url, "http://there")

    def test_sigterm(self) -> None:
        self.start(routes({"tasks": [numbered(1)]}))
        program = """
import dagctl, sys
worker = dagctl.Worker(sys.argv[1], "t", runtime="python")
@worker.handler("email:send")
def send(ctx):
    print("begins", flush=True)
    while not ctx.drain_requested:
        ctx.wait(0.01)
    return "drained"
worker.run()
print("ends")
"""
        process = subprocess.Popen([sys.executable, "-c", program, self.server.url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "begins\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 0)
        self.assertEqual(process.stdout.read(), "ends\n")
        self.assertEqual(self.server.of("/v1/task/complete")[0].json["result"], "drained")


class TestHealth(unittest.TestCase):
    def test_probes(self) -> None:
        why: List[Optional[str]] = [None]
        health = Health("127.0.0.1:0", lambda: why[0])
        self.addCleanup(health.close)
        with urllib.request.urlopen(f"http://127.0.0.1:{health.port}/healthz") as answer:
            self.assertEqual(answer.status, 200)
        with urllib.request.urlopen(f"http://127.0.0.1:{health.port}/readyz") as answer:
            self.assertEqual(answer.read(), b"ok\n")
        why[0] = "the worker stops"
        with self.assertRaises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"http://127.0.0.1:{health.port}/readyz")
        self.assertEqual((raised.exception.code, raised.exception.read()), (503, b"the worker stops\n"))
        raised.exception.close()

    def test_addresses(self) -> None:
        with self.assertRaisesRegex(ValueError, "not HOST:PORT"):
            Health("localhost", lambda: None)


class FakeQueue:
    """SQS as documented, as far as a worker uses it."""

    def __init__(self, *bodies: str) -> None:
        self.bodies = list(bodies)
        self.calls: List[Any] = []
        self.changed = threading.Condition()

    def __call__(self, request: replay.Request) -> Any:
        action = request.headers["x-amz-target"]
        with self.changed:
            self.calls.append((action, request.json, request.headers))
            self.changed.notify_all()
            if action != "AmazonSQS.ReceiveMessage":
                return {}
            if not self.bodies:
                self.changed.wait(0.05)
            found, self.bodies = self.bodies, []
            messages = [{"MessageId": f"m{n}", "ReceiptHandle": f"r{n}", "Body": b} for n, b in enumerate(found)]
            return {"Messages": messages} if messages else {}

    def wait_for(self, action: str, count: int = 1) -> List[Dict[str, Any]]:
        with self.changed:
            found = lambda: [body for a, body, _ in self.calls if a == f"AmazonSQS.{action}"]
            assert self.changed.wait_for(lambda: len(found()) >= count, 20), action
            return found()


class TestSQS(Case):
    def queue_worker(self, queue: FakeQueue, claim: Any, **more: Any) -> Any:
        worker = self.start(routes(**{"POST /": queue, "POST /internal/task-claim": claim, **more}))
        url = f"{self.server.url}/000000000000/tasks"
        options = {"region": "eu-central-1", "credentials": lambda: AWSCredentials("a", "s")}
        return worker, lambda **extra: worker.run_sqs(url, **options, **extra)

    def test_a_message_is_deleted_after_its_task(self) -> None:
        queue = FakeQueue(json.dumps({"task_id": replay.TASK_ID}))
        worker, run = self.queue_worker(queue, replay.claim())
        worker.handler("email:send")(lambda ctx: queue.wait_for("ChangeMessageVisibility") and None)
        thread = self.run_in_thread(lambda: run(visibility_seconds=2))
        deleted = queue.wait_for("DeleteMessage")
        worker.stop()
        self.ended(thread)
        self.assertEqual(deleted[0]["ReceiptHandle"], "r0")
        self.assertEqual(len(self.server.of("/v1/task/complete")), 1)
        claim = self.server.of("/internal/task-claim")[0].json
        want = {"task_id": replay.TASK_ID, **worker._name(), "operators": [{"name": "handler"}], "handlers": ["email:send"], "runtime": "python"}
        self.assertEqual(claim, want)
        received, _, headers = queue.calls[0][1], *queue.calls[0][1:]
        self.assertEqual((received["VisibilityTimeout"], received["WaitTimeSeconds"]), (2, 20))
        self.assertRegex(headers["authorization"], r"^AWS4-HMAC-SHA256 Credential=a/\d{8}/eu-central-1/sqs/aws4_request, ")
        self.assertEqual(headers["content-type"], "application/x-amz-json-1.0")

    def test_what_is_not_claimed_is_deleted(self) -> None:
        queue = FakeQueue(json.dumps({"task_id": replay.TASK_ID}))
        worker, run = self.queue_worker(queue, {"status": "NotClaimed", "reason": "Completed"})
        worker.handler("email:send")(lambda ctx: None)
        thread = self.run_in_thread(run)
        queue.wait_for("DeleteMessage")
        worker.stop()
        self.ended(thread)

    def test_poison_is_left_alone_and_blocks_nothing(self) -> None:
        queue = FakeQueue("{", '{"task_id": "x"}', "[1]", '{"task_id": 5}', json.dumps({"task_id": replay.TASK_ID}))
        worker, run = self.queue_worker(queue, {"status": "NotClaimed", "reason": "NotFound"})
        worker.handler("email:send")(lambda ctx: None)
        thread = self.run_in_thread(run)
        self.assertEqual([d["ReceiptHandle"] for d in queue.wait_for("DeleteMessage")], ["r4"])
        worker.stop()
        self.ended(thread)
        self.assertEqual(len(queue.wait_for("DeleteMessage")), 1)

    def test_a_block_is_deleted_after_its_last_task(self) -> None:
        tasks = [f"0190c0de-0000-7000-8000-00000000000{n}" for n in range(5)]
        queue = FakeQueue(json.dumps({"task_ids": tasks}), '{"task_ids": []}', '{"task_ids": ["x"]}', '{"task_ids": "x"}')
        gate, begun = threading.Event(), threading.Semaphore(0)
        running: List[int] = []
        most: List[int] = []

        def send(ctx: Any) -> None:
            running.append(1)
            most.append(len(running))
            begun.release()
            gate.wait(20)
            running.pop()

        worker, run = self.queue_worker(queue, lambda request: replay.claim(task_id=request.json["task_id"]))
        worker.pool_size = 2
        worker.handler("email:send")(send)
        thread = self.run_in_thread(run)
        self.assertTrue(begun.acquire(timeout=20) and begun.acquire(timeout=20))
        self.assertEqual([a for a, _, _ in queue.calls if a == "AmazonSQS.DeleteMessage"], [])
        gate.set()
        deleted = queue.wait_for("DeleteMessage")
        worker.stop()
        self.ended(thread)
        self.assertEqual([d["ReceiptHandle"] for d in deleted], ["r0"])
        self.assertEqual(sorted(r.json["task_id"] for r in self.server.of("/internal/task-claim")), tasks)
        self.assertLessEqual(max(most), 2)

    def test_what_waits_of_a_block_is_left_to_others(self) -> None:
        tasks = [f"0190c0de-0000-7000-8000-00000000000{n}" for n in range(5)]
        queue = FakeQueue(json.dumps({"task_ids": tasks}))
        gate, begun = threading.Event(), threading.Event()
        worker, run = self.queue_worker(queue, replay.claim())
        worker.pool_size = 1
        worker.handler("email:send")(lambda ctx: begun.set() or gate.wait(20) and None)
        thread = self.run_in_thread(run)
        self.assertTrue(begun.wait(20))
        worker.stop()
        shown = queue.wait_for("ChangeMessageVisibility")
        gate.set()
        self.ended(thread)
        self.assertEqual((shown[0]["ReceiptHandle"], shown[0]["VisibilityTimeout"]), ("r0", 0))
        self.assertEqual(len(self.server.of("/internal/task-claim")), 1)
        self.assertEqual([a for a, _, _ in queue.calls if a == "AmazonSQS.DeleteMessage"], [])

    def test_an_attempt_that_nobody_heard_of_leaves_its_message(self) -> None:
        for answer in (problem(401, "expired"), None):
            with self.subTest(answer=answer):
                queue = FakeQueue(json.dumps({"task_id": replay.TASK_ID}))
                beat = {"POST /v1/task/heartbeat": problem(409, "lost")} if answer is None else {"POST /v1/task/complete": answer}
                worker, run = self.queue_worker(queue, replay.claim(lease_seconds=1), **beat)
                worker.handler("email:send")(lambda ctx: ctx.wait(60) if answer is None else None)
                ended = threading.Event()
                original = worker.run_claim
                worker.run_claim = lambda claim: (original(claim), ended.set())[0]
                thread = self.run_in_thread(run)
                self.assertTrue(ended.wait(20))
                worker.stop()
                self.ended(thread)
                self.assertEqual([a for a, _, _ in queue.calls if a == "AmazonSQS.DeleteMessage"], [])

    def test_regions(self) -> None:
        with mock.patch.dict(os.environ, {"AWS_REGION": "eu-west-1"}):
            self.assertEqual(Queue("https://sqs.us-east-2.amazonaws.com/1/q")._signer._region, "us-east-2")
            self.assertEqual(Queue("http://localhost:1/1/q")._signer._region, "eu-west-1")
        with mock.patch.dict(os.environ, {}, clear=True), self.assertRaisesRegex(ValueError, "no region"):
            Queue("http://localhost:1/1/q")


class LambdaContext:
    def __init__(self, millis: int) -> None:
        self.millis = millis

    def get_remaining_time_in_millis(self) -> int:
        return self.millis


class TestLambda(Case):
    def function(self, **more: Any) -> Any:
        self.start(replay.task_routes(**more))
        self.worker = dagctl.Worker()
        self.addCleanup(self.worker.close)
        return dagctl.lambda_handler(self.worker)

    def test_an_invocation_is_a_run(self) -> None:
        function = self.function()
        self.worker.handler("email:send")(lambda ctx, payload: payload["to"])
        answer = function(replay.claim(self.server.url), LambdaContext(60_000))
        self.assertEqual(answer, {"task_id": replay.TASK_ID, "attempt": 1, "status": "Completed"})
        (end,) = self.server.of("/v1/task/complete")
        self.assertEqual(end.json["result"], "ada@example.com")
        self.assertNotIn("authorization", end.headers)

    def test_failures_are_reported_and_no_error_of_the_function(self) -> None:
        function = self.function()

        @self.worker.handler("email:send")
        def send(ctx: dagctl.Context) -> None:
            raise RuntimeError("broken")

        self.assertEqual(function(replay.claim(self.server.url), None)["status"], "Failed")

    def test_the_time_of_the_function_runs_out(self) -> None:
        function = self.function()
        self.worker.handler("email:send")(lambda ctx: ctx.wait(60))
        began = time.monotonic()
        function(replay.claim(self.server.url), LambdaContext(2_100))
        self.assertLess(time.monotonic() - began, 20)
        (end,) = self.server.of("/v1/task/complete")
        self.assertEqual(end.json["error"], {"message": "the process that ran it is out of time"})

    def test_an_end_that_nobody_took_is_an_error_of_the_function(self) -> None:
        function = self.function(**{"POST /v1/task/complete": problem(403, "no")})
        self.worker.handler("email:send")(lambda ctx: None)
        with self.assertRaisesRegex(dagctl.Error, "could not be reported"):
            function(replay.claim(self.server.url), None)

    def test_what_is_no_claim(self) -> None:
        function = self.function()
        with self.assertRaisesRegex(ValueError, "claim.status is missing"):
            function({}, None)
        with self.assertRaisesRegex(ValueError, "claim.lease_token is missing"):
            function({"status": "Claimed", "task": replay.claim()["task"]}, None)
        with mock.patch.dict(os.environ, {}, clear=True):
            self.assertEqual(function({"status": "NotClaimed", "reason": "Canceled"}, None), {"status": "NotClaimed"})
            self.worker.url = ""
            with self.assertRaisesRegex(dagctl.Error, "base_url"):
                function(replay.claim(), None)


class TestModule(unittest.TestCase):
    def test_versions_agree(self) -> None:
        from dagctl import transport

        self.assertEqual(transport.USER_AGENT, f"dagctl-python/{dagctl.__version__}")
        with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "pyproject.toml"), encoding="utf-8") as file:
            self.assertIn(f'version = "{dagctl.__version__}"', file.read())

    def test_all_is_there(self) -> None:
        self.assertEqual([n for n in dagctl.__all__ if not hasattr(dagctl, n)], [])
        self.assertGreater(keeper.HEARTBEAT, 0)


if __name__ == "__main__":
    unittest.main()
