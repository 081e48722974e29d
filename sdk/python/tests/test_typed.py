import datetime
import decimal
import enum
import sys
import unittest
import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, NewType, Optional, Tuple, TypedDict, Union

import dagctl
from dagctl.typed import Mismatch, decode, encode, timestamp


class Color(enum.Enum):
    RED = "red"


class Point(TypedDict):
    x: int
    y: int


@dataclass
class Part:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    day: datetime.date
    parts: List[Part]
    color: Color
    total: decimal.Decimal
    note: Optional[str] = None
    kind: Literal["new", "used"] = "new"
    from_: str = field(default="", metadata={"json": "from"})
    extra: Dict[str, Any] = field(default_factory=dict)


UserId = NewType("UserId", int)

ORDER = {
    "id": "0190c0de-0000-7000-8000-000000000001",
    "at": "2026-01-02T03:04:05.123456789Z",
    "day": "2026-01-02",
    "parts": [{"sku": "a", "count": 2}, {"sku": "b"}],
    "color": "red",
    "total": "1.10",
    "from": "shop",
    "unknown": True,
}


class TestDecode(unittest.TestCase):
    def test_a_dataclass_with_all_sorts_of_fields(self) -> None:
        order = decode(Order, ORDER)
        self.assertEqual(order.parts, [Part("a", 2), Part("b", 1)])
        self.assertEqual(order.at, datetime.datetime(2026, 1, 2, 3, 4, 5, 123456, datetime.timezone.utc))
        self.assertEqual((order.day, order.color), (datetime.date(2026, 1, 2), Color.RED))
        self.assertEqual((order.total, order.from_, order.note), (decimal.Decimal("1.10"), "shop", None))

    def test_what_fits(self) -> None:
        for wanted, value, want in [
            (int, 3, 3),
            (int, 3.0, 3),
            (float, 3, 3.0),
            (UserId, 7, 7),
            (Any, {"a": [1]}, {"a": [1]}),
            (List[int], [1, 2], [1, 2]),
            (Tuple[int, str], [1, "a"], (1, "a")),
            (Tuple[int, ...], [1, 2, 3], (1, 2, 3)),
            (Dict[str, int], {"a": 1}, {"a": 1}),
            (Union[int, str], "a", "a"),
            (Optional[Part], None, None),
            (Point, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
            (decimal.Decimal, 1.5, decimal.Decimal("1.5")),
        ]:
            with self.subTest(wanted=wanted):
                self.assertEqual(decode(wanted, value), want)

    def test_what_does_not_fit_says_where_and_not_what(self) -> None:
        for wanted, value, want in [
            (Order, {**ORDER, "parts": [{"sku": 5}]}, "value.parts[0].sku is a number, not a string"),
            (Order, {k: v for k, v in ORDER.items() if k != "at"}, "value.at is missing"),
            (Order, {**ORDER, "kind": "secret"}, "value.kind is not one of 'new', 'used'"),
            (Order, {**ORDER, "color": "secret"}, "value.color is not one of 'red'"),
            (Order, {**ORDER, "day": "secret"}, "value.day is a string, not a date"),
            (Order, "secret", "value is a string, not an object"),
            (int, True, "value is a boolean, not an integer"),
            (int, 1.5, "value is a number, not an integer"),
            (Union[int, str], [1], "value is a list, not an integer or value is a list, not a string"),
            (Point, {"x": 1}, "value.y is missing"),
            (Tuple[int, str], [1], "value has 1 elements, not 2"),
        ]:
            with self.subTest(want=want), self.assertRaises(Mismatch) as raised:
                decode(wanted, value)
            self.assertEqual(str(raised.exception), want)

    def test_a_type_that_json_knows_nothing_of(self) -> None:
        with self.assertRaisesRegex(TypeError, "use a dataclass"):
            decode(complex, 1)

    if sys.version_info >= (3, 10):

        def test_unions_with_a_bar(self) -> None:
            self.assertIsNone(decode(eval("int | None"), None))

    def test_times_as_servers_write_them(self) -> None:
        for text, micro in [("2026-01-02T03:04:05Z", 0), ("2026-01-02T03:04:05.1Z", 100000), ("2026-01-02T03:04:05.123456789+00:00", 123456)]:
            want = datetime.datetime(2026, 1, 2, 3, 4, 5, micro, datetime.timezone.utc)
            self.assertEqual(timestamp(text), want, text)


class TestEncode(unittest.TestCase):
    def test_there_and_back(self) -> None:
        order = decode(Order, ORDER)
        self.assertEqual(decode(Order, encode(order)), order)
        self.assertEqual(encode(order)["from"], "shop")

    def test_what_has_no_form(self) -> None:
        with self.assertRaisesRegex(TypeError, "bytes"):
            encode({"a": b"x"})

    def test_it_is_public(self) -> None:
        self.assertEqual(dagctl.decode(Part, dagctl.encode(Part("a"))), Part("a"))


if __name__ == "__main__":
    unittest.main()
