"""The columns of rows: their names and what their values show, so that no row is stored as something else than it says."""

from __future__ import annotations

import decimal
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Union

from .frames import SAID, Unfit
from .typed import misfit

Columns = Union[Sequence[str], Mapping[str, str]]  # names, or names with DuckDB's names of their types

EXACT = 1 << 53  # below it, a float holds every whole number
_DIGITS = 38  # of the widest DECIMAL
_LONGEST = 60  # text of a value in an error

_NUMBERS = ("int", "float", "decimal")


def chosen(columns: Optional[Columns]) -> Columns:
    """Return the columns that a handler names, none if it names none."""
    if columns is None:
        return ()
    if isinstance(columns, str):
        raise TypeError("columns is a list of names, or a dict of names and types, not a text")
    if not columns:
        raise ValueError("columns names none: leave it out to write all columns of the rows")
    seen: Dict[str, str] = {}
    for i, name in enumerate(columns):
        if not isinstance(name, str) or not name:
            raise ValueError(f"columns: name {i + 1} is {name!r}, not a text that names a column")
        other = seen.setdefault(folded(name), name)
        if len(seen) <= i:
            raise ValueError(f"columns names {other!r} and {name!r}, which are one column: upper and lower case are alike")
    return columns


def folded(name: str) -> str:
    """Fold a name as DuckDB does, which has letters of ASCII alike in upper and lower case."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


class Kinds:
    """What the values of the columns of rows are. A column has one type; what would be rounded or renamed is refused."""

    def __init__(self, declared: Iterable[str] = ()) -> None:
        self._declared = frozenset(declared)  # columns whose type the handler says: the server holds values to it
        self._last: Dict[str, Any] = {}  # class of the last value of a column
        self._names: Dict[str, str] = {}  # by how they are folded
        self._columns: Dict[str, _Column] = {}

    def look(self, row: Mapping[str, Any], number: int) -> None:
        """Look at the values of a row, which are as they will be written."""
        last = self._last
        for name, value in row.items():
            kind = type(value)
            if last.get(name) is not kind and (value is not None or name not in last):
                self._add(name, value, number)
            elif kind is int and not -EXACT <= value <= EXACT:
                self._add(name, value, number)

    def _add(self, name: str, value: Any, number: int) -> None:
        if name not in self._last:
            self._check_name(name, number)
        self._last[name] = type(value)
        if value is None or name in self._declared:
            return
        column = self._columns.setdefault(name, _Column(name))
        column.add(value, number)

    def _check_name(self, name: str, number: int) -> None:
        if not name:
            raise Unfit(f"row {number}: the name of a column is empty: give it one")
        other = self._names.setdefault(folded(name), name)
        if other != name:
            raise Unfit(
                f"row {number} has the column {name!r} and there is {other!r}, and upper and lower case are alike: rename one"
            )

    def join(self, other: Kinds) -> None:
        """Take in what the rows of another writer show, which are committed together with these."""
        for name in other._last:
            self._names.setdefault(folded(name), name)
            self._last.setdefault(name, None)
        for name, column in other._columns.items():
            if name not in self._declared:
                self._columns.setdefault(name, _Column(name)).join(column)


class _Column:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: Dict[str, int] = {}  # the first row of each kind
        self.long: Optional[int] = None  # a whole number that a float would round
        self.long_row = 0

    def add(self, value: Any, number: int) -> None:
        kind = _kind(value)
        if kind == "int" and not -EXACT <= value <= EXACT:
            self._measure(value, number)
        self._first(kind, number, f" ({_short(value)})")

    def _measure(self, value: int, number: int) -> None:
        if abs(value) >= 10**_DIGITS:
            raise Unfit(
                f"column {self.name!r}, row {number}: {_short(value)} has more than the {_DIGITS} digits of a DECIMAL: write "
                f"it as text, or declare the type, as in columns={{{self.name!r}: 'VARCHAR'}}"
            )
        if self.long is None and int(float(value)) != value:
            self.long, self.long_row = value, number

    def _first(self, kind: str, number: int, text: str) -> None:
        for other, row in self.rows.items():
            if kind != other and not (kind in _NUMBERS and other in _NUMBERS):
                raise Unfit(
                    f"column {self.name!r} mixes types: row {number} holds {SAID[kind]}{text}, row {row} {SAID[other]}. A column "
                    f"has one type: convert it, or declare the type, as in columns={{{self.name!r}: 'VARCHAR'}}"
                )
        self.rows.setdefault(kind, number)
        if self.long is not None and "float" in self.rows and "decimal" not in self.rows:
            raise Unfit(
                f"column {self.name!r}, row {self.long_row}: {self.long} is rounded as a DOUBLE, which row "
                f"{self.rows['float']} makes the column with {SAID['float']}: write Decimals, or declare the type, as in "
                f"columns={{{self.name!r}: 'DECIMAL(38,4)'}}"
            )

    def join(self, other: _Column) -> None:
        if self.long is None:
            self.long, self.long_row = other.long, other.long_row
        for kind, number in other.rows.items():
            self._first(kind, number, " of another write")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    for kind, of in (("int", int), ("float", float), ("decimal", decimal.Decimal), ("str", str), ("dict", Mapping)):
        if isinstance(value, of):
            return kind
    return "list"


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return f"a whole number of {value.bit_length()} bits"  # Python refuses to write thousands of digits
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def unwritable(row: Mapping[Any, Any], number: int, error: Exception) -> Unfit:
    """Say which value of a row cannot be written, and why."""
    for name, value in row.items():
        if not isinstance(name, str):
            return Unfit(f"row {number}: the name of column {name!r} is not a text: rename it, for example by str()")
        if misfit(name):
            return Unfit(f"row {number}: the name of column {name!r} holds half of a surrogate pair: rename it")
        fault = misfit(value)
        if fault:
            return Unfit(f"column {name!r}, row {number} holds {fault}: {_remedy(fault)}")
    return Unfit(f"row {number}: {error}")


def _remedy(fault: str) -> str:
    if fault.startswith(("a bytes", "a bytearray", "a memoryview")):
        return "write it as text, such as base64"
    if fault.startswith("half of a surrogate"):
        return 'no text has that; replace it, for example by .encode("utf-8", "replace").decode()'
    if "is not a text" in fault:
        return "make the keys of a dict texts, for example by str()"
    if fault.startswith("a timedelta"):
        return "write it as a number, for example by .total_seconds()"
    return "convert it, for example by str()"
