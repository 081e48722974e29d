// Writes frames of Polars as Parquet files into a folder: all.parquet with a column of each type that a dataset has,
// none.parquet with the same columns and no rows, and for each type that it does not have a file with a column "a".
import { join } from "node:path"
import pl from "nodejs-polars"

const { DataType: is } = pl
const folder = process.argv[2]

const series = (values, type) => pl.Series("", values, type)
const cast = (values, type) => series(values).cast(type) // of texts
const counts = (values, type) => cast(values, is.Int64).cast(type)

const second = "1767603600" // 2026-01-05 09:00 in UTC
const berlin = "Europe/Berlin"

const all = {
	i8: series([-128, 127, null], is.Int8),
	i16: series([-32768, 32767, null], is.Int16),
	i32: series([-2147483648, 2147483647, null], is.Int32),
	i64: cast(["-9223372036854775808", "9223372036854775807", null], is.Int64),
	u8: series([0, 255, null], is.UInt8),
	u16: series([0, 65535, null], is.UInt16),
	u32: series([0, 4294967295, null], is.UInt32),
	u64: cast(["0", "18446744073709551615", null], is.UInt64),
	f32: series([0.5, -Infinity, null], is.Float32),
	f64: series([NaN, Infinity, null], is.Float64),
	flag: series([true, false, null]),
	text: series(["a", "", null]),
	kind: cast(["new", "used", null], is.Categorical),
	day: counts(["20458", "-1", null], is.Date),
	ms: counts([second + "025", "-1", null], is.Datetime("ms")),
	us: counts([second + "000025", "-1", null], is.Datetime("us")),
	ns: counts([second + "000000025", "-1", null], is.Datetime("ns")),
	ms_zoned: counts([second + "025", "-1", null], is.Datetime("ms", berlin)),
	us_zoned: counts([second + "000025", "-1", null], is.Datetime("us", berlin)),
	price: cast(["1.50", "-12345678901234567.25", null], is.Decimal(38, 2)),
	small: cast(["1.5", "-0.25", null], is.Decimal(9, 2)),
	tags: series([["x", null], [], null]),
	pair: series([[1, 2], [3, 4], null]).cast(is.FixedSizeList(is.Int64, 2)),
	who: series([{ name: "ada", ids: [1] }, { name: null, ids: [] }, { name: "bob", ids: [2, 3] }]),
}
const others = {
	time: counts(["32400000025000", "0", null], is.Time),
	duration: counts(["1", "2", null], is.Duration("us")),
	ns_zoned: counts([second + "000025000", "-1000", null], is.Datetime("ns", berlin)),
	ns_zoned_fine: counts([second + "000000025", "-1", null], is.Datetime("ns", berlin)),
}
// Types that the package has in SQL alone.
const casts = { binary: "n::BLOB", hugeint: "n::HUGEINT", uhugeint: "n::UHUGEINT", untyped: "NULL" }

const write = (frame, name) => frame.writeParquet(join(folder, name + ".parquet"))

const frame = pl.DataFrame(Object.entries(all).map(([name, column]) => column.alias(name)))
write(frame, "all")
write(frame.slice(0, 0), "none")
for (const [name, column] of Object.entries(others)) write(pl.DataFrame([column.alias("a")]), name)

const sql = pl.SQLContext({ numbers: pl.DataFrame({ n: ["1", "2", null] }) })
for (const [name, value] of Object.entries(casts)) {
	write(sql.execute(`SELECT ${value} AS a FROM numbers`).collectSync(), name)
}
