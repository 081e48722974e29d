"""Frames of pandas, polars and Arrow as rows of an output. None of the libraries is imported before a frame of it comes."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import sys
import uuid
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from .errors import NotRetryable

Types = Dict[str, str]  # DuckDB's names of types by column

UNKNOWN = "?"  # the type of a column without a value that shows one
PART_ROWS = 1_000_000  # of a Parquet file


def is_frame(value: Any) -> bool:
    """Report whether a value is a DataFrame of pandas or polars, a LazyFrame, or a Table, batch or reader of pyarrow."""
    return _library(value) != ""


def _library(value: Any) -> str:
    if _is(value, "pandas", "DataFrame"):
        return "pandas"
    if _is(value, "polars", "DataFrame", "LazyFrame"):
        return "polars"
    return "pyarrow" if _is(value, "pyarrow", "Table", "RecordBatch", "RecordBatchReader") else ""


def _is(value: Any, library: str, *classes: str) -> bool:
    # Who has a frame has imported its library, so that nothing has to be imported to find out.
    module = sys.modules.get(library)
    found = [getattr(module, c, None) for c in classes]
    return isinstance(value, tuple(c for c in found if isinstance(c, type)))


def is_pandas(value: Any) -> bool:
    return _library(value) == "pandas"


class Unfit(NotRetryable):
    """A frame cannot become rows. The message says where it does not fit, and how to mend it."""


# pandas: rows of JSON, and the types of their columns.


def pandas_rows(frame: Any, columns: Sequence[str] = ()) -> Tuple[Types, Iterator[Dict[str, Any]]]:
    """Return the types of a pandas frame's columns, by their names, and its rows."""
    _check_index(frame)
    names = _names(list(frame.columns), columns)
    at = {name: i for i, name in enumerate(frame.columns)}
    parts = [_series(frame.iloc[:, at[name]], name) for name in names]
    types = {name: type or UNKNOWN for name, (type, _) in zip(names, parts)}

    def rows() -> Iterator[Dict[str, Any]]:
        for values in zip(*(values for _, values in parts)):
            yield dict(zip(names, values))

    return types, rows()


def _check_index(frame: Any) -> None:
    named = [n for n in frame.index.names if n is not None]
    if named or frame.index.nlevels > 1:
        what = ", ".join(map(repr, named)) or f"of {frame.index.nlevels} levels"
        raise Unfit(
            f"the frame's index {what} is not written: reset_index() makes columns of it, reset_index(drop=True) drops it"
        )


def _names(have: Sequence[Any], wanted: Sequence[str]) -> List[str]:
    """Return the names of the columns to write, in order."""
    if not have:
        raise Unfit("the frame has no columns")
    seen: Dict[str, str] = {}
    for i, name in enumerate(have):
        if not isinstance(name, str) or not name:
            raise Unfit(f"the name of column {i + 1} is {name!r}, not a text: rename it, for example by frame.columns = [...]")
        other = seen.setdefault(name.casefold(), name)
        if seen[name.casefold()] is not name or have.count(name) > 1:
            raise Unfit(f"the frame has the columns {other!r} and {name!r}, and upper and lower case are alike: rename one")
    for name in wanted:
        if name not in have:
            raise Unfit(f"the frame has no column {name!r}; it has: {', '.join(have)}")
    return list(wanted or have)


Series = Tuple[Optional[str], Iterable[Any]]

_INTS = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT"}
_INTS.update({f"u{k}": f"U{v}" for k, v in list(_INTS.items())})
_FLOATS = {"float16": "FLOAT", "float32": "FLOAT", "float64": "DOUBLE"}


def _series(series: Any, name: str) -> Series:
    """Return the type of a column, None if no value shows it, and its values; what is missing is None."""
    kind = str(series.dtype)
    if kind == "category":
        return _series(series.astype(series.cat.categories.dtype), name)
    if kind.startswith("Sparse"):
        return _series(series.sparse.to_dense(), name)
    for known, convert in ((_INTS, int), (_FLOATS, _float), ({"bool": "BOOLEAN", "boolean": "BOOLEAN"}, bool)):
        if kind.lower() in known:  # Int64 is int64 that may have missing values
            return known[kind.lower()], _given(series, convert)
    if kind == "str" or kind == "string" or kind.startswith("string["):
        return "VARCHAR", _given(series, str)
    if kind.startswith("datetime64"):
        zoned = getattr(series.dtype, "tz", None) is not None
        return "TIMESTAMPTZ" if zoned else "TIMESTAMP", _stamps(series, name)
    if kind.startswith("timedelta64"):
        raise Unfit(f"column {name!r} has durations: write them as a number, for example by .dt.total_seconds()")
    if kind == "object" or kind.endswith("[pyarrow]"):
        return _objects(_given(series, lambda v: v), name)
    raise Unfit(f"column {name!r} is of type {kind}, which a dataset does not have: convert it, for example by .astype(str)")


def _given(series: Any, convert: Callable[[Any], Any]) -> List[Any]:
    return [None if gone else convert(value) for value, gone in zip(series.array, series.isna())]


def _float(value: Any) -> Any:
    value = float(value)
    return value if math.isfinite(value) else str(value).replace("inf", "Infinity")


def _stamps(series: Any, name: str) -> List[Any]:
    found = _given(series, lambda v: v)
    for row, stamp in enumerate(found, 1):
        if stamp is not None and stamp.nanosecond:
            raise Unfit(
                f'column {name!r}, row {row}: {stamp} is finer than microseconds: round it, for example by .dt.floor("us")'
            )
    return [None if stamp is None else stamp.isoformat() for stamp in found]


# Columns of Python objects have the type that their values show.


def _objects(values: List[Any], name: str) -> Series:
    shape = _Shape(f"column {name!r}")
    found = [_missing(v) for v in values]
    for row, value in enumerate(found, 1):
        shape.add(value, f"row {row}")
    return shape.type(), [v if isinstance(v, decimal.Decimal) else _json(v) for v in found]


def _missing(value: Any) -> Any:
    """Return None for what pandas takes for missing inside of lists and dicts, and lists for numpy's arrays."""
    if type(value).__name__ in ("NAType", "NaTType") or isinstance(value, float) and math.isnan(value):
        return None
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_missing(v) for v in value]
    return {k: _missing(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _json(value: Any) -> Any:
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, list):
        return [_json(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _json(v) for k, v in value.items()}
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value


SAID = {
    "bool": "a boolean", "int": "an integer", "float": "a number with a fraction", "decimal": "a Decimal", "str": "a text",
    "datetime": "a time without a zone", "instant": "a time with a zone", "date": "a date", "time": "a time of day",
    "uuid": "a UUID", "list": "a list", "dict": "a dict",
}  # fmt: skip
_PLAIN = {
    "bool": "BOOLEAN", "float": "DOUBLE", "str": "VARCHAR", "datetime": "TIMESTAMP", "instant": "TIMESTAMPTZ", "date": "DATE",
    "time": "TIME", "uuid": "UUID",
}  # fmt: skip
_WIDER = {frozenset(("int", "float")): "float", frozenset(("int", "decimal")): "decimal"}


def _kind(value: Any, where: str) -> str:
    for kind, classes in (
        ("bool", bool), ("int", int), ("float", float), ("decimal", decimal.Decimal), ("str", str), ("uuid", uuid.UUID),
        ("datetime", datetime.datetime), ("date", datetime.date), ("time", datetime.time), ("list", list), ("dict", Mapping),
    ):  # fmt: skip
        if isinstance(value, classes):
            return "instant" if kind == "datetime" and value.tzinfo is not None else kind
    if isinstance(value, (bytes, bytearray)):
        raise Unfit(f"{where} holds bytes: write them as text, such as base64, or write a pyarrow.Table")
    raise Unfit(f"{where} holds a {type(value).__name__}, which a dataset cannot: convert it, for example by .astype(str)")


def decimal_shape(name: str) -> _Shape:
    """Return the shape of a column of exact numbers."""
    shape = _Shape(f"column {name!r}")
    shape.kind = "decimal"
    return shape


class _Shape:
    """What the values at one place are."""

    def __init__(self, where: str) -> None:
        self.where, self.kind, self.first = where, "", ""
        self.low = self.high = 0
        self.digits = self.scale = 0
        self.element: Optional[_Shape] = None
        self.fields: Dict[str, _Shape] = {}

    def add(self, value: Any, at: str) -> None:
        if value is None:
            return
        kind = _kind(value, f"{self.where}, {at}")
        if not self.kind:
            self.kind, self.first = kind, at
        elif kind != self.kind:
            wider = _WIDER.get(frozenset((kind, self.kind)))
            if wider is None:
                both = f"{at} holds {SAID[kind]}, {self.first} {SAID[self.kind]}"
                raise Unfit(f"{self.where} mixes types: {both}. A column has one type: convert it, for example by .astype(str)")
            self.kind = wider
        self._measure(value, kind, at)

    def _measure(self, value: Any, kind: str, at: str) -> None:
        if kind == "int":
            self.low, self.high = min(self.low, value), max(self.high, value)
            self.digits = max(self.digits, len(str(abs(value))))
        elif kind == "decimal":
            if not value.is_finite():
                raise Unfit(f"{self.where}, {at}: {value} is no number that a DECIMAL has; use None")
            digits, exponent = value.as_tuple()[1:]
            self.scale = max(self.scale, -min(int(exponent), 0))
            self.digits = max(self.digits, len(digits) + int(exponent))
        elif kind == "list":
            self.element = self.element or _Shape(f"an element of {self.where}")
            for v in value:
                self.element.add(v, at)
        elif kind == "dict":
            for key, v in value.items():
                if not isinstance(key, str):
                    raise Unfit(f"{self.where}, {at}: the key {key!r} is not a text")
                self.fields.setdefault(key, _Shape(f"{key!r} of {self.where}")).add(v, at)

    def type(self) -> Optional[str]:
        """Return DuckDB's name of the type; None if no value shows it."""
        if self.kind == "int":
            if -(2**63) <= self.low and self.high < 2**63:
                return "BIGINT"
            if self.low >= 0 and self.high < 2**64:
                return "UBIGINT"
        if self.kind in ("int", "decimal"):
            if self.digits + self.scale > 38:
                raise Unfit(f"{self.where} needs {self.digits + self.scale} digits, and a DECIMAL has 38: round, or write text")
            return f"DECIMAL({18 if self.digits + self.scale <= 18 else 38},{self.scale})"
        if self.kind == "list":
            element = self.element.type() if self.element else None
            return element and f"{element}[]"
        if self.kind == "dict":
            parts = [(k, f.type()) for k, f in self.fields.items()]
            if not parts or any(t is None for _, t in parts):
                return None
            quoted = (f'"{k}" {t}' for k, t in ((k.replace('"', '""'), t) for k, t in parts))
            return f"STRUCT({', '.join(quoted)})"
        return _PLAIN.get(self.kind)


# polars and Arrow: Parquet, which these libraries write themselves.


def parquet_files(frame: Any, columns: Sequence[str], path: Callable[[], str]) -> Iterator[Tuple[str, int]]:
    """Write a frame of polars or pyarrow to Parquet files, and yield each with its number of rows; at least one."""
    if _library(frame) == "polars":
        return _polars_files(frame, columns, path)
    return _arrow_files(frame, columns, path)


def _polars_files(frame: Any, columns: Sequence[str], path: Callable[[], str]) -> Iterator[Tuple[str, int]]:
    import polars

    if isinstance(frame, polars.LazyFrame):
        frame = frame.collect()
    frame = frame[_names(frame.columns, columns)]  # select() would take a name like ^a$ for a pattern
    for name, type in frame.schema.items():
        _check_polars(name, type)
        if getattr(type, "time_unit", "") == "ns" and getattr(type, "time_zone", None):
            whole = frame[name].dt.cast_time_unit("us")
            if (whole.dt.cast_time_unit("ns") != frame[name]).any():
                raise Unfit(f'column {name!r} is finer than microseconds: round it, for example by .dt.truncate("1us")')
            frame = frame.with_columns(whole)
    for start in range(0, max(frame.height, 1), PART_ROWS):
        part, file = frame.slice(start, PART_ROWS), path()
        part.write_parquet(file)
        yield file, part.height


_HUGE = "has numbers of 128 bits, which Parquet has as bytes: cast them, for example to pl.Decimal(38, 0)"
_NOT_IN_POLARS = {
    "Duration": "has durations: write them as a number, such as of seconds",
    "Time": "has times of day in nanoseconds: cast them to pl.String, or write frame.to_arrow(), which has microseconds",
    "Int128": _HUGE,
    "UInt128": _HUGE,
    "Object": "is of a type that a dataset does not have: cast it",
}  # fmt: skip


def _check_polars(name: str, type: Any) -> None:
    """Refuse the types that Parquet does not have, or that would come back as others."""
    for part in _parts(type):
        fault = _NOT_IN_POLARS.get(str(part).partition("(")[0])
        if fault is None and part is not type and getattr(part, "time_zone", None) and part.time_unit == "ns":
            fault = "has times with a zone in nanoseconds inside of others: cast them to microseconds"
        if fault:
            raise Unfit(f"column {name!r} ({type}) {fault}")


def _parts(type: Any) -> Iterator[Any]:
    """Yield a type of polars and those inside of it."""
    yield type
    inner = getattr(type, "inner", None)  # of List and Array
    for part in [field.dtype for field in getattr(type, "fields", ())] if inner is None else [inner]:
        yield from _parts(part)


def _arrow_files(frame: Any, columns: Sequence[str], path: Callable[[], str]) -> Iterator[Tuple[str, int]]:
    import pyarrow
    import pyarrow.parquet

    if isinstance(frame, pyarrow.RecordBatch):
        frame = pyarrow.Table.from_batches([frame])
    names = _names(list(frame.schema.names), columns)
    at = {name: i for i, name in enumerate(frame.schema.names)}
    fields = [frame.schema.field(at[name]) for name in names]
    for field in fields:
        _check_arrow(field.name, str(field.type))
    schema = pyarrow.schema([f.with_type(_whole(pyarrow, f.type)) for f in fields])

    batches = frame.to_batches() if isinstance(frame, pyarrow.Table) else frame
    file, writer, rows = path(), None, 0
    try:
        writer = pyarrow.parquet.ParquetWriter(file, schema)
        for batch in batches:
            try:
                part = pyarrow.Table.from_batches([batch]).select(names).cast(schema)
            except pyarrow.ArrowInvalid as error:
                raise Unfit(f"the table cannot be written: {error}") from None
            writer.write_table(part)
            rows += part.num_rows
            if rows >= PART_ROWS:
                writer.close()
                yield file, rows
                file, rows = path(), 0
                writer = pyarrow.parquet.ParquetWriter(file, schema)
    finally:
        if writer is not None:
            writer.close()
    yield file, rows


def _whole(pyarrow: Any, type: Any) -> Any:
    """Return the type in which a column is written: times with a zone and times of day have microseconds."""
    if pyarrow.types.is_timestamp(type) and type.tz is not None:
        return pyarrow.timestamp("us", tz=type.tz)
    return pyarrow.time64("us") if pyarrow.types.is_time64(type) else type


_NOT_IN_ARROW = (
    (re.compile(r"duration\["), "has durations: write them as a number, such as of seconds"),
    (re.compile(r"decimal256\("), "has up to 76 digits, and a DECIMAL has 38: cast it to decimal128"),
    (re.compile(r"union<|month_day_nano_interval"), "is of a type that a dataset does not have: cast it"),
    (re.compile(r".+(timestamp\[ns, tz=|time64\[ns)"), "has times in nanoseconds inside of others: cast them to microseconds"),
)


def _check_arrow(name: str, type: str) -> None:
    """Refuse the types that Parquet does not have, or that would come back as others."""
    for pattern, fault in _NOT_IN_ARROW:
        if pattern.search(type):
            raise Unfit(f"column {name!r} ({type}) {fault}")
