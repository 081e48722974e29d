"""Completions that are gathered into one call: what becomes of each, whatever becomes of the call."""

import threading
from typing import Any, Dict, List

from tests import replay
from tests.replay import Reply, problem
from tests.test_worker import Case, numbered, routes

CROWD = 20
MANY, ONE = "/v1/tasks/complete", "/v1/task/complete"


def accepted(request: Any) -> Dict[str, Any]:
    calls = request.json["calls"]
    return {"answers": [{"status": 200, "answer": {"status": c["body"]["status"], "attempt": 1}} for c in calls]}


class TestEnds(Case):
    def crowd(self, **more: Any) -> List[Dict[str, Any]]:
        """Run tasks that end together, and return all completions that the server was sent."""
        together = threading.Barrier(CROWD, timeout=20)
        worker = self.start(routes({"tasks": [numbered(n) for n in range(CROWD)]}, **more), pool_size=CROWD)
        statuses: List[str] = []
        run_claim = worker.run_claim
        worker.run_claim = lambda claim: statuses.append(run_claim(claim)) or statuses[-1]  # type: ignore[method-assign,func-returns-value]
        worker.handler("email:send")(lambda ctx: together.wait())
        thread = self.run_in_thread(worker.run)
        self.server.wait_for(ONE if not more else MANY)
        worker.stop()
        self.ended(thread)
        self.assertEqual(self.raised, [])
        self.statuses = statuses
        return [c["body"] for r in self.server.of(MANY) for c in r.json["calls"]] + [r.json for r in self.server.of(ONE)]

    def test_tasks_that_end_together_are_ended_by_one_call(self) -> None:
        ends = self.crowd(**{f"POST {MANY}": accepted})
        self.assertEqual(len({e["task_id"] for e in ends}), len(ends), "each is told once")
        self.assertEqual(self.statuses, ["Completed"] * CROWD)
        self.assertLess(len(self.server.of(MANY)) + len(self.server.of(ONE)), CROWD)
        many = self.server.of(MANY)[0]
        self.assertEqual(many.headers["authorization"], f"Bearer {replay.WORKER_TOKEN}")
        self.assertEqual(many.json["calls"][0]["capability_token"], replay.CAPABILITY)

    def test_an_older_server_gets_each_end_by_itself(self) -> None:
        for status in (404, 405):
            with self.subTest(status):
                self.crowd(**{f"POST {MANY}": problem(status, "there is no such route")})
                self.assertEqual(self.statuses, ["Completed"] * CROWD)
                self.assertEqual(len({r.json["task_id"] for r in self.server.of(ONE)}), CROWD)

    def test_a_failing_call_loses_no_end(self) -> None:
        for answer in (Reply(503, {}), replay.BREAK, {"answers": []}, [], Reply(200, b"<html>"), problem(401, "no token")):
            with self.subTest(str(answer)):
                self.crowd(**{f"POST {MANY}": answer})
                self.assertEqual(self.statuses, ["Completed"] * CROWD)
                self.assertEqual(len({r.json["task_id"] for r in self.server.of(ONE)}), CROWD)

    def test_one_refused_end_does_not_harm_the_others(self) -> None:
        def refuses_one(request: Any) -> Dict[str, Any]:
            answers = accepted(request)["answers"]
            answers[0] = {"status": 409, "problem": {"status": 409, "detail": "attempt 2 is running"}}
            answers[-1] = {"status": 503, "problem": {"status": 503, "detail": "not now"}}
            return {"answers": answers}

        self.crowd(**{f"POST {MANY}": refuses_one})
        self.assertEqual(set(self.statuses), {"Completed", "Stale"})
        self.assertLessEqual(self.statuses.count("Stale"), len(self.server.of(MANY)))

    def test_a_lone_end_is_sent_by_itself(self) -> None:
        worker = self.start(routes({"tasks": [numbered(1)]}, **{f"POST {MANY}": accepted}))
        worker.handler("email:send")(lambda ctx: None)
        thread = self.run_in_thread(worker.run)
        self.server.wait_for(ONE)
        worker.stop()
        self.ended(thread)
        self.assertEqual(self.server.of(MANY), [])
