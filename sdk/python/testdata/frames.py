"""A worker whose handlers write frames of the library that its environment names."""

import datetime
import decimal
import importlib
import os
import tempfile
import uuid

import dagctl

LIBRARY = os.environ["FRAMES"]
lib = importlib.import_module(LIBRARY)
worker = dagctl.Worker(runtime="python", pool_size=4)

UTC = datetime.timezone.utc
DAY = datetime.date(2026, 1, 5)
COLUMNS = {
    "z": [1, 2, None],
    "text": ["a", "007", None],
    "flag": [True, False, None],
    "share": [0.5, float("inf"), None],
    "price": [decimal.Decimal("1.50"), decimal.Decimal("12345678901234567.25"), None],
    "day": [DAY, DAY, None],
    "at": [datetime.datetime(2026, 1, 5, 9, 0, 0, 25), datetime.datetime(2026, 1, 5), None],
    "seen": [datetime.datetime(2026, 1, 5, 9, tzinfo=UTC), datetime.datetime(2026, 1, 5, tzinfo=UTC), None],
    "tags": [["x", "y"], [], None],
    "who": [{"name": "ada", "ids": [1]}, {"name": "bob", "ids": []}, None],
    "kind": ["new", "used", "new"],
}


def frame(columns):
    if LIBRARY == "pandas":
        made = lib.DataFrame(columns)
        made["z"] = made["z"].astype("Int64")
        made["kind"] = made["kind"].astype("category")
        made["seen"] = lib.to_datetime(made["seen"], utc=True)
        return made
    if LIBRARY == "polars":
        return lib.DataFrame(columns).with_columns(lib.col("kind").cast(lib.Categorical))
    return lib.table({**columns, "kind": lib.array(columns["kind"]).dictionary_encode()})


@worker.handler("all")
def all_types(ctx):
    return frame(COLUMNS)


@worker.handler("none")
def none(ctx):
    whole = frame(COLUMNS)
    return whole.slice(0, 0) if LIBRARY != "pandas" else whole[whole["z"] > 5]


@worker.handler("chosen")
def chosen(ctx):
    return {"rows": ctx.output().write(frame(COLUMNS), columns=ctx.payload)}


@worker.handler("two")
def two(ctx):
    rows = ({"id": n} for n in range(2))
    return {"frame": frame(COLUMNS), "rows": rows}


@worker.handler("table")
def table(ctx):
    return ctx.input(0).arrow()


@worker.handler("stream")
def stream(ctx):
    with tempfile.TemporaryDirectory() as folder:
        ctx.output().upload(ctx.input(0).download(os.path.join(folder, "all.arrows")))


@worker.handler("generated")
def generated(ctx):
    yield {"id": 1, "code": "007"}
    yield {"id": 2, "code": None}


@worker.handler("uploaded")
def uploaded(ctx):
    ctx.output().upload(ctx.payload)


@worker.handler("declared")
def declared(ctx):
    columns = {"id": "SMALLINT", "code": "VARCHAR", "at": "TIMESTAMPTZ"}
    ctx.output().write([{"id": 1, "code": "007"}] * ctx.payload["rows"], columns=columns)


class Thing:
    pass


PLAIN = {"a": [1, 2], "b": ["x", "y"]}
WRONG = {
    "mixed": lambda: {"a": [1, "x"]},
    "things": lambda: {"a": [Thing()]},
    "bytes": lambda: {"a": [b"x"]},
    "waits": lambda: {"a": [datetime.timedelta(1)]},
    "digits": lambda: {"a": [decimal.Decimal("9" * 39)]},
    "nested": lambda: {"a": [{"b": [1]}, {"b": ["x"]}]},
    "case": lambda: {"id": [1], "ID": [2]},
    "numbered": lambda: {0: [1]},
    "unnamed": lambda: {},
}


# What polars alone has. Int128 would come as bytes, and a zone's nanoseconds would be cut.
WRONG_IN_POLARS = {
    "waits": WRONG["waits"],
    "clock": lambda: {"a": [datetime.time(9)]},
    "huge": lambda: {"a": lib.Series([1]).cast(lib.Int128)},
    "inside": lambda: {"a": lib.Series([[1]]).cast(lib.List(lib.Datetime("ns", "UTC")))},
    "fine": lambda: {"a": lib.Series([1]).cast(lib.Datetime("ns", "UTC"))},
}


@worker.handler("wrong")
def wrong(ctx):
    if LIBRARY == "polars":
        return lib.DataFrame(WRONG_IN_POLARS[ctx.payload]())
    if ctx.payload in WRONG:
        return lib.DataFrame(WRONG[ctx.payload]())
    if ctx.payload == "index":
        return lib.DataFrame(PLAIN).groupby("b").sum()
    if ctx.payload == "twice":
        made = lib.DataFrame(PLAIN)
        made.columns = ["a", "a"]
        return made
    if ctx.payload == "fine":
        return lib.DataFrame({"at": [lib.Timestamp(2026, 1, 5), lib.Timestamp("2026-01-05 00:00:00.000000001")]})
    if ctx.payload in ("apart", "widened"):
        ctx.output().write(lib.DataFrame({"a": [1], "d": [decimal.Decimal("1.5")]}))
        ctx.output().write(lib.DataFrame({"a": ["x"] if ctx.payload == "apart" else [1.5], "d": [decimal.Decimal("1.25")]}))
        return None
    if ctx.payload == "half":
        return {"wrong": lib.DataFrame(PLAIN), "other": 1}
    return lib.DataFrame({"id": [uuid.UUID(int=1)], "n": [2**64], "f": [1.5], "gone": [None], "wide": [2**63]})


worker.run()
