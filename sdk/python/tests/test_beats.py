"""Heartbeats that are gathered into one call: every lease is renewed, whatever becomes of the call."""

import threading
from typing import Any, Dict, Set

from tests import replay
from tests.replay import Reply, problem
from tests.test_worker import Case, numbered, routes

CROWD = 8
MANY, ONE = "/v1/tasks/heartbeat", "/v1/task/heartbeat"


class TestBeats(Case):
    def crowd(self, answer: Any, calls: int, path: str, *others: str) -> Set[str]:
        """Run tasks until a path had so many calls, and as many more as a busy machine needs to renew all leases.

        Returns the tasks whose leases were renewed by calls to the path, or to one of the others.
        """
        claims = [numbered(n, lease_seconds=3) for n in range(CROWD)]
        worker = self.start(routes({"tasks": claims}, **{f"POST {MANY}": answer}), pool_size=CROWD)
        gate = threading.Event()
        worker.handler("email:send")(lambda ctx: ctx.wait(60) if not gate.is_set() else None)
        thread = self.run_in_thread(worker.run)
        self.server.wait_for(path, calls)
        while len(self.renewed(path, *others)) < CROWD and calls < 100:
            calls += 1
            self.server.wait_for(path, calls)
        gate.set()
        worker._drain_seconds = 0
        worker.stop()
        self.ended(thread)
        self.assertEqual(self.raised, [])
        return self.renewed(path, *others)

    def renewed(self, *paths: str) -> Set[str]:
        bodies = [request.json for path in paths for request in self.server.of(path)]
        ones = [one for body in bodies for one in body.get("calls", [{"body": body}])]
        return {one["body"]["task_id"] for one in ones}

    def test_many_leases_are_renewed_by_one_call(self) -> None:
        def renews(request: Any) -> Dict[str, Any]:
            answer = {"lease_expires_at": "2026-01-01T00:00:30Z", "cancel_requested": False, "drain_requested": False}
            return {"answers": [{"status": 200, "answer": answer} for _ in request.json["calls"]]}

        # A heartbeat that finds no other goes by itself, and it may be that of the same task every time.
        self.assertEqual(len(self.crowd(renews, 6, MANY, ONE)), CROWD)
        many = self.server.of(MANY)[0]
        self.assertEqual(many.headers["authorization"], f"Bearer {replay.WORKER_TOKEN}")
        self.assertEqual(many.json["calls"][0]["capability_token"], replay.CAPABILITY)
        self.assertGreater(max(len(r.json["calls"]) for r in self.server.of(MANY)), 1)

    def test_a_call_that_fails_loses_no_lease(self) -> None:
        for answer in (problem(404, "there is no such route"), problem(405, "no"), Reply(503, {}), problem(401, "no token")):
            with self.subTest(str(answer)):
                self.assertEqual(len(self.crowd(answer, 3 * CROWD, ONE)), CROWD)
