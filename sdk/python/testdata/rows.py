"""A worker whose handlers write rows in files of a few bytes, and pass on what they read."""

import decimal
import os
import tempfile

import dagctl
from dagctl import rows

rows.PART_BYTES = 40

worker = dagctl.Worker(runtime="python", pool_size=4)

PARTS = {
    "numbers": [{"i": n} for n in range(12)] + [{"i": 1.5}],
    "fields": [{"i": n} for n in range(12)] + [{"i": 12, "more": "x"}],
    "dates": [{"day": "2026-01-05"}] * 4 + [{"day": "n/a"}],
    "decimals": [{"d": decimal.Decimal("1.10")}] * 6 + [{"d": 2}, {"d": decimal.Decimal("0.125")}],
    "nothing": [{"i": None, "t": "x"}] * 4 + [{"i": 1, "t": "x"}],
}


@worker.handler("parts")
def parts(ctx):
    if ctx.payload == "writes":
        ctx.output().write([{"i": 1, "t": "x"}])
        ctx.output().write([{"t": "y", "f": 0.5}])
        return
    with ctx.output().writer() as out:
        for row in PARTS[ctx.payload]:
            out.write(row)


@worker.handler("made")
def made(ctx):
    columns = {"x": "DOUBLE", "d": "DECIMAL(20,2)"}
    exact = decimal.Decimal("12345678901234567.25")
    found = [{"x": float("nan"), "d": exact}, {"x": float("-inf"), "d": 2}, {"x": 0.5, "d": 0.25}]
    ctx.output().write(found, columns=columns)


@worker.handler("passed")
def passed(ctx):
    return (row for row in ctx.input("made").rows())


@worker.handler("loaded")
def loaded(ctx):
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("ndjson", "parquet"):
            ctx.output(ending).upload(ctx.input("made").download(os.path.join(folder, f"rows.{ending}")))


@worker.handler("listed")
def listed(ctx):
    found = ctx.query("SELECT d, _partition AS p FROM made WHERE _partition > '' ORDER BY ALL DESC")
    return [dict(zip(("d", "p"), row)) for row in found.rows]


worker.run()
