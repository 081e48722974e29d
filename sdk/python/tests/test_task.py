"""One claimed task, from its handler to the calls that the server receives."""

import contextlib
import csv
import decimal
import io
import json
import logging
import os
import re
import tempfile
import threading
import unittest
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List
from unittest import mock
from urllib.parse import parse_qs

import dagctl
from dagctl import rows as row_files
from dagctl import traces
from dagctl.attempt import LOST, STALE, UNREPORTED
from dagctl.protocol import Claim
from tests import replay
from tests.replay import Replay, Reply, in_turn, problem


@dataclass
class Mail:
    to: str


@dataclass
class Order:
    id: int
    amount: float


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Replay(replay.task_routes())
        self.addCleanup(self.server.close)
        self.worker = dagctl.Worker(self.server.url, replay.WORKER_TOKEN, runtime="python")
        self.addCleanup(self.worker.close)
        self.notes = io.StringIO()
        handler = logging.StreamHandler(self.notes)
        logger = logging.getLogger("dagctl")
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        self.addCleanup(logger.removeHandler, handler)
        self.addCleanup(self.no_token_was_told)

    def no_token_was_told(self) -> None:
        for token in (replay.CAPABILITY, replay.LEASE_TOKEN, replay.WORKER_TOKEN):
            self.assertNotIn(token, self.notes.getvalue())

    def run_task(self, function: Any, **task: Any) -> str:
        self.worker.handler("email:send")(function)
        return self.worker.run_claim(Claim.parse(replay.claim(self.server.url, **task)))

    def completion(self) -> Dict[str, Any]:
        """What the one completion said, beside its fence."""
        (request,) = self.server.of("/v1/task/complete")
        body = request.json
        fence = {k: body.pop(k) for k in ("task_id", "attempt", "lease_token")}
        self.assertEqual(fence, {"task_id": replay.TASK_ID, "attempt": 1, "lease_token": replay.LEASE_TOKEN})
        self.assertEqual(request.headers["x-dagctl-task-capability"], replay.CAPABILITY)
        self.assertNotIn("authorization", request.headers)  # a worker's token is not a task's
        return body

    def logged(self) -> List[str]:
        return [line["text"] for r in self.server.of("/v1/task/logs") for line in r.json["lines"]]


class TestHandlers(Case):
    def test_a_payload_of_a_type_and_a_result(self) -> None:
        def send(ctx: dagctl.Context, mail: Mail) -> Dict[str, str]:
            return {"sent": mail.to}

        self.assertEqual(self.run_task(send), "Completed")
        self.assertEqual(self.completion(), {"status": "Completed", "result": {"sent": "ada@example.com"}})

    def test_a_handler_may_do_without_a_payload_and_be_a_coroutine(self) -> None:
        async def send(ctx: dagctl.Context) -> str:
            return f"{ctx.job} {ctx.payload['to']} {ctx.attempt}"

        self.run_task(send)
        self.assertEqual(self.completion()["result"], "mail/send ada@example.com 1")

    def test_a_payload_that_does_not_fit_will_never_fit(self) -> None:
        def send(ctx: dagctl.Context, mail: Mail) -> None:
            self.fail("it ran")

        self.assertEqual(self.run_task(send, payload={"to": 5}), "Failed")
        error = {"message": "payload.to is a number, not a string", "retryable": False}
        self.assertEqual(self.completion(), {"status": "Failed", "error": error})

    def test_errors(self) -> None:
        for raised, error in [
            (ValueError("no such thing"), {"message": "ValueError: no such thing"}),
            (KeyError(), {"message": "KeyError"}),
            (dagctl.NotRetryable("bad address"), {"message": "bad address", "retryable": False}),
            (SystemExit(3), {"message": "SystemExit: 3"}),
            (ValueError("half of a pair \ud800 and \0"), {"message": "ValueError: half of a pair ? and \ufffd"}),
            (ValueError("x" * 20_000), {"message": ("ValueError: " + "x" * 20_000)[:10_000]}),
        ]:
            with self.subTest(raised=type(raised)):
                self.setUp()

                def send(ctx: dagctl.Context) -> None:
                    raise raised

                self.assertEqual(self.run_task(send), "Failed")
                told = self.completion()["error"]
                self.assertEqual("\n".join(self.logged()), told["message"], "the log has all of it")
                told["message"], head, trace = told["message"].partition("\n" + traces.HEAD)
                self.assertEqual(told, error)
                self.assertEqual(bool(head), len(error["message"]) < 10_000)
                self.assertEqual("raise raised" in trace, bool(head))

    def test_an_exception_that_has_no_text_fails_like_any_other(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        def send(ctx: dagctl.Context) -> None:
            raise Mute

        self.assertEqual(self.run_task(send), "Failed")
        message = self.completion()["error"]["message"]
        self.assertTrue(message.startswith(f"Mute: its text could not be made: RuntimeError\n{traces.HEAD}"), message)

    def test_a_run_that_cannot_be_ended_keeps_no_lease(self) -> None:
        with mock.patch("dagctl.context.Scratch.remove", side_effect=OSError("read-only")):
            with self.assertRaises(OSError):
                self.run_task(lambda ctx: None)
        self.assertEqual(self.worker._leases._attempts, {})

    def test_a_traceback_is_that_of_the_handler_alone(self) -> None:
        def parse(text: str) -> float:
            return float(text)

        def send(ctx: dagctl.Context) -> None:
            try:
                parse("many")
            except ValueError as error:
                raise RuntimeError("order 7 has no amount") from error

        self.run_task(send)
        message = self.completion()["error"]["message"]
        found = re.sub(r"line \d+", "line N", re.sub(r"(?m)^ +[~^]+\n", "", message.replace(__file__, "orders.py")))
        self.assertEqual(
            found,
            """RuntimeError: order 7 has no amount
Traceback of the handler (most recent call last):
  File "orders.py", line N, in send
    parse("many")
  File "orders.py", line N, in parse
    return float(text)
ValueError: could not convert string to float: 'many'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "orders.py", line N, in send
    raise RuntimeError("order 7 has no amount") from error""",
        )

    def test_an_error_of_this_package_has_the_frames_that_led_to_it(self) -> None:
        self.run_task(lambda ctx: ctx.output("elsewhere"))
        message = self.completion()["error"]["message"]
        self.assertIn(f"{traces.HEAD}\n  File \"{__file__}\"", message)
        self.assertNotIn(os.path.dirname(traces.__file__) + os.sep, message)

    def test_columns_of_an_output_without_rows(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            ctx.output().write([], columns="id")

        self.run_task(send, outputs=[{"index": 0, "name": "bounced"}])
        self.assertIn("TypeError: columns is a list of names", self.completion()["error"]["message"])

    def test_a_long_traceback_keeps_its_last_lines(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            one, two = (lambda n: two(n - 1) if n else {}["x"]), (lambda n: one(n))
            one(400)

        self.run_task(send)
        lines = self.completion()["error"]["message"].splitlines()
        self.assertEqual(lines[:2], ["KeyError: 'x'", traces.HEAD])
        self.assertLess(len(lines), 70)
        self.assertRegex(lines[-1], r"\[Previous line repeated 17 more times\]|\^")

        error = ValueError("a\n" * 3000 + "b" * 2000 + "\nthe last line")
        error.__cause__ = None
        try:
            try:
                raise error
            except ValueError as cause:
                raise RuntimeError("no") from cause
        except RuntimeError as raised:
            message = traces.traced("RuntimeError: no", raised, 10_000)
        self.assertLessEqual(len(message), 10_000)
        self.assertRegex(message, r"(?s)^RuntimeError: no\n[^\n]+\n  \(\d+ lines are left out\)\na\na\n.*"
                                  r"\n    \(a line of 2000 characters\)\nthe last line\n.*raise RuntimeError")

    def test_a_job_whose_handler_is_elsewhere(self) -> None:
        self.run_task(lambda ctx: None, config={"handler": "sms:send"})
        self.assertIn("no handler 'sms:send'; it has: email:send", self.completion()["error"]["message"])

    def test_what_is_no_handler(self) -> None:
        with self.assertRaisesRegex(TypeError, "a handler takes"):
            self.worker.handler("a")(lambda: None)
        with self.assertRaisesRegex(TypeError, "a handler takes"):
            self.worker.handler("a")(lambda a, b, c: None)
        self.worker.handler("a")(lambda ctx: None)
        with self.assertRaisesRegex(ValueError, "already a handler"):
            self.worker.handler("a")(lambda ctx: None)

    def test_an_end_that_the_server_refuses_is_a_failure_with_its_reasons(self) -> None:
        ok = self.server.routes["POST /v1/task/complete"]
        self.server.routes["POST /v1/task/complete"] = in_turn(problem(422, "the result is larger than 64 KiB"), ok)
        self.assertEqual(self.run_task(lambda ctx: "x" * 100), "Failed")
        last = self.server.of("/v1/task/complete")[-1].json
        self.assertIn("the result is larger than 64 KiB", last["error"]["message"])

    def test_what_is_not_json_fails_the_attempt_at_once(self) -> None:
        circle: List[Any] = []
        circle.append(circle)
        result, nan = 'the result of handler "email:send"', float("nan")
        for value, fault in [
            ({"a": nan}, "NaN at a"),
            ({"a": [1, {"b": float("-inf")}]}, "-Infinity at a[1].b"),
            (float("inf"), "Infinity"),
            (Order(1, nan), "NaN at amount"),
            ({"f": open}, "a builtin_function_or_method at f"),
            (["x", "half of a pair \ud800"], "half of a surrogate pair at [1]"),
            ({"a": {"\ud800": 1}}, "half of a surrogate pair at a"),
            (circle, "it is nested too deeply, or holds itself"),
        ]:
            with self.subTest(fault):
                self.setUp()
                self.assertEqual(self.run_task(lambda ctx: value), "Failed")
                error = {"message": f"{result} is not JSON: {fault}", "retryable": False}
                self.assertEqual(self.completion(), {"status": "Failed", "error": error})

        def state(ctx: dagctl.Context) -> None:
            ctx.state = {"seen": [nan]}

        outputs = [{"index": 0, "name": "bounced"}]
        for function, fault in [
            (state, "the state is not JSON: NaN at seen[0]"),
            (lambda ctx: ctx.enqueue("b", {"x": nan}), 'the payload of a task of "b" is not JSON: NaN at x'),
            (lambda ctx: ctx.enqueue("b", metadata={"x": b""}), 'the metadata of a task of "b" is not JSON: a bytes at x'),
            (lambda ctx: ctx.emit(partition_key="\udfff"), "the partition_key of an event is not JSON: half of a surrogate pair"),
            (lambda ctx: setattr(ctx, "source_version", nan), "the source_version is not JSON: NaN"),
        ]:
            with self.subTest(fault):
                self.setUp()
                self.assertEqual(self.run_task(function, outputs=outputs), "Failed")
                error = self.completion()["error"]
                self.assertEqual((error["message"].partition("\n")[0], error["retryable"]), (fault, False))

    def test_a_state_that_is_not_json_leaves_what_waits_for_the_commit(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            ctx.enqueue("b")
            ctx.state = {"at": float("nan")}
            with self.assertRaises(dagctl.NotRetryable):
                ctx.commit()
            ctx.state = None

        self.assertEqual(self.run_task(send), "Completed")
        self.assertEqual([t["job"] for t in self.completion()["tasks"]], ["b"])

    def test_the_end_is_reported_until_it_is_answered(self) -> None:
        ok = self.server.routes["POST /v1/task/complete"]
        self.server.routes["POST /v1/task/complete"] = in_turn(replay.BREAK, Reply(503, {}), ok)
        self.assertEqual(self.run_task(lambda ctx: None), "Completed")
        self.assertEqual(len({r.body for r in self.server.of("/v1/task/complete")}), 1)

    def test_a_stale_end(self) -> None:
        self.server.routes["POST /v1/task/complete"] = problem(409, "attempt 2 is running")
        self.assertEqual(self.run_task(lambda ctx: None), STALE)
        self.assertIn("attempt 2 is running", self.notes.getvalue())

    def test_an_end_that_nobody_may_report(self) -> None:
        self.server.routes["POST /v1/task/complete"] = problem(401, "expired")
        self.assertEqual(self.run_task(lambda ctx: None), UNREPORTED)


class TestLease(Case):
    def test_heartbeats_tell_progress_and_renew_the_capability(self) -> None:
        beat = {"lease_expires_at": "2026-01-01T00:01:00Z", "cancel_requested": False, "drain_requested": True, "capability_token": "renewed"}
        self.server.routes["POST /v1/task/heartbeat"] = beat

        def send(ctx: dagctl.Context) -> bool:
            ctx.progress(40, "forty")
            ctx.progress(41)
            self.server.wait_for("/v1/task/heartbeat", 2)
            return ctx.drain_requested

        self.run_task(send, lease_seconds=1)
        request = self.server.of("/v1/task/heartbeat")[0]
        want = {"task_id": replay.TASK_ID, "attempt": 1, "lease_token": replay.LEASE_TOKEN, "progress": 41, "state": "forty"}
        self.assertEqual(request.json, want)
        (end,) = self.server.of("/v1/task/complete")
        self.assertEqual((end.headers["x-dagctl-task-capability"], end.json["result"]), ("renewed", True))

    def test_progress_is_made_such_that_heartbeats_are_accepted(self) -> None:
        for percent, text, told in [
            (10, "bad\x00text", (10, "bad text")),
            (-3, "half \ud800 of a pair", (0, "half ? of a pair")),
            (250, "one\nline\x1b[0m\x9f", (100, "one line [0m ")),
            (float("inf"), "é" * 2000, (100, "é" * 1000)),
            (99.9, "", (99, "")),
        ]:
            with self.subTest(text):
                self.setUp()

                def send(ctx: dagctl.Context) -> None:
                    ctx.progress(percent, text)
                    self.server.wait_for("/v1/task/heartbeat")

                self.assertEqual(self.run_task(send, lease_seconds=1), "Completed")
                beat = self.server.of("/v1/task/heartbeat")[0].json
                self.assertEqual((beat["progress"], beat["state"]), told)

    def test_progress_that_is_no_number(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            with self.assertRaisesRegex(ValueError, "percent is NaN, not a number from 0 to 100"):
                ctx.progress(float("nan"))  # type: ignore[arg-type]

        self.assertEqual(self.run_task(send), "Completed")

    def test_cancellation(self) -> None:
        beat = {"lease_expires_at": "2026-01-01T00:01:00Z", "cancel_requested": True, "drain_requested": False}
        self.server.routes["POST /v1/task/heartbeat"] = beat
        seen = []

        def send(ctx: dagctl.Context) -> None:
            try:
                ctx.wait(60)
            except dagctl.CanceledError:
                seen.append(ctx.canceled)
                ctx.log.info("last words")
            with self.assertRaises(dagctl.CanceledError):
                ctx.commit()
            ctx.check()

        self.assertEqual(self.run_task(send, lease_seconds=1), "Canceled")
        self.assertEqual((seen, self.completion()), ([True], {"status": "Canceled"}))
        self.assertEqual(self.logged(), ["last words"])

    def test_a_handler_that_went_on_to_its_end_has_done_its_work(self) -> None:
        beat = {"lease_expires_at": "2026-01-01T00:01:00Z", "cancel_requested": True, "drain_requested": False}
        self.server.routes["POST /v1/task/heartbeat"] = beat

        def send(ctx: dagctl.Context) -> str:
            with contextlib.suppress(dagctl.CanceledError):
                ctx.wait(60)
            return "done"

        self.assertEqual(self.run_task(send, lease_seconds=1), "Completed")

    def test_a_lost_lease(self) -> None:
        self.server.routes["POST /v1/task/heartbeat"] = problem(409, "attempt 2 holds it")

        def send(ctx: dagctl.Context) -> None:
            ctx.wait(60)

        self.assertEqual(self.run_task(send, lease_seconds=1), LOST)
        self.assertEqual(self.server.of("/v1/task/complete"), [])

    def test_what_was_worked_out_is_offered_even_without_a_lease(self) -> None:
        self.server.routes["POST /v1/task/heartbeat"] = problem(409, "the lease has run out")

        def send(ctx: dagctl.Context) -> str:
            with contextlib.suppress(dagctl.LeaseLostError):
                ctx.wait(60)
            return "done"

        self.assertEqual(self.run_task(send, lease_seconds=1), "Completed")

    def test_heartbeats_that_fail_are_sent_again_soon(self) -> None:
        ok = self.server.routes["POST /v1/task/heartbeat"]
        self.server.routes["POST /v1/task/heartbeat"] = in_turn(replay.BREAK, Reply(503, {}), ok)
        self.assertEqual(self.run_task(lambda ctx: str(len(self.server.wait_for("/v1/task/heartbeat", 3))), lease_seconds=1), "Completed")


class TestData(Case):
    def test_rows_in(self) -> None:
        self.server.routes["GET /v1/task/inputs/0"] = lambda r: Reply(
            body=b'{"id":1,"amount":2.5}\n{"id":2,"amount":3}\n' if r.path.endswith("ndjson") else b"id,amount\n1,2.5\n2,3\n"
        )

        def send(ctx: dagctl.Context) -> Any:
            orders = ctx.input("orders")
            self.assertEqual((orders.columns[1].type, orders.partitions[0].revision), ("DOUBLE", 3))
            self.assertEqual(list(orders.rows()), [{"id": 1, "amount": 2.5}, {"id": 2, "amount": 3}])
            self.assertEqual(list(orders.rows(Order)), [Order(1, 2.5), Order(2, 3.0)])
            self.assertEqual(list(orders.csv()), [{"id": "1", "amount": "2.5"}, {"id": "2", "amount": "3"}])
            with tempfile.TemporaryDirectory() as dir:
                path = orders.download(os.path.join(dir, "orders.csv"))
                with open(path, newline="") as file:
                    self.assertEqual(len(list(csv.reader(file))), 3)
                self.assertEqual(os.listdir(dir), ["orders.csv"])
            with self.assertRaisesRegex(ValueError, "names its format"):
                orders.download("orders")

        self.run_task(send, inputs=[replay.source()])
        self.assertEqual(self.completion(), {"status": "Completed"})
        request = self.server.of("/v1/task/inputs/0")[0]
        fence = [request.headers[h] for h in ("x-dagctl-task", "x-dagctl-attempt", "x-dagctl-lease-token")]
        self.assertEqual(fence, [replay.TASK_ID, "1", replay.LEASE_TOKEN])

    def test_arrow(self) -> None:
        self.server.routes["GET /v1/task/inputs/0"] = Reply(body=b"a stream of Arrow")

        def send(ctx: dagctl.Context) -> Any:
            orders = ctx.input("orders")
            with tempfile.TemporaryDirectory() as dir:
                with open(orders.download(os.path.join(dir, "orders.arrows")), "rb") as file:
                    self.assertEqual(file.read(), b"a stream of Arrow")
            with mock.patch.dict("sys.modules", {"pyarrow": None}):
                with self.assertRaisesRegex(dagctl.Error, "input orders as Arrow needs the package pyarrow: pip install"):
                    orders.arrow()

        self.run_task(send, inputs=[replay.source()])
        self.assertEqual(self.completion(), {"status": "Completed"})
        self.assertEqual([r.path.partition("?")[2] for r in self.server.of("/v1/task/inputs/0")], ["format=arrow"])

    def test_rows_keep_the_digits_of_decimals(self) -> None:
        line = b'{"id":18446744073709551616,"amount":12345678901234567890.10}\n{"id":1,"amount":0.10}\n'
        self.server.routes["GET /v1/task/inputs/0"] = Reply(body=line)
        exact = decimal.Decimal("12345678901234567890.10")

        def send(ctx: dagctl.Context) -> Any:
            rows = list(ctx.input("orders").rows())
            self.assertEqual(rows, [{"id": 18446744073709551616, "amount": exact}, {"id": 1, "amount": 0.1}])
            self.assertEqual([type(r["amount"]) for r in rows], [decimal.Decimal, float])

        source = replay.source()
        source["schema"][1]["type"] = "DECIMAL(38,2)"
        self.run_task(send, inputs=[source])
        self.assertEqual(self.completion(), {"status": "Completed"})

    def test_a_row_of_another_type(self) -> None:
        self.server.routes["GET /v1/task/inputs/0"] = Reply(body=b'{"id":1,"amount":1}\n{"id":"x","amount":2}\n')
        self.run_task(lambda ctx: list(ctx.input().rows(Order)) and None, inputs=[replay.source()])
        self.assertIn("input orders, row 2: row.id is a string, not an integer", self.completion()["error"]["message"])

    def test_rows_out(self) -> None:
        self.server.routes["PUT /v1/task/outputs/0/00001.ndjson"] = lambda r: {"name": "00001.ndjson.parquet", "bytes": 9, "etag": "e1"}
        self.server.routes["PUT /v1/task/outputs/1/mine.csv"] = Reply(body={}, headers={"ETag": "e2"})

        def send(ctx: dagctl.Context) -> int:
            with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
                file.write("a\n1\n")
                file.flush()
                ctx.output("files").upload(file.name, name="mine.csv", partition_key="k")
            ctx.output("rows").derives("amount", input=0, input_column="amount", transform="identity")
            return ctx.output("rows").write(Order(n, n / 2) for n in range(3))

        self.assertEqual(self.run_task(send, outputs=[replay.output(), replay.output(1, "files")]), "Completed")
        rows, = self.server.of("/v1/task/outputs/0/00001.ndjson")
        self.assertEqual([json.loads(l) for l in rows.body.splitlines()][2], {"id": 2, "amount": 1.0})
        self.assertEqual(rows.path.partition("?")[2], "format=ndjson")
        self.assertEqual(
            self.completion(),
            {
                "status": "Completed",
                "result": 3,
                "outputs": [
                    {"index": 1, "partition_key": "k", "files": [{"name": "mine.csv", "etag": "e2"}]},
                    {"index": 0, "files": [{"name": "00001.ndjson.parquet", "etag": "e1"}]},
                ],
                "column_lineage": [
                    {"output": 0, "output_column": "amount", "input": 0, "input_column": "amount", "transform": "identity"}
                ],
            },
        )

    def test_many_rows_go_up_in_parts_while_they_are_made(self) -> None:
        for n in (1, 2, 3):
            self.server.routes[f"PUT /v1/task/outputs/0/{n:05d}.ndjson"] = {}
        with mock.patch.object(row_files, "PART_BYTES", 20):

            def rows() -> Iterator[Dict[str, int]]:
                yield from ({"n": n} for n in range(3))
                self.assertEqual(len(self.server.of("/v1/task/outputs/0/00001.ndjson")), 1)
                yield from ({"n": n} for n in range(3, 8))

            self.run_task(lambda ctx: ctx.output().write(rows()), outputs=[replay.output()])
        files = self.completion()["outputs"][0]["files"]
        self.assertEqual([f["name"] for f in files], ["00001.ndjson", "00002.ndjson", "00003.ndjson"])

    def test_numbers_of_rows(self) -> None:
        self.put()
        exact, nan = decimal.Decimal("1.10"), float("nan")
        self.run_task(
            lambda ctx: ctx.output().write([{"d": exact, "e": [exact], "f": nan}, {"d": 2, "f": float("-inf")}, {"d": 2.5}]),
            outputs=[replay.output()],
        )
        (rows,) = self.server.of("/v1/task/outputs/0/00001.ndjson")
        self.assertEqual(
            rows.body.decode(), '{"d":1.10,"e":["1.10"],"f":NaN}\n{"d":2,"f":-Infinity}\n{"d":2.5}\n', "exactly as they are"
        )
        self.assertEqual(self.declared(rows), [{"name": "d", "type": "DECIMAL(18,2)"}])

    def test_a_column_that_is_not_of_decimals_alone(self) -> None:
        self.put()
        rows, declared = [{"d": decimal.Decimal(1)}, {"d": "x"}], [{"name": "d", "type": "VARCHAR"}]
        self.run_task(lambda ctx: ctx.output().write(rows, columns={"d": "VARCHAR"}), outputs=[replay.output()])
        (sent,) = self.server.of("/v1/task/outputs/0/00001.ndjson")
        self.assertEqual(self.declared(sent), declared)

    def test_columns_are_those_to_write_in_this_order(self) -> None:
        self.put()
        for columns, line in [(["b", "a"], '{"b":2,"a":1}'), ({"a": "BIGINT"}, '{"a":1}'), (["z"], '{"z":null}')]:
            self.setUp()
            self.put()
            self.run_task(
                lambda ctx: ctx.output().write([{"a": 1, "b": 2, "c": 3}], columns=columns), outputs=[replay.output()]
            )
            (rows,) = self.server.of("/v1/task/outputs/0/00001.ndjson")
            self.assertEqual(rows.body.decode(), line + "\n")

    def put(self) -> None:
        """Take uploads, and tell the types of integers, floats and texts in them."""

        def take(request: Any) -> Dict[str, Any]:
            types: Dict[str, str] = {}
            for line in request.body.splitlines():
                for name, value in json.loads(line).items():
                    kind = {int: "BIGINT", float: "DOUBLE"}.get(type(value), "VARCHAR")
                    types[name] = kind if types.get(name, kind) == kind else "DOUBLE"
            return {"name": request.path.partition("?")[0].rpartition("/")[2], "columns": list(types.items())}

        for n in range(1, 6):
            self.server.routes[f"PUT /v1/task/outputs/0/{n:05d}.ndjson"] = take

    def declared(self, request: Any) -> Any:
        found = parse_qs(request.path.partition("?")[2]).get("columns")
        return found and json.loads(found[0])

    def names(self) -> List[str]:
        return [f["name"] for f in self.completion()["outputs"][0]["files"]]

    def test_rows_of_other_types_go_up_once_more(self) -> None:
        self.put()
        with mock.patch.object(row_files, "PART_BYTES", 10):
            self.run_task(lambda ctx: ctx.output().write([{"n": 1}, {"n": 22}, {"n": 2.5}]), outputs=[replay.output()])
        self.assertEqual(self.names(), ["00003.ndjson"])
        (rows,) = self.server.of("/v1/task/outputs/0/00003.ndjson")
        self.assertEqual(rows.body, b'{"n":1}\n{"n":22}\n{"n":2.5}\n')

    def test_rows_of_several_writes_go_up_once_more(self) -> None:
        self.put()

        def send(ctx: dagctl.Context) -> None:
            ctx.output().write([{"n": decimal.Decimal("1.5")}])
            ctx.output().write([{"n": decimal.Decimal("1.25"), "more": "x"}])

        self.run_task(send, outputs=[replay.output()])
        self.assertEqual(self.names(), ["00003.ndjson"])
        (rows,) = self.server.of("/v1/task/outputs/0/00003.ndjson")
        self.assertEqual(self.declared(rows), [{"name": "n", "type": "DECIMAL(18,2)"}])

    def test_rows_that_there_is_no_room_for_go_up_once(self) -> None:
        self.put()
        with mock.patch.object(row_files, "PART_BYTES", 10), mock.patch.object(row_files, "ROOM", 1 << 62):
            self.run_task(lambda ctx: ctx.output().write([{"n": 1}, {"n": 22}, {"n": 2.5}]), outputs=[replay.output()])
        self.assertEqual(self.names(), ["00001.ndjson", "00002.ndjson"])

    def test_a_list_of_rows(self) -> None:
        self.put()
        self.run_task(lambda ctx: [{"n": 1}], outputs=[replay.output()])
        done = self.completion()
        self.assertEqual((done["result"], [f["name"] for f in done["outputs"][0]["files"]]), ({"rows": 1}, ["00001.ndjson"]))

        self.setUp()
        self.put()
        self.run_task(lambda ctx: {"rows": [{"n": 1}]}, outputs=[replay.output(), replay.output(1, "files")])
        self.assertEqual(self.completion()["result"], {"rows": {"rows": 1}})

    def test_a_list_that_is_a_result(self) -> None:
        def wrote(ctx: dagctl.Context) -> Any:
            ctx.output().write([])
            return [{"n": 1}]

        def unchanged(ctx: dagctl.Context) -> Any:
            ctx.unchanged()
            return [{"n": 1}]

        for handler, outputs in [(lambda ctx: [{"n": 1}], []), (wrote, [replay.output()]), (unchanged, [replay.output()])]:
            self.setUp()
            self.put()
            self.run_task(handler, outputs=outputs)
            self.assertEqual(self.completion()["result"], [{"n": 1}])

    def test_arrow_needs_its_library(self) -> None:
        with mock.patch.dict("sys.modules", {"pyarrow": None}):
            self.run_task(lambda ctx: ctx.output().upload("x.arrows"), outputs=[replay.output()])
        self.assertIn("output rows from Arrow needs the package pyarrow", self.completion()["error"]["message"])

    def test_no_rows_are_an_answer_too(self) -> None:
        self.run_task(lambda ctx: ctx.output().write([]), outputs=[replay.output()])
        self.assertEqual(self.completion()["outputs"], [{"index": 0}])

    def test_rows_that_fail_halfway_are_not_sent(self) -> None:
        def rows() -> Iterator[Dict[str, int]]:
            yield {"n": 1}
            raise RuntimeError("broken")

        self.run_task(lambda ctx: ctx.output().write(rows()), outputs=[replay.output()])
        failed = self.completion()
        self.assertEqual((failed["status"], failed["error"]["message"].splitlines()[0]), ("Failed", "RuntimeError: broken"))
        self.assertFalse([r for r in self.server.requests if r.method == "PUT"])

    def test_what_is_no_row(self) -> None:
        for row, message in [
            ([1], "a row is a dict"),
            ({}, "output rows: no row has a field, so there is no column that they could be stored by"),
            ({"n": decimal.Decimal("NaN")}, "output rows: column 'n', row 1: NaN is no number that a DECIMAL has; use None"),
            ({"n": decimal.Decimal("1e-9"), "m": decimal.Decimal(10) ** 38}, "'m' needs 39 digits, and a DECIMAL has 38"),
        ]:
            with self.subTest(row=row):
                self.setUp()
                self.run_task(lambda ctx: ctx.output().write([row]), outputs=[replay.output()])
                self.assertIn(message, self.completion()["error"]["message"])

    def test_names(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            for find, message in [
                (lambda: ctx.input("x"), "mail/send has no input 'x'; it has: orders"),
                (lambda: ctx.output(), "mail/send has 2 outputs, so say which one: rows, files"),
                (lambda: ctx.output("rows").upload(__file__, format="py"), "is not one of"),
                (lambda: ctx.output("rows").upload(__file__, format="csv", name="../x"), "cannot name"),
            ]:
                with self.assertRaisesRegex((dagctl.Error, ValueError), message):
                    find()

        self.assertEqual(self.run_task(send, inputs=[replay.source()], outputs=[replay.output(), replay.output(1, "files")]), "Completed")

    def test_nothing_of_a_task_is_left_on_disk(self) -> None:
        self.server.routes["PUT /v1/task/outputs/0/00001.ndjson"] = {}
        with tempfile.TemporaryDirectory() as dir, mock.patch.object(tempfile, "tempdir", dir):
            self.run_task(lambda ctx: ctx.output().write([{"n": 1}]), outputs=[replay.output()])
            self.assertEqual(os.listdir(dir), [])


class TestCommit(Case):
    def test_all_at_once_while_the_task_goes_on(self) -> None:
        event_id = "0190c0de-0000-7000-8000-0000000000ee"
        self.server.routes["PUT /v1/task/outputs/0/00001.ndjson"] = {}
        self.server.routes["POST /v1/task/events"] = {
            "accepted": True, "events": [{"outcome": "accepted", "event_id": event_id}], "tasks": ["t1", "t2"],
        }

        def send(ctx: dagctl.Context) -> None:
            ctx.output().write([{"n": 1}])
            ctx.emit(cursor=17)
            ctx.enqueue("other", {"n": 1}, idempotency_key="one", priority=0)
            ctx.enqueue("else/where")
            ctx.enqueue("greet", {"n": 2}, timer=dagctl.Timer("Europe/Berlin", "2027-03-14T09:00", repeat="yearly"))
            ctx.state["seen"] = 17
            done = ctx.commit()
            self.assertEqual((list(done.events), list(done.tasks)), ([dagctl.EventOutcome("accepted", event_id)], ["t1", "t2"]))
            self.assertEqual(ctx.commit(), dagctl.Committed())  # nothing is new, so nobody is asked

        self.run_task(send, outputs=[replay.output()], operator_state={"seen": 3})
        (request,) = self.server.of("/v1/task/events")
        body = {k: v for k, v in request.json.items() if k not in ("task_id", "attempt", "lease_token")}
        self.assertEqual(
            body,
            {
                "outputs": [{"index": 0, "files": [{"name": "00001.ndjson"}]}],
                "events": [{"output": 0, "cursor": 17}],
                "tasks": [
                    {"job": "other", "idempotency_key": "one", "payload": {"n": 1}, "priority": 0},
                    {"job": "else/where", "idempotency_key": f"{replay.TASK_ID}/1/2"},
                    {
                        "job": "greet",
                        "idempotency_key": f"{replay.TASK_ID}/1/3",
                        "payload": {"n": 2},
                        "timer": {
                            "target_timezone": "Europe/Berlin",
                            "target_timestamp_local": "2027-03-14T09:00",
                            "repeat": "yearly",
                        },
                    },
                ],
                "operator_state": {"seen": 17},
            },
        )
        self.assertEqual(self.completion(), {"status": "Completed"})

    def test_or_with_the_end(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            ctx.emit("rows", partition_key="2026-01-01")
            ctx.invalidate("rows", from_=3, to=9, reason="reorg")
            ctx.invalidate("rows", partition_key="2026-01-02")
            ctx.enqueue("other")
            ctx.state = {"seen": 1}
            ctx.source_version = "etag"
            ctx.reached(9)

        self.run_task(send, outputs=[replay.output()])
        self.assertEqual(
            self.completion(),
            {
                "status": "Completed",
                "events": [
                    {"output": 0, "partition_key": "2026-01-01"},
                    {"output": 0, "scope": "range", "from": 3, "to": 9, "reason": "reorg"},
                    {"output": 0, "partition_key": "2026-01-02", "scope": "partition", "reason": "correction"},
                ],
                "tasks": [{"job": "other", "idempotency_key": f"{replay.TASK_ID}/1/1"}],
                "operator_state": {"seen": 1},
                "source_version": "etag",
                "cursor": 9,
            },
        )

    def test_nothing_new(self) -> None:
        self.run_task(lambda ctx: ctx.unchanged(), outputs=[replay.output()])
        self.assertEqual(self.completion(), {"status": "Completed", "unchanged": True})

    def test_a_failure_commits_nothing(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            ctx.enqueue("other")
            raise RuntimeError("broken")

        self.run_task(send)
        self.assertEqual(set(self.completion()), {"status", "error"})

    def test_a_commit_without_an_answer_is_said_again(self) -> None:
        self.server.routes["POST /v1/task/events"] = Reply(503, {})

        def send(ctx: dagctl.Context) -> None:
            ctx.enqueue("other")
            with mock.patch("dagctl.attempt.CALL_PATIENCE", 0), self.assertRaises(dagctl.UnavailableError):
                ctx.commit()

        self.run_task(send)
        self.assertEqual([t["job"] for t in self.completion()["tasks"]], ["other"])

    def test_a_commit_that_is_refused_is_not(self) -> None:
        self.server.routes["POST /v1/task/events"] = problem(422, "no such job")

        def send(ctx: dagctl.Context) -> None:
            ctx.enqueue("nothing")
            with self.assertRaises(dagctl.InvalidError):
                ctx.commit()

        self.run_task(send)
        self.assertEqual(self.completion(), {"status": "Completed"})

    def test_there_is_a_limit_to_what_waits(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            for _ in range(1001):
                ctx.enqueue("other")

        self.run_task(send)
        self.assertIn("call ctx.commit() in between", self.completion()["error"]["message"])


class TestCalls(Case):
    def test_secrets_are_fetched_once_and_never_shown(self) -> None:
        self.server.routes["POST /v1/task/secrets"] = {"secrets": {"SMTP": "hunter2"}}

        def send(ctx: dagctl.Context) -> None:
            self.assertEqual((ctx.secrets["SMTP"], ctx.secrets["SMTP"], list(ctx.secrets)), ("hunter2", "hunter2", ["SMTP"]))
            self.assertEqual(repr(ctx.secrets), "Secrets(SMTP)")
            with self.assertRaisesRegex(KeyError, "names no secret OTHER"):
                ctx.secrets["OTHER"]

        self.assertEqual(self.run_task(send, secrets=["SMTP"]), "Completed")
        self.assertEqual(len(self.server.of("/v1/task/secrets")), 1)

    def test_a_query(self) -> None:
        self.server.routes["POST /v1/task/query"] = {
            "columns": [{"name": "id", "type": "BIGINT"}, {"name": "n", "type": "BIGINT"}], "rows": [[1, 2], [3, None]], "truncated": True,
        }

        def send(ctx: dagctl.Context) -> None:
            found = ctx.query("SELECT id, n FROM orders", max_rows=2)
            self.assertEqual((len(found), found.rows[0], found.truncated), (2, (1, 2), True))
            self.assertEqual(list(found)[1], {"id": 3, "n": None})

        self.assertEqual(self.run_task(send), "Completed")
        body = self.server.of("/v1/task/query")[0].json
        self.assertEqual((body["sql"], body["max_rows"]), ("SELECT id, n FROM orders", 2))

    def test_logs_before_the_end(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            ctx.log.debug("not by default")
            ctx.log.info("hello %s", "ada")
            thread = threading.Thread(target=ctx.log.warning, args=("from a thread",))
            thread.start()
            thread.join()

        self.run_task(send)
        self.assertEqual(self.logged(), ["hello ada", "from a thread"])
        order = [r.path for r in self.server.requests if r.path != "/v1/task/heartbeat"]
        self.assertEqual(order[-1], "/v1/task/complete")
        self.assertIn("hello ada", self.notes.getvalue())  # and where the process itself logs

    def test_nothing_shows_a_token(self) -> None:
        def send(ctx: dagctl.Context) -> None:
            shown = [repr(x) for x in (ctx, ctx.task, ctx._attempt, ctx._attempt._transport, self.worker, ctx.secrets)]
            self.no = [s for s in shown for t in (replay.CAPABILITY, replay.WORKER_TOKEN, replay.LEASE_TOKEN) if t in s]
            self.assertNotIn("ada@", repr(ctx.task))  # nor a payload

        self.assertEqual(self.run_task(send), "Completed")
        self.assertEqual(self.no, [])
        for token in (replay.CAPABILITY, replay.LEASE_TOKEN):
            self.assertNotIn(token, repr(Claim.parse(replay.claim())))


if __name__ == "__main__":
    unittest.main()
