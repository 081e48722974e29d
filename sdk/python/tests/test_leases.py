"""Leases while a handler keeps the interpreter to itself, and when a worker or its keeper dies."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Dict, List
from unittest import mock

import dagctl
from dagctl import keeper
from dagctl.token import Token
from tests import replay
from tests.replay import Replay, Request, problem
from tests.test_worker import Case, numbered, routes

BEAT, DONE, WORKER_BEAT = "/v1/task/heartbeat", "/v1/task/complete", "/internal/worker-heartbeat"

HOLDS = """
import ctypes, dagctl, os, sys, time
worker = dagctl.Worker(sys.argv[1], "t", runtime="python")
@worker.handler("email:send")
def send(ctx):
    if sys.argv[2] == "forks" and os.fork() == 0:
        time.sleep(600)
    print("begins", flush=True)
    ctypes.PyDLL(None).sleep(int(sys.argv[3]))  # unlike a CDLL, it keeps the GIL
worker.run()
"""

STOPPED_AT_ONCE = """
import dagctl, os, signal, subprocess, sys

class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.killpg(0, signal.SIGTERM)

subprocess.Popen = Popen
worker = dagctl.Worker(sys.argv[1], "t", runtime="python")
worker.handler("email:send")(lambda ctx: None)
worker.run()
"""


class Timed:
    """An answer that notes when it was asked for."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.at: List[float] = []

    def __call__(self, request: Request) -> Any:
        self.at.append(time.monotonic())
        return self.answer


class TestKeeper(Case):
    LEASE = 9  # the keeper's start and a heartbeat fit into it on a busy machine, too

    def worker_process(self, how: str, seconds: int, **more: Any) -> "subprocess.Popen[str]":
        self.beats = Timed(replay.task_routes()["POST " + BEAT])
        self.server = Replay(routes({"tasks": [numbered(1, lease_seconds=self.LEASE)]}, **{"POST " + BEAT: self.beats, **more}))
        self.addCleanup(self.server.close)
        command = [sys.executable, "-B", "-c", HOLDS, self.server.url, how, str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(end_all_of, process.pid)
        self.assertEqual(process.stdout.readline(), "begins\n")
        return process

    def test_a_handler_that_keeps_the_interpreter_to_itself_loses_nothing(self) -> None:
        process = self.worker_process("holds", self.LEASE + 4)
        began = time.monotonic()
        (end,) = self.server.wait_for(DONE)
        self.assertEqual(end.json["status"], "Completed")
        longest = max(b - a for a, b in zip([began, *self.beats.at], [*self.beats.at, time.monotonic()]))
        self.assertLess(longest, self.LEASE, "the lease ran out")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 0)

    def test_a_killed_worker_keeps_no_lease(self) -> None:
        for how in ("holds", "forks"):  # a child that was forked has the pipe to the keeper as well
            with self.subTest(how):
                process = self.worker_process(how, 600)
                self.server.wait_for(BEAT)
                process.kill()
                (end,) = self.server.wait_for(DONE)
                said = end.json
                self.assertEqual((said["status"], said["task_id"]), ("Failed", numbered(1)["task"]["task_id"]))
                self.assertEqual(said["error"], {"message": "the worker's process ended while the handler ran"})
                self.assertEqual(end.headers["x-dagctl-task-capability"], replay.CAPABILITY)
                ended(self, process.pid)
                self.assertFalse(any(r.json.get("stopping") for r in self.server.of(WORKER_BEAT)))

    def test_a_stopped_worker_keeps_no_lease(self) -> None:
        process = self.worker_process("holds", 600)
        self.server.wait_for(BEAT)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2)  # one may be on its way
        before = len(self.beats.at)
        time.sleep(self.LEASE)
        self.assertEqual(len(self.beats.at), before)
        process.send_signal(signal.SIGCONT)
        self.server.wait_for(BEAT, before + 2)

    def test_another_keeper_takes_over(self) -> None:
        worker = self.start(routes({"tasks": [numbered(1, lease_seconds=1)]}))
        go = threading.Event()

        @worker.handler("email:send")
        def send(ctx: dagctl.Context) -> None:
            ctx.progress(30, "a third")
            go.wait(20)

        thread = self.run_in_thread(worker.run)
        asked = self.server.wait_for(BEAT, 2)
        assert worker._leases._keeper is not None
        os.kill(worker._leases._keeper.pid, signal.SIGKILL)
        beats = self.server.wait_for(BEAT, len(asked) + 4)
        self.assertEqual((beats[-1].json["progress"], beats[-1].json["state"]), (30, "a third"))
        self.server.wait_for(WORKER_BEAT, 2)
        go.set()
        self.server.wait_for(DONE)
        worker.stop()
        self.ended(thread)
        self.assertTrue(self.server.of(WORKER_BEAT)[-1].json["stopping"])

    def test_the_next_keeper_says_goodbye(self) -> None:
        worker = self.start(routes())
        worker.handler("email:send")(lambda ctx: None)
        thread = self.run_in_thread(worker.run)
        self.server.wait_for(WORKER_BEAT)
        assert worker._leases._keeper is not None
        os.kill(worker._leases._keeper.pid, signal.SIGKILL)
        worker.stop()
        self.ended(thread)
        self.assertTrue(self.server.of(WORKER_BEAT)[-1].json["stopping"])

    def test_a_signal_for_its_group_does_not_end_a_keeper_that_starts(self) -> None:
        server = Replay(routes())
        self.addCleanup(server.close)
        command = [sys.executable, "-B", "-c", STOPPED_AT_ONCE, server.url]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(end_all_of, process.pid)
        _, said = process.communicate(timeout=30)
        self.assertEqual((process.returncode, said), (0, ""))
        self.assertTrue(server.of(WORKER_BEAT)[-1].json["stopping"])

    def test_a_cancel_comes_within_five_seconds_whatever_the_lease(self) -> None:
        canceled = threading.Event()
        told: List[float] = []

        def beat(_: Request) -> Any:
            orders: Dict[str, Any] = {"drain": False}
            if canceled.is_set():
                told.append(time.monotonic())
                orders["canceled"] = [numbered(1)["task"]["task_id"]]
            return orders

        worker = self.start(routes({"tasks": [numbered(1, lease_seconds=600)]}, **{"POST " + WORKER_BEAT: beat}))
        worker.handler("email:send")(lambda ctx: ctx.wait(60))
        thread = self.run_in_thread(worker.run)
        self.server.wait_for("/internal/task-poll", 2)
        self.server.wait_for(WORKER_BEAT)
        canceled.set()
        (end,) = self.server.wait_for(DONE)
        self.assertLess(keeper.HEARTBEAT + time.monotonic() - told[0], 5)
        self.assertEqual(end.json["status"], "Canceled")
        self.assertEqual(self.server.of(BEAT), [])
        worker.stop()
        self.ended(thread)

    def test_a_task_that_runs_without_end_is_drained_by_the_workers_heartbeat(self) -> None:
        orders = {"drain": False, "drained": [numbered(1)["task"]["task_id"]]}
        worker = self.start(routes({"tasks": [numbered(1, lease_seconds=600)]}, **{"POST " + WORKER_BEAT: orders}))

        @worker.handler("email:send")
        def send(ctx: dagctl.Context) -> None:
            while not ctx.drain_requested:
                ctx.wait(0.01)

        thread = self.run_in_thread(worker.run)
        self.server.wait_for(DONE)
        worker.stop()
        self.ended(thread)


class TestRotation(Case):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = os.path.join(self.folder.name, "token")
        self.good = "first"

    def write(self, token: str) -> None:
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(token + "\n")

    def only_good(self, answer: Any) -> Any:
        def check(request: Request) -> Any:
            if request.headers["authorization"] != f"Bearer {self.good}":
                return problem(401, "the token is not valid")
            return answer(request) if callable(answer) else answer

        return check

    def worker_of(self, *polls: Any) -> dagctl.Worker:
        made = {path: self.only_good(answer) if "/internal/" in path else answer for path, answer in routes(*polls).items()}
        self.start(made)
        return dagctl.Worker(self.server.url, token_file=self.file, runtime="python")

    def test_a_worker_goes_on_with_another_token(self) -> None:
        second = threading.Event()

        def later(_: Any) -> Any:
            second.wait(20)
            return {"tasks": [numbered(2)]}

        worker = self.worker_of({"tasks": [numbered(1, lease_seconds=600)]}, later)
        canceled: List[str] = []
        self.server.routes["POST " + BEAT] = lambda _: {"cancel_requested": bool(canceled)}

        @worker.handler("email:send")
        def send(ctx: dagctl.Context) -> None:
            if ctx.task.task_id[-1] == "1":
                ctx.wait(60)

        self.write("first")
        thread = self.run_in_thread(worker.run)
        self.server.wait_for("/internal/task-poll", 2)
        self.server.wait_for(WORKER_BEAT)
        self.good = "second"  # the old one has ended, and the new one comes later
        refused = len(self.server.of(WORKER_BEAT)) + 1
        self.server.wait_for(WORKER_BEAT, refused + 1)
        self.write("second")
        second.set()
        self.server.wait_for(DONE)

        # The server knows the first task by the old token, so its cancel comes with its own heartbeats, which are soon.
        canceled.append("1")
        self.assertLess(keeper.HEAR_WITHIN, 5)
        ends = self.server.wait_for(DONE, 2)
        self.assertEqual([e.json["status"] for e in ends], ["Completed", "Canceled"])
        worker.stop()
        self.ended(thread)
        self.assertEqual(self.raised, [])
        self.assertEqual(self.server.of(WORKER_BEAT)[-1].headers["authorization"], "Bearer second")

    def test_a_token_that_was_never_valid_ends_the_worker(self) -> None:
        worker = self.worker_of()
        worker.handler("email:send")(lambda ctx: None)
        self.write("wrong")
        self.ended(self.run_in_thread(worker.run))
        self.assertIsInstance(self.raised[0], dagctl.UnauthorizedError)

    def test_a_text_wins_over_the_environment(self) -> None:
        self.write("of the file")
        with mock.patch.dict(os.environ, {"DAGCTL_TOKEN": "text", "DAGCTL_TOKEN_FILE": self.file}):
            self.assertEqual(Token().read(), "of the file")
            self.assertEqual(Token("passed").read(), "passed")
        token = Token(file=self.file)
        self.assertEqual(token.read(), "of the file")
        self.write("")
        self.assertEqual(token.read(), "of the file")
        os.remove(self.file)
        self.assertEqual(token.read(), "of the file")


def end_all_of(session: int) -> None:
    """Kill the processes of a session that are left."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        pass


def ended(case: unittest.TestCase, worker: int) -> None:
    """Wait until no keeper of a worker's process is left."""
    until = time.monotonic() + 20
    while any(f"\0{worker}\0" in command and "dagctl.keeper" in command for command in commands()):
        case.assertLess(time.monotonic(), until, "the keeper still runs")
        time.sleep(0.05)


def commands() -> List[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                found.append(file.read())
        except OSError:
            pass  # it has ended
    return found


if __name__ == "__main__":
    unittest.main()
