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
from .columns import Columns, chosen
from .errors import Error
from .frames import Unfit, is_frame, is_pandas, pandas_rows, parquet_files
from .protocol import MOST_FILES, Column, InputPartition, InputSpec, OutputSpec
from .rows import Part, RowWriter, agree, all_types, decimal_types, differ, discard, joined
from .scratch import Scratch
from .typed import Mismatch, decode

T = TypeVar("T")
Row = Dict[str, Any]

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}
_MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv", "ndjson": "application/x-ndjson"}
_ENDINGS = {"parquet": ".parquet", "csv": ".csv", "ndjson": ".ndjson"}
_READ_ENDINGS = {**_ENDINGS, "arrow": ".arrows"}
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
    parts: Dict[Tuple[int, str], List[Part]] = field(default_factory=dict)  # those of them that are rows
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

    def write(self, rows: Any, *, partition_key: str = "", columns: Optional[Columns] = None) -> int:
        """Write rows: dicts, dataclasses, or anything that `dagctl.encode` takes. Returns their number.

        `columns` are those to write, in this order, also if there are no rows. By default they are those of the rows;
        without rows, those that the output had last. A mapping says their types, too:
        `columns={"id": "BIGINT", "at": "TIMESTAMPTZ"}`. Other types are those that the values show, of all rows that
        are committed together.

        Rows are uploaded in files of 64 MiB while the iterable is read, so they need not fit into memory. They stay on
        the disk until they are committed, where it has the room, and are uploaded once more, in one file, if those
        files turn out to have other types.

        Or write a frame: a DataFrame of pandas or polars, a LazyFrame, or a Table, RecordBatch or RecordBatchReader of
        pyarrow. Its columns have its types, also without rows. The types of pandas' columns may be declared.
        """
        wanted = chosen(columns)
        if is_frame(rows):
            return self._write_frame(rows, partition_key, wanted)
        return self._write_rows(rows, RowWriter(self, partition_key, wanted))

    @staticmethod
    def _write_rows(rows: Iterable[Any], writer: RowWriter) -> int:
        try:
            for row in rows:
                writer.write(row)
            writer._finish()
        finally:
            writer._drop()
        return writer.rows

    def _write_frame(self, frame: Any, partition_key: str, columns: Columns) -> int:
        if isinstance(columns, Mapping) and not is_pandas(frame):
            raise TypeError("columns of this frame is a list of names: it has types of its own; cast it")
        try:
            if is_pandas(frame):
                types, rows = pandas_rows(frame, list(columns))
                if isinstance(columns, Mapping):
                    types.update(columns)
                return self._write_rows(rows, RowWriter(self, partition_key, types, shown=True))
            count = 0
            for file, rows_of_file in parquet_files(frame, columns, lambda: self._scratch.file(".parquet")):
                self._put(file, "parquet", None, partition_key)
                os.remove(file)
                count += rows_of_file
            return count
        except Unfit as unfit:
            raise Unfit(f"output {self.name}: {unfit}") from None

    @contextlib.contextmanager
    def writer(self, *, partition_key: str = "", columns: Optional[Columns] = None) -> Iterator[RowWriter]:
        """Write rows one by one::

            with ctx.output().writer() as out:
                out.write({"id": 1})
        """
        writer = RowWriter(self, partition_key, chosen(columns))
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
        """Upload a file: parquet, csv, ndjson or arrow; default: by its name. CSV needs a line of column names.

        Arrow is a stream of its IPC format. The package pyarrow must be installed for it.
        """
        path = os.fspath(file)
        format = format or _format_of(path, _READ_FORMATS)
        if format not in _READ_ENDINGS:
            raise ValueError(f"format {format!r} is not one of {', '.join(_READ_ENDINGS)}")
        if format == "arrow":
            return self._upload_arrow(path, name, partition_key)
        self._put(path, format, name, partition_key)

    def _upload_arrow(self, path: str, name: Optional[str], partition_key: str) -> None:
        if name is not None:
            raise ValueError("Arrow is uploaded as Parquet, under names of its own: leave the name out")
        try:
            import pyarrow
        except ImportError:
            raise Error(f"output {self.name} from Arrow needs the package pyarrow: pip install pyarrow; or upload Parquet") from None
        with pyarrow.OSFile(path) as file, pyarrow.ipc.open_stream(file) as stream:
            self._write_frame(stream, partition_key, ())

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
    ) -> Tuple[Dict[str, str], Any]:
        """Upload a file. Return it as a commit names it, and the columns that the server tells of it."""
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
        return file, told.get("columns")

    def _put_rows(self, part: Part, partition_key: str) -> None:
        """Upload a file of rows, and keep it until the commit."""
        part.file, part.columns = self._put(part.path, "ndjson", None, partition_key, part.types)
        with self._lock:
            self._pending().parts.setdefault((self.index, partition_key), []).append(part)

    def _settle(self) -> None:
        """Upload the rows of a commit once more, as one file, where its files have different columns."""
        pending = self._pending()
        for key, parts in list(pending.parts.items()):
            if key[0] != self.index:
                continue
            with self._lock:
                del pending.parts[key]
            try:
                if differ(parts):
                    self._put_together(parts, pending.files[key], key[1])
            finally:
                discard(parts)

    def _put_together(self, parts: List[Part], files: List[Dict[str, str]], partition_key: str) -> None:
        try:
            agree(parts)
            types = all_types(parts)
            path = joined(parts)
            types.update(decimal_types(path, {name for p in parts for name in p.decimals}))
        except Unfit as unfit:
            raise Unfit(f"output {self.name}: {unfit}") from None
        with self._lock:
            files[:] = [f for f in files if all(f is not p.file for p in parts)]
        self._put(path, "ndjson", None, partition_key, types)

    def _note(self, partition_key: str) -> List[Dict[str, str]]:
        return self._pending().files.setdefault((self.index, partition_key), [])


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


def _format_of(path: str, known: Mapping[str, str]) -> str:
    ending = os.path.splitext(path)[1].lower()
    if ending not in known:
        names = ", ".join(sorted(set(known.values())))
        raise ValueError(f"{os.path.basename(path)!r} has no extension that names its format; pass format= as one of {names}")
    return known[ending]
