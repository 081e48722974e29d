import datetime
import os
import unittest
from unittest import mock

from dagctl import Error
from dagctl.aws import AWSCredentials, Signer, default_credentials
from tests.replay import Replay, Reply

# AWS's own examples (Signature Version 4 test suite): key, time and region of all of them.
EXAMPLE = AWSCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
NOW = datetime.datetime(2015, 8, 30, 12, 36, tzinfo=datetime.timezone.utc)
HOST = "https://example.amazonaws.com"


class TestSigner(unittest.TestCase):
    def test_the_examples_of_aws(self) -> None:
        signer = Signer("service", "us-east-1", lambda: EXAMPLE)
        for name, method, url, headers, signature in [
            ("get-vanilla", "GET", "/", {}, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("post-vanilla", "POST", "/", {}, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
            (
                "get-vanilla-query-order-key-case", "GET", "/?Param2=value2&Param1=value1", {},
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            (
                "post-header-key-sort", "POST", "/", {"My-Header1": "value1"},
                "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
            ),
        ]:
            with self.subTest(name):
                signed = signer.sign(method, HOST + url, headers, b"", NOW)
                self.assertTrue(signed["Authorization"].endswith(f"Signature={signature}"), signed["Authorization"])
                self.assertIn("Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request", signed["Authorization"])

    def test_session_tokens_are_signed(self) -> None:
        signer = Signer("sqs", "us-east-1", lambda: AWSCredentials("a", "s", "session"))
        signed = signer.sign("POST", HOST, {"Content-Type": "x"}, b"{}", NOW)
        self.assertEqual(signed["X-Amz-Security-Token"], "session")
        self.assertIn("SignedHeaders=content-type;host;x-amz-date;x-amz-security-token", signed["Authorization"])

    def test_credentials_are_fetched_again_before_they_expire(self) -> None:
        fetched = []

        def find() -> AWSCredentials:
            fetched.append(1)
            return AWSCredentials(f"key{len(fetched)}", "s", expires_at=NOW + datetime.timedelta(minutes=30 * len(fetched)))

        signer = Signer("sqs", "us-east-1", find)
        for minutes, key in [(0, "key1"), (20, "key1"), (26, "key2")]:
            signed = signer.sign("POST", HOST, {}, b"", NOW + datetime.timedelta(minutes=minutes))
            self.assertIn(f"Credential={key}/", signed["Authorization"])


class TestCredentials(unittest.TestCase):
    def found(self, env):
        with mock.patch.dict(os.environ, env, clear=True):
            return default_credentials()

    def test_of_the_environment(self) -> None:
        found = self.found({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "very secret", "AWS_SESSION_TOKEN": "t"})
        self.assertEqual(found, AWSCredentials("a", "very secret", "t"))
        self.assertNotIn("secret", repr(found).replace("secret_access_key", ""))

    def test_of_a_task_role(self) -> None:
        server = Replay()
        self.addCleanup(server.close)
        server.routes["GET /role"] = {"AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t", "Expiration": "2026-01-01T00:00:00Z"}
        found = self.found({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url + "/role", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "auth"})
        self.assertEqual((found.access_key_id, found.session_token), ("a", "t"))
        self.assertEqual(found.expires_at, datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc))
        self.assertEqual(server.requests[0].headers["authorization"], "auth")
        server.routes["GET /role"] = Reply(500, {})
        with self.assertRaisesRegex(Error, "task role"):
            self.found({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url + "/role"})

    def test_of_nowhere(self) -> None:
        with self.assertRaisesRegex(Error, "no AWS credentials: set AWS_ACCESS_KEY_ID"):
            self.found({})


if __name__ == "__main__":
    unittest.main()
