import logging
import threading
import unittest
from typing import Any, Dict, List

from dagctl import logs
from dagctl.errors import ConflictError, InvalidError, UnavailableError
from dagctl.logs import LogBuffer, TaskLogHandler


class Store:
    """What a server would have of the lines it was sent."""

    def __init__(self) -> None:
        self.lines: Dict[int, Dict[str, Any]] = {}
        self.batches: List[List[int]] = []
        self.before: List[Any] = []  # what is raised, or how many lines are taken, before all goes well

    def __call__(self, batch: List[Dict[str, Any]]) -> int:
        self.batches.append([line["seq"] for line in batch])
        what = self.before.pop(0) if self.before else len(batch)
        if isinstance(what, Exception):
            raise what
        for line in batch[:what]:
            self.lines.setdefault(line["seq"], dict(line))
        return max(self.lines, default=0)

    def texts(self) -> List[str]:
        return [self.lines[seq]["text"] for seq in sorted(self.lines)]


class TestLogBuffer(unittest.TestCase):
    def test_lines_are_numbered_without_gaps_and_sent_together(self) -> None:
        store = Store()
        buffer = LogBuffer(store)
        for n in range(5):
            buffer.add("info", f"line {n}")
        buffer.close(10)
        self.assertEqual(sorted(store.lines), [1, 2, 3, 4, 5])
        self.assertEqual(store.texts(), [f"line {n}" for n in range(5)])
        self.assertLessEqual(len(store.batches), 2)

    def test_what_was_not_acknowledged_comes_again(self) -> None:
        store = Store()
        store.before = [UnavailableError("away"), 1, UnavailableError("away"), 2]
        buffer = LogBuffer(store)
        buffer.add("info", "a\nb\nc\nd")
        buffer.close(10)
        self.assertEqual(store.texts(), ["a", "b", "c", "d"])
        self.assertEqual(store.batches, [[1, 2, 3, 4], [1, 2, 3, 4], [2, 3, 4], [2, 3, 4], [4]])

    def test_a_line_that_is_refused_holds_up_no_other(self) -> None:
        store = Store()
        store.before = [InvalidError("POST /v1/task/logs", 422, "no")]
        buffer = LogBuffer(store)
        buffer.add("info", "bad")
        buffer.close(10)
        self.assertEqual(store.texts(), ["(the server refused this line)"])

    def test_a_stale_fence_ends_it(self) -> None:
        store = Store()
        store.before = [ConflictError("POST /v1/task/logs", 409, "stale")]
        buffer = LogBuffer(store)
        buffer.add("info", "a")
        buffer.close(10)
        buffer.add("info", "b")
        self.assertEqual((store.batches, store.lines), ([[1]], {}))

    def test_batches_have_a_size(self) -> None:
        store = Store()
        hold = threading.Event()
        buffer = LogBuffer(lambda batch: store(batch) if hold.wait(10) else 0)
        for _ in range(2500):
            buffer.add("info", "x")
        for _ in range(3):
            buffer.add("info", "y" * 100_000)
        hold.set()
        buffer.close(10)
        self.assertEqual(len(store.lines), 2500 + 3 * 7)
        self.assertTrue(all(len(b) <= 1000 for b in store.batches))
        self.assertEqual(max(len(t) for t in store.texts()), 16_384)

    def test_without_a_server_lines_are_dropped_and_counted(self) -> None:
        most, wait = logs.MOST_KEPT, logs.LONGEST_WAIT
        self.addCleanup(lambda: setattr(logs, "MOST_KEPT", most))
        self.addCleanup(lambda: setattr(logs, "LONGEST_WAIT", wait))
        logs.MOST_KEPT, logs.LONGEST_WAIT = 3, 0.01
        store, away = Store(), threading.Event()

        def send(batch: List[Dict[str, Any]]) -> int:
            if not away.is_set():
                away.wait(30)
                raise UnavailableError("away")
            return store(batch)

        buffer = LogBuffer(send)
        for n in range(6):
            buffer.add("info", str(n))
        away.set()
        with buffer._changed:
            self.assertTrue(buffer._changed.wait_for(lambda: not buffer._lines, 10))
        buffer.add("info", "again")
        buffer.close(10)
        self.assertEqual(store.texts(), ["0", "1", "2", "3 lines are missing here: the server was away for too long", "again"])

    def test_what_cannot_be_stored_is_replaced(self) -> None:
        store = Store()
        buffer = LogBuffer(store)
        buffer.add("info", "a\x00b\ud800c")
        buffer.close(10)
        self.assertEqual(store.texts(), ["a\ufffdb?c"])


class TestTaskLogHandler(unittest.TestCase):
    def test_records_of_a_task_go_to_its_log(self) -> None:
        store = Store()
        buffer = LogBuffer(store)
        logger = logging.Logger("mine")
        logger.addHandler(TaskLogHandler())
        logger.addHandler(TaskLogHandler())  # twice on its way, once in the log
        logger.warning("nobody's")
        token = logs.current.set(buffer)
        logger.warning("of %s", "the task")
        logs.current.reset(token)
        buffer.close(10)
        self.assertEqual([(l["level"], l["text"]) for l in store.lines.values()], [("warn", "of the task")])

    def test_levels(self) -> None:
        store = Store()
        buffer = LogBuffer(store)
        logger = logging.Logger("mine", logging.DEBUG)
        logger.addHandler(TaskLogHandler(buffer=buffer))
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            logger.log(level, "x")
        buffer.close(10)
        self.assertEqual([l["level"] for l in store.lines.values()], ["debug", "info", "warn", "error", "error"])


if __name__ == "__main__":
    unittest.main()
