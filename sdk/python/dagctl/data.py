"""Rows in and out of a task. The server converts and keeps them: no storage credentials, and no library for Parquet."""

from __future__ import annotations

import contextlib
import csv
import decimal
import json
import os
import re
import threading
from dataclasses import dataclass, field
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union, overload
from urllib.parse import quote

from .attempt import Attempt
from .errors import Error
from .frames import Unfit, is_frame, is_pandas, pandas_rows, parquet_files
from .protocol import MOST_FILES, Column, InputPartition, InputSpec, OutputSpec
from .scratch import Scratch
from .typed import Mismatch, decode, encode

T = TypeVar("T")
Row = Dict[str, Any]
Columns = Union[Sequence[str], Mapping[str, str]]  # names, or names with DuckDB's names of their types

PART_BYTES = 64 << 20  # size at which a file is uploaded and a new one begins

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}
_MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv", "ndjson": "application/x-ndjson"}
_ENDINGS = {"parquet": ".parquet", "csv": ".csv", "ndjson": ".ndjson"}
_READ_ENDINGS = {**_ENDINGS, "arrow": ".arrows"}  # only inputs come as Arrow
_READ_FORMATS = {**_FORMATS, ".arrow": "arrow", ".arrows": "arrow"}


class Input:
    """An input as it was pinned at the claim: reading it twice gives the same rows."""

    def __init__(self, spec: InputSpec, attempt: Attempt, scratch: Scratch) -> None:
        self._spec, self._attempt, self._scratch = spec, attempt, scratch

    def __repr__(self) -> str:
        return f"Input({self.name!r}, {len(self.partitions)} partitions)"

    @property
    def index(self) -> int:
        return self._spec.index

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def partitions(self) -> Sequence[InputPartition]:
        return self._spec.partitions

    @property
    def columns(self) -> Sequence[Column]:
        return self._spec.columns

    @overload
    def rows(self) -> Iterator[Row]: ...

    @overload
    def rows(self, of: Type[T]) -> Iterator[T]: ...

    def rows(self, of: Any = None) -> Iterator[Any]:
        """Iterate over the rows as dicts, or as the given type, such as a dataclass.

        A number with a fraction is a float if that holds it exactly, otherwise a Decimal.
        """
        # A float rounds some numbers of these columns; elsewhere the default is faster.
        exact = _number if any(_beyond_float(c.type) for c in self.columns) or not self.columns else None
        with self._fetched("ndjson") as path, open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line, parse_float=exact)
                if of is not None:
                    try:
                        row = decode(of, row, "row")
                    except Mismatch as mismatch:
                        raise Error(f"input {self.name}, row {number}: {mismatch}") from None
                yield row
                if number % 10_000 == 0:
                    self._attempt.check()

    def csv(self) -> Iterator[Dict[str, str]]:
        """Iterate over the rows as CSV text by column."""
        with self._fetched("csv") as path, open(path, encoding="utf-8", newline="") as lines:
            yield from csv.DictReader(lines)

    def arrow(self) -> Any:
        """Return the rows as a pyarrow.Table, with exact types. The package pyarrow must be installed."""
        try:
            import pyarrow
        except ImportError:
            raise Error(f"input {self.name} as Arrow needs the package pyarrow: pip install pyarrow") from None
        with self._fetched("arrow") as path, pyarrow.OSFile(path) as file:
            with pyarrow.ipc.open_stream(file) as stream:
                return stream.read_all()

    def download(self, path: Union[str, os.PathLike[str]], format: Optional[str] = None) -> str:
        """Write the rows to a file and return its path. The format is parquet, csv, ndjson or arrow; default: by the name."""
        target = os.fspath(path)
        part = f"{target}.part"
        try:
            self._fetch(part, format or _format_of(target, _READ_FORMATS))
            os.replace(part, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(part)
        return target

    @contextlib.contextmanager
    def _fetched(self, format: str) -> Iterator[str]:
        # Through a file, so that a broken connection does no harm and none stays open while rows are processed.
        path = self._scratch.file(_READ_ENDINGS[format])
        try:
            self._fetch(path, format)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def _fetch(self, path: str, format: str) -> None:
        with open(path, "w+b") as file:
            self._attempt.transfer("GET", f"/v1/task/inputs/{self.index}?format={format}", into=file)


@dataclass
class Pending:
    """What a handler has written, emitted and enqueued and no call has committed yet."""

    files: Dict[Tuple[int, str], List[Dict[str, str]]] = field(default_factory=dict)  # by output and partition key
    events: List[Dict[str, Any]] = field(default_factory=list)
    tasks: List[Dict[str, Any]] = field(default_factory=list)

    def body(self) -> Dict[str, Any]:
        """Return the body of the protocol's call, without empty fields."""
        outputs: List[Dict[str, Any]] = []
        for (index, key), files in self.files.items():
            output: Dict[str, Any] = {"index": index}
            if key:
                output["partition_key"] = key
            if files:
                output["files"] = files
            outputs.append(output)
        found = {"outputs": outputs, "events": self.events, "tasks": self.tasks}
        return {k: v for k, v in found.items() if v}


class Output:
    """An output that the task may write. Rows become visible with a commit or the completion, not before."""

    def __init__(self, spec: OutputSpec, attempt: Attempt, scratch: Scratch, pending: Callable[[], Pending], lineage: List[Any]) -> None:
        self._spec, self._attempt, self._scratch, self._pending, self._lineage = spec, attempt, scratch, pending, lineage
        self._lock = threading.Lock()
        self._count = 0

    def __repr__(self) -> str:
        return f"Output({self.name!r})"

    @property
    def index(self) -> int:
        return self._spec.index

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def update_strategy(self) -> str:
        return self._spec.update_strategy

    def write(self, rows: Any, *, partition_key: str = "", columns: Columns = ()) -> int:
        """Write rows: dicts, dataclasses, or anything that `dagctl.encode` takes. Returns their number.

        Rows are uploaded in files of 64 MiB while the iterable is read, so they need not fit into memory. If there are
        none, the output has these columns; by default those that it had last. A mapping says their types, too:
        `columns={"id": "BIGINT", "at": "TIMESTAMPTZ"}`.

        Or write a frame: a DataFrame of pandas or polars, a LazyFrame, or a Table, RecordBatch or RecordBatchReader of
        pyarrow. Its columns have its types, also without rows; `columns` are those to write, in this order. The types of
        pandas' columns may be declared with them.
        """
        if is_frame(rows):
            return self._write_frame(rows, partition_key, columns)
        with self.writer(partition_key=partition_key, columns=columns) as writer:
            for row in rows:
                writer.write(row)
        return writer.rows

    def _write_frame(self, frame: Any, partition_key: str, columns: Columns) -> int:
        if isinstance(columns, str):
            raise TypeError("columns is a list of names, or a dict of names and types, not a text")
        if isinstance(columns, Mapping) and not is_pandas(frame):
            raise TypeError("columns of this frame is a list of names: it has types of its own; cast it")
        try:
            if is_pandas(frame):
                types, rows = pandas_rows(frame, list(columns))
                if isinstance(columns, Mapping):
                    types.update(columns)
                return self.write(rows, partition_key=partition_key, columns=types)
            count = 0
            for file, rows_of_file in parquet_files(frame, columns, lambda: self._scratch.file(".parquet")):
                self._put(file, "parquet", None, partition_key)
                os.remove(file)
                count += rows_of_file
            return count
        except Unfit as unfit:
            raise Unfit(f"output {self.name}: {unfit}") from None

    @contextlib.contextmanager
    def writer(self, *, partition_key: str = "", columns: Columns = ()) -> Iterator[RowWriter]:
        """Write rows one by one::

            with ctx.output().writer() as out:
                out.write({"id": 1})
        """
        writer = RowWriter(self, partition_key, columns)
        try:
            yield writer
            writer._finish()
        finally:
            writer._drop()

    def upload(
        self,
        file: Union[str, os.PathLike[str]],
        *,
        format: Optional[str] = None,
        name: Optional[str] = None,
        partition_key: str = "",
    ) -> None:
        """Upload a file: parquet, csv or ndjson; default: by its name. CSV needs a line of column names."""
        path = os.fspath(file)
        format = format or _format_of(path)
        if format not in _ENDINGS:
            raise ValueError(f"format {format!r} is not one of {', '.join(_ENDINGS)}")
        self._put(path, format, name, partition_key)

    def derives(self, column: str, *, input: Union[int, Input], input_column: str, transform: str = "expression") -> None:
        """Record from which input column a column is made. transform: identity, expression or aggregate."""
        self._lineage.append(
            {
                "output": self.index,
                "output_column": column,
                "input": input.index if isinstance(input, Input) else input,
                "input_column": input_column,
                "transform": transform,
            }
        )

    def _put(
        self, path: str, format: str, name: Optional[str], partition_key: str, types: Optional[Mapping[str, str]] = None
    ) -> None:
        with self._lock:
            self._count += 1
            name = name or f"{self._count:05d}{_ENDINGS[format]}"
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", name):
            raise ValueError(f"{name!r} cannot name an uploaded file: use letters, digits, dots, dashes and underscores")
        target = f"/v1/task/outputs/{self.index}/{quote(name)}?format={format}"
        if types:
            declared = [{"name": name, "type": type} for name, type in types.items()]
            target += "&columns=" + quote(json.dumps(declared, separators=(",", ":")))
        answer = self._attempt.transfer("PUT", target, body=path, media_type=_MEDIA_TYPES[format])
        told = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else None
        told = told or {}
        file = {"name": str(told.get("name") or name)}  # the server keeps text rows as Parquet under another name
        etag = told.get("etag") or answer.headers.get("etag")
        if etag:
            file["etag"] = str(etag)
        with self._lock:
            files = self._note(partition_key)
            if len(files) == MOST_FILES:
                raise Error(f"output {self.name} has {MOST_FILES} files that are not committed: call ctx.commit() in between")
            files.append(file)

    def _note(self, partition_key: str) -> List[Dict[str, str]]:
        return self._pending().files.setdefault((self.index, partition_key), [])


class RowWriter:
    """Writes rows to an output, as lines of JSON."""

    def __init__(self, output: Output, partition_key: str, columns: Columns = ()) -> None:
        if isinstance(columns, str):
            raise TypeError("columns is a list of names, or a dict of names and types, not a text")
        self.rows = 0
        self._output, self._key, self._columns = output, partition_key, columns
        self._types = columns if isinstance(columns, Mapping) else None
        self._file: Optional[IO[bytes]] = None
        self._size = 0

    def write(self, row: Any) -> None:
        value = encode(row)
        if not isinstance(value, dict):
            raise TypeError(f"a row is a dict or a dataclass, not a {type(row).__name__}")
        line = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if self._file is None:
            self._file = self._begin()
        self._file.write(line)
        self.rows += 1
        self._size += len(line)
        if self._size >= PART_BYTES:
            self._send()
        elif self.rows % 10_000 == 0:
            self._output._attempt.check()

    def _begin(self) -> IO[bytes]:
        self._size = 0
        return open(self._output._scratch.file(".ndjson"), "wb")

    def _send(self) -> None:
        assert self._file is not None
        self._file.close()
        self._output._put(self._file.name, "ndjson", None, self._key, self._types)
        self._drop()

    def _send_columns(self) -> None:
        """Name the columns of an output without rows, by a CSV file of one line."""
        path = self._output._scratch.file(".csv")
        try:
            with open(path, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(self._columns)
            self._output._put(path, "csv", None, self._key)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def _finish(self) -> None:
        if self._types and not self.rows:
            self._file = self._begin()
        if self._file is not None:
            self._send()
        elif self._columns and not self.rows:
            self._send_columns()
        elif not self.rows:
            with self._output._lock:
                self._output._note(self._key)  # an output without rows is published, too

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._file.name)
            self._file = None


@dataclass(frozen=True)
class QueryResult:
    """The rows of `ctx.query`."""

    columns: Sequence[Column]
    rows: Sequence[Tuple[Any, ...]]
    truncated: bool = False  # there are more rows

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> QueryResult:
        columns = decode(List[Column], answer.get("columns") or [], "columns")
        return cls(columns, [tuple(r) for r in answer.get("rows") or []], bool(answer.get("truncated")))

    def __iter__(self) -> Iterator[Row]:
        names = [c.name for c in self.columns]
        return (dict(zip(names, row)) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _beyond_float(column: str) -> bool:
    """Report whether a column's type has numbers with a fraction that a float may round."""
    return "JSON" in column or any(int(digits) > 15 for digits in re.findall(r"DECIMAL\((\d+),", column))


def _number(text: str) -> Union[float, decimal.Decimal]:
    exact, rounded = decimal.Decimal(text), float(text)
    return rounded if decimal.Decimal(repr(rounded)) == exact else exact


def _format_of(path: str, known: Mapping[str, str] = _FORMATS) -> str:
    ending = os.path.splitext(path)[1].lower()
    if ending not in known:
        names = ", ".join(sorted(set(known.values())))
        raise ValueError(f"{os.path.basename(path)!r} has no extension that names its format; pass format= as one of {names}")
    return known[ending]
