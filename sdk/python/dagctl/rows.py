"""Rows on their way to an output: files of JSON lines, whose columns have the types that all of them together show."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import decimal
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set

from .columns import Columns, Kinds, unwritable
from .frames import UNKNOWN, Unfit, decimal_shape
from .typed import encode, text_key

if TYPE_CHECKING:
    from .data import Output

PART_BYTES = 64 << 20  # size at which a file is uploaded and a new one begins
ROOM = 1 << 30  # bytes that a disk has left if it keeps the rows of files that are uploaded


@dataclass
class Part:
    """A file of rows."""

    path: str  # empty: the rows are not kept here
    types: Dict[str, str]  # that were declared
    decimals: Set[str] = field(default_factory=set)  # columns that hold a Decimal, and whose type nobody said
    file: Dict[str, str] = field(default_factory=dict)  # as a commit names it
    columns: Any = None  # as the server has them, with their types
    kinds: Kinds = field(default_factory=Kinds)  # of the rows of its writer


class RowWriter:
    """Writes rows to an output, as lines of JSON."""

    def __init__(self, output: Output, partition_key: str, columns: Columns = (), shown: bool = False) -> None:
        self.rows = 0
        self._named = bool(columns)  # some row has a field
        self._output, self._key, self._columns = output, partition_key, list(columns)
        self._types = dict(columns) if isinstance(columns, Mapping) else {}
        self._shown = shown  # the types are those that values showed
        self._kinds = Kinds(n for n, t in self._types.items() if t != UNKNOWN)
        self._decimals: Set[str] = set()
        self._file: Optional[IO[bytes]] = None
        self._size = 0

    def write(self, row: Any) -> None:
        value = self._members(row)
        if self._columns:
            value = {name: value.get(name) for name in self._columns}
        self._named = self._named or bool(value)
        try:
            if not self._shown:
                self._kinds.look(value, self.rows + 1)
            line = self._line(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._unfit(unwritable(value, self.rows + 1, error)) from None
        except Unfit as unfit:
            raise self._unfit(unfit) from None
        if self._file is None:
            self._file = self._begin()
        self._file.write(line)
        self.rows += 1
        self._size += len(line)
        if self._size >= PART_BYTES:
            self._send()
        elif self.rows % 10_000 == 0:
            self._output._attempt.check()

    def _members(self, row: Any) -> Dict[str, Any]:
        try:
            return _members(row)
        except (TypeError, ValueError, RecursionError) as error:
            fields = _fields(row)
            if fields is None:
                raise
            raise self._unfit(unwritable(fields, self.rows + 1, error)) from None

    def _unfit(self, fault: Unfit) -> Unfit:
        return Unfit(f"output {self._output.name}: {fault}")

    def _line(self, value: Dict[str, Any]) -> bytes:
        exact = [name for name, v in value.items() if type(v) not in _AS_THEY_ARE and isinstance(v, decimal.Decimal)]
        if not exact:
            return _dumped(value).encode() + b"\n"
        for name in exact:
            if not value[name].is_finite():
                raise Unfit(f"column {name!r}, row {self.rows + 1}: {value[name]} is no number that a DECIMAL has; use None")
        self._decimals.update(exact)
        members = (f"{_dumped(n)}:{v if isinstance(v, decimal.Decimal) else _dumped(v)}" for n, v in value.items())
        return f"{{{','.join(members)}}}\n".encode()

    def _begin(self) -> IO[bytes]:
        self._size = 0
        return open(self._output._scratch.file(".ndjson"), "wb")

    def _send(self) -> None:
        assert self._file is not None
        self._file.close()
        path = self._file.name
        decimals = {n for n in self._decimals if self._shown or self._types.get(n, UNKNOWN) == UNKNOWN}
        self._decimals = set()
        part = Part(path, dict(self._types), decimals, kinds=self._kinds)
        try:
            if not self._shown:
                part.types.update(decimal_types(path, decimals))
        except Unfit as unfit:
            raise self._unfit(unfit) from None

        self._output._put_rows(part, self._key)
        said = not self._shown and self._columns and all(self._types.get(n, UNKNOWN) != UNKNOWN for n in self._columns)
        if not said and shutil.disk_usage(os.path.dirname(path)).free >= ROOM:
            self._file = None  # until the commit
        else:
            part.path = ""
            self._drop()

    def _send_columns(self) -> None:
        """Name the columns of an output without rows, by a CSV file of one line."""
        path = self._output._scratch.file(".csv")
        try:
            with open(path, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(self._columns)
            self._output._put(path, "csv", None, self._key)
        finally:
            _remove(path)

    def _finish(self) -> None:
        if self.rows and not self._named:
            raise Unfit(
                f"output {self._output.name}: no row has a field, so there is no column that they could be stored by: name "
                "columns, or write no rows"
            )
        if self._file is not None:
            self._send()
        elif self._types and not self.rows:
            with self._begin() as self._file:
                pass
            self._output._put(self._file.name, "ndjson", None, self._key, self._types)
            self._drop()
        elif self._columns and not self.rows:
            self._send_columns()
        elif not self.rows:
            with self._output._lock:
                self._output._note(self._key)  # an output without rows is published, too

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            _remove(self._file.name)
            self._file = None


_AS_THEY_ARE = frozenset((str, int, float, bool, type(None)))  # most values, which `encode` would only return


def _members(row: Any) -> Dict[str, Any]:
    """Return a row as JSON, but for the Decimals of its columns."""
    fields = _fields(row)
    if fields is None:
        value = encode(row, text_key)
        if isinstance(value, dict):
            return value
        raise TypeError(f"a row is a dict or a dataclass, not a {type(row).__name__}")
    return {
        k if type(k) is str else text_key(k): v
        if type(v) in _AS_THEY_ARE or isinstance(v, decimal.Decimal)
        else encode(v, text_key)
        for k, v in fields.items()
    }


def _fields(row: Any) -> Optional[Mapping[Any, Any]]:
    """Return the fields of a dict or a dataclass, nothing of other things."""
    if isinstance(row, (dict, Mapping)):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {f.metadata.get("json", f.name): getattr(row, f.name) for f in dataclasses.fields(row)}
    return None


# NaN, Infinity and -Infinity are no JSON, but the server reads them, as it writes them.
_dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def decimal_types(path: str, names: Iterable[str]) -> Dict[str, str]:
    """Return the types of those columns of a file of rows that hold nothing but exact numbers, however they are written."""
    shapes = {name: decimal_shape(name) for name in names}
    if not shapes:
        return {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line, parse_float=decimal.Decimal, parse_int=decimal.Decimal)
            for name, shape in list(shapes.items()):
                value = row.get(name)
                if isinstance(value, decimal.Decimal):
                    shape.add(value, f"row {number}")
                elif isinstance(value, float):
                    raise Unfit(
                        f"column {name!r}, row {number}: {value} is no number that a DECIMAL has, and other rows hold Decimals: "
                        f"use None, or declare the type, as in columns={{{name!r}: 'DOUBLE'}}"
                    )
                elif value is not None:
                    del shapes[name]
    return {name: shape.type() or UNKNOWN for name, shape in shapes.items()}


def differ(parts: Sequence[Part]) -> bool:
    """Report whether files have different columns, and whether their rows are here to mend that."""
    return all(p.path and p.columns for p in parts) and any(p.columns != parts[0].columns for p in parts)


def agree(parts: Sequence[Part]) -> None:
    """Raise Unfit if a column is of different kinds in the rows of different writers."""
    together = Kinds(name for part in parts for name, type in part.types.items() if type != UNKNOWN)
    for kinds in {id(part.kinds): part.kinds for part in parts}.values():
        together.join(kinds)


def joined(parts: Sequence[Part]) -> str:
    """Join the rows of files into the first of them."""
    with open(parts[0].path, "ab") as whole:
        for part in parts[1:]:
            with open(part.path, "rb") as rows:
                shutil.copyfileobj(rows, whole, 1 << 20)
            _remove(part.path)
    return parts[0].path


def discard(parts: Iterable[Part]) -> None:
    for part in parts:
        if part.path:
            _remove(part.path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|U?INTEGER|DECIMAL.*|FLOAT|DOUBLE")
_SHOWN = re.compile(r"BOOLEAN|DATE|TIME.*")  # beside numbers, what the values show as well


def all_types(parts: Sequence[Part]) -> Dict[str, str]:
    """Return the types to declare for the rows of all parts. The values show those that are missing."""
    found: Dict[str, str] = {}
    for name in dict.fromkeys(name for part in parts for name in part.types):
        said = [part.types.get(name, UNKNOWN) for part in parts]
        types: List[str] = sorted(set(said) - {UNKNOWN})
        numbers = all(_NUMBERS.fullmatch(t) for t in types)
        if len(types) > 1 and not numbers:
            raise Unfit(f"column {name!r} is {types[0]} in one part of the rows and {types[1]} in another: convert it, or say "
                        f"its type, as in columns={{{name!r}: {types[1]!r}}}")
        if numbers and any(t in ("FLOAT", "DOUBLE") for t in types):
            found[name] = "DOUBLE"
        elif len(types) == 1 and (UNKNOWN not in said or not numbers and not _SHOWN.fullmatch(types[0])):
            found[name] = types[0]
    return found
