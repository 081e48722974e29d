import io
import threading
import time
import unittest

from dagctl import errors
from dagctl.transport import LONGEST_PAUSE, Transport, pause
from tests.replay import BREAK, Replay, Reply, Request, in_turn, problem


class TestTransport(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Replay()
        self.addCleanup(self.server.close)
        self.transport = Transport(self.server.url + "/")
        self.addCleanup(self.transport.close)

    def call(self, **options):
        return self.transport.call("POST", "/x", headers={"Authorization": "Bearer t"}, json_body={"a": 1}, **options)

    def test_a_call_names_the_version_and_is_json(self) -> None:
        self.server.routes["POST /x"] = {"ok": True}
        self.assertEqual(self.call().json(), {"ok": True})
        request = self.server.requests[0]
        self.assertEqual(request.headers["x-dagctl-protocol"], "1")
        self.assertEqual(request.headers["content-type"], "application/json")
        self.assertEqual(request.json, {"a": 1})

    def test_the_same_body_again_until_it_is_answered(self) -> None:
        self.server.routes["POST /x"] = in_turn(BREAK, Reply(503, {}), Reply(429, {}), Reply(500, {}), {"ok": True})
        self.assertEqual(self.call().json(), {"ok": True})
        self.assertEqual([r.body for r in self.server.requests], [b'{"a":1}'] * 5)

    def test_a_server_may_ask_for_patience(self) -> None:
        self.server.routes["POST /x"] = in_turn(Reply(503, {}, {"Retry-After": "7"}), {"ok": True})
        waits = []
        self.call(between=waits.append)
        self.assertEqual(waits, [7.0])

    def test_patience_ends(self) -> None:
        self.server.routes["POST /x"] = Reply(503, {})
        with self.assertRaisesRegex(errors.UnavailableError, r"POST /x: the server answered 503 .*tried 1 times"):
            self.call(patience=0)

    def test_nobody_listens(self) -> None:
        self.server.close()
        with self.assertRaises(errors.UnavailableError) as raised:
            self.call(patience=0)
        self.assertNotIn("Bearer", str(raised.exception))

    def test_a_kept_connection_that_the_server_has_closed_costs_no_try(self) -> None:
        self.server.routes["POST /x"] = in_turn({"n": 1}, BREAK, {"n": 2})
        self.assertEqual(self.call(patience=0).json(), {"n": 1})
        self.assertEqual(self.call(patience=0).json(), {"n": 2})

    def test_refusals_have_types(self) -> None:
        for status, kind in [
            (400, errors.InvalidError),
            (401, errors.UnauthorizedError),
            (403, errors.ForbiddenError),
            (404, errors.NotFoundError),
            (409, errors.ConflictError),
            (413, errors.TooLargeError),
            (422, errors.InvalidError),
            (418, errors.ApiError),
            (302, errors.ApiError),
        ]:
            self.server.routes["POST /x"] = problem(
                status, "no", hint="do else", errors=[{"location": "body.a", "message": "is 1", "suggestion": "2"}], request_id="r1"
            )
            with self.subTest(status=status), self.assertRaises(kind) as raised:
                self.call()
            error = raised.exception
            self.assertEqual((error.status, error.detail, error.request_id), (status, "no", "r1"))
            self.assertEqual(str(error), "POST /x: no: body.a: is 1 (2) (do else)")

    def test_a_refusal_that_is_no_problem_document(self) -> None:
        self.server.routes["POST /x"] = Reply(403, b"<html>", {"Content-Type": "text/html"})
        with self.assertRaisesRegex(errors.ForbiddenError, "the server answered 403"):
            self.call()

    def test_a_download_that_breaks_off_begins_again(self) -> None:
        text = b"0123456789" * 100_000
        self.server.routes["GET /d"] = in_turn(Reply(body=text, cut=5), Reply(503, {}), Reply(body=text))
        into = io.BytesIO(b"head")
        into.seek(4)
        self.transport.call("GET", "/d", headers={}, into=into)
        self.assertEqual(into.getvalue(), b"head" + text)

    def test_an_answer_that_breaks_off_is_none(self) -> None:
        self.server.routes["POST /x"] = in_turn(Reply(body=b'{"n": 12345}', cut=4), {"n": 2})
        self.assertEqual(self.call().json(), {"n": 2})

    def test_a_file_goes_up_again_from_its_start(self) -> None:
        self.server.routes["PUT /u"] = in_turn(Reply(503, {}), {})
        self.transport.call("PUT", "/u", headers={}, body=__file__)
        with open(__file__, "rb") as file:
            text = file.read()
        self.assertEqual([r.body for r in self.server.requests], [text, text])

    def test_a_file_that_is_not_there(self) -> None:
        with self.assertRaisesRegex(errors.Error, "cannot upload /nowhere"):
            self.transport.call("PUT", "/u", headers={}, body="/nowhere")

    def test_closing_breaks_a_call_off(self) -> None:
        hold = threading.Event()
        self.addCleanup(hold.set)
        self.server.routes["POST /x"] = lambda r: hold.wait(30) and {}
        failed = []

        def ask() -> None:
            try:
                self.call()
            except errors.UnavailableError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        self.server.wait_for("/x")
        began = time.monotonic()
        self.transport.close()
        thread.join(10)
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual(len(failed), 1)

    def test_redirects_are_not_followed(self) -> None:
        self.server.routes["POST /x"] = Reply(307, {}, {"Location": self.server.url + "/y"})
        with self.assertRaises(errors.ApiError):
            self.call()
        self.assertEqual(len(self.server.requests), 1)

    def test_pauses_double_up_to_a_bound(self) -> None:
        self.assertEqual([pause(n, lambda: 1.0) for n in (0, 1, 2)], [0.2, 0.4, 0.8])
        self.assertEqual(pause(100, lambda: 1.0), LONGEST_PAUSE)
        self.assertTrue(all(0.8 <= pause(3) <= 1.6 for _ in range(100)))

    def test_urls(self) -> None:
        for url in ("dagctl.example.com", "ftp://x", "http://user:word@x", ""):
            with self.subTest(url=url), self.assertRaises(ValueError):
                Transport(url)
        self.server.routes["POST /below/x"] = {"ok": True}
        below = Transport(self.server.url + "/below")
        self.assertTrue(below.call("POST", "/x", headers={}).json()["ok"])
        below.close()


class TestRequests(unittest.TestCase):
    def test_a_request_is_kept_as_it_came(self) -> None:
        self.assertEqual(Request("POST", "/", {}, b'{"a": 1}').json, {"a": 1})


if __name__ == "__main__":
    unittest.main()
