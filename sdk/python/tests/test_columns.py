"""Rows whose names or values would be stored as others are refused, with the place."""

import dataclasses
import datetime
import decimal
import enum
import json
import unittest
from typing import Any, Dict, List

import dagctl
from tests import replay
from tests.test_task import Case

D = decimal.Decimal


@dataclasses.dataclass
class Reading:
    at: Any


class Name(str, enum.Enum):
    A = "a"


class TestColumns(Case):
    def send(self, *writes: Any, **options: Any) -> str:
        """Write lists of rows, and return why that failed."""
        for n in range(1, 6):
            self.server.routes[f"PUT /v1/task/outputs/0/{n:05d}.ndjson"] = lambda request: {
                "name": request.path.partition("?")[0].rpartition("/")[2],
                "columns": sorted(json.loads(request.body.splitlines()[0])),
            }

        def handler(ctx: dagctl.Context) -> None:
            for rows in writes:
                ctx.output().write(rows, **options)

        self.run_task(handler, outputs=[replay.output()])
        return str(self.completion().get("error", {}).get("message", "")).split("\n", 1)[0]

    def lines(self, file: str = "00001") -> List[Dict[str, Any]]:
        (rows,) = self.server.of(f"/v1/task/outputs/0/{file}.ndjson")
        return [json.loads(line) for line in rows.body.splitlines()]

    def test_what_is_refused(self) -> None:
        mixed = "A column has one type: convert it, or declare the type, as in columns={'a': 'VARCHAR'}"
        for rows, says in [
            ([{1: 1, "1": 2}], "row 1: the name of column 1 is not a text: rename it, for example by str()"),
            ([{"a": 1}, {None: 1}], "row 2: the name of column None is not a text"),
            ([{True: 1}], "row 1: the name of column True is not a text"),
            ([{(1, 2): 1}], "row 1: the name of column (1, 2) is not a text"),
            ([{"a": 1}, {"": 1}], "row 2: the name of a column is empty"),
            (
                [{"id": 1}, {"ID": None}],
                "row 2 has the column 'ID' and there is 'id', and upper and lower case are alike: rename one",
            ),
            ([{"a": {1: 1, "1": 2}}], "column 'a', row 1 holds the key 1, which is not a text: make the keys of a dict texts"),
            ([{"a": [{"b": {None: 1}}]}], "column 'a', row 1 holds the key None, which is not a text at [0].b"),
            ([{"a": 1}, {"a": 2**200}], f"column 'a', row 2: {'a whole number of 201 bits'} has more than the 38 digits"),
            ([{"a": 10**38}], f"column 'a', row 1: {10**38} has more than the 38 digits of a DECIMAL: write it as text"),
            ([{"a": 2**53 + 1}, {"a": 0.5}], "column 'a', row 1: 9007199254740993 is rounded as a DOUBLE, which row 2 makes"),
            ([{"a": 0.5}, {"a": -(2**53) - 1}], "column 'a', row 2: -9007199254740993 is rounded as a DOUBLE, which row 1"),
            ([{"a": D("1.5")}, {"a": float("nan")}], "column 'a', row 2: nan is no number that a DECIMAL has"),
            ([{"a": 1}, {"a": "seven"}], f"column 'a' mixes types: row 2 holds a text ('seven'), row 1 an integer. {mixed}"),
            ([{"a": None}, {"a": True}, {"a": 1}], "column 'a' mixes types: row 3 holds an integer (1), row 2 a boolean"),
            ([{"a": D(1)}, {"a": "x" * 99}], f"row 2 holds a text ('{'x' * 58}…), row 1 a Decimal"),
            ([{"a": [1]}, {"a": {"b": 1}}], "column 'a' mixes types: row 2 holds a dict ({'b': 1}), row 1 a list"),
            ([{"a": 1}, {"a": b"x"}], "column 'a', row 2 holds a bytes: write it as text, such as base64"),
            ([Reading(b"x")], "column 'at', row 1 holds a bytes"),
            ([{"a": [1, {"b": b"x"}]}], "column 'a', row 1 holds a bytes at [1].b: write it as text"),
            ([{"a": "x"}, {"a": "\ud800"}], "column 'a', row 2 holds half of a surrogate pair: no text has that; replace it"),
            ([{"a": {"b": "\ud800"}}], "column 'a', row 1 holds half of a surrogate pair at b"),
            ([{"a\ud800": 1}], "row 1: the name of column 'a\\ud800' holds half of a surrogate pair: rename it"),
            ([{"a": datetime.timedelta(1)}], "column 'a', row 1 holds a timedelta: write it as a number"),
        ]:
            with self.subTest(says):
                self.setUp()
                error = self.send(rows)
                self.assertTrue(error.startswith("output rows: "), error)
                self.assertIn(says, error)
                self.assertEqual(self.completion()["error"]["retryable"], False)

    def test_what_is_written(self) -> None:
        big = 10**38 - 1
        for rows, options, written in [
            ([{"a": 2**63}, {"a": -big}], {}, [{"a": 2**63}, {"a": -big}]),
            ([{"a": 2**53}, {"a": 0.5}, {"a": 2**60}], {}, [{"a": 2**53}, {"a": 0.5}, {"a": 2**60}]),
            ([{"a": 1}, {"a": "x"}], {"columns": {"a": "VARCHAR"}}, [{"a": 1}, {"a": "x"}]),
            ([{"a": 2**200}], {"columns": {"a": "DOUBLE"}}, [{"a": 2**200}]),
            ([{"a": datetime.date(2026, 1, 5)}, {"a": "x"}], {}, [{"a": "2026-01-05"}, {"a": "x"}]),
            ([{Name.A: 1}], {}, [{"a": 1}]),
            ([{"Ä": 1, "ä": 2}], {}, [{"Ä": 1, "ä": 2}]),
        ]:
            with self.subTest(str(rows)):
                self.setUp()
                self.assertEqual(self.send(rows, **options), "")
                self.assertEqual(self.lines(), written)

    def test_columns_that_are_no_names(self) -> None:
        for columns, says in [
            (["a", "a"], "columns names 'a' and 'a', which are one column"),
            (["a", "A"], "columns names 'a' and 'A', which are one column: upper and lower case are alike"),
            ({"a": "BIGINT", "A": "BIGINT"}, "columns names 'a' and 'A'"),
            (["a", ""], "columns: name 2 is '', not a text that names a column"),
            ([1], "columns: name 1 is 1, not a text"),
            ([], "columns names none: leave it out to write all columns of the rows"),
            ({}, "columns names none"),
        ]:
            with self.subTest(says):
                self.setUp()
                self.assertIn(says, self.send([{"a": 1}], columns=columns))

    def test_rows_of_several_writes_agree(self) -> None:
        error = self.send([{"a": 1}], [{"a": "x", "b": 1}])
        self.assertIn("output rows: column 'a' mixes types: row 1 holds a text of another write, row 1 an integer", error)


if __name__ == "__main__":
    unittest.main()
