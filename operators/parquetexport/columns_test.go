package parquetexport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Another reader than DuckDB finds the types that all readers know.
func TestColumnsForOthers(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		w.run(t, w.task(t, "a", 1, `SELECT true AS b, 1::TINYINT AS i8, 255::UTINYINT AS u8, 65535::USMALLINT AS u16,
			4294967295::UINTEGER AS u32, 18446744073709551615::UBIGINT AS u64, 1.5::FLOAT AS f, 'nan'::DOUBLE AS nan,
			0.10::DECIMAL(38,2) AS d, 'ü"' AS s, '\xFF'::BLOB AS x, DATE '0001-01-01' AS dd,
			TIME '23:59:59.999999' AS time, TIMESTAMP '2024-02-29 23:59:59.999999' AS ts,
			TIMESTAMPTZ '2024-03-31 01:30:00+00' AS tz, '2024-01-01 00:00:00.000001'::TIMESTAMP_NS AS ns,
			'6f1e7d0c-0000-4000-8000-000000000001'::UUID AS id, '{"a": 1.0}'::JSON AS j, INTERVAL '1 day' AS iv,
			[1::UTINYINT, NULL] AS l, {'a': '6f1e7d0c-0000-4000-8000-000000000001'::UUID, 'B "c"': [TIME '00:00']} AS st,
			MAP {'k': 1::UBIGINT} AS m, NULL::INTEGER AS none`, nil))
		lines, schema := rows(t, w.content(t, "a", wholeName))
		require.Equal(t, []string{`true | 1 | 255 | 65535 | 4294967295 | 18446744073709551615 | 1.5 | NaN | 0.1 | ü" | ` +
			`/w== | 0001-01-01 | 23:59:59.999999 | 2024-02-29T23:59:59.999999 | 2024-03-31T01:30:00Z | ` +
			`2024-01-01T00:00:00.000001 | 6f1e7d0c-0000-4000-8000-000000000001 | {"a": 1.0} | 1 day | [1,null] | ` +
			`{"B \"c\"":["00:00:00"],"a":"6f1e7d0c-0000-4000-8000-000000000001"} | [{"key":"k","value":"1"}] | (null)`},
			lines)
		for _, column := range []string{"i8: type=int8", "u8: type=int16", "u16: type=int32", "u32: type=int64",
			"u64: type=decimal(20, 0)", "d: type=decimal(38, 2)", "dd: type=date32", "time: type=utf8",
			"ts: type=timestamp[us]", "tz: type=timestamp[us, tz=UTC]", "ns: type=timestamp[us]", "id: type=utf8",
			"j: type=utf8", "iv: type=utf8"} {
			require.Contains(t, schema, column)
		}
	})
}

func TestValuesThatOthersDoNotHold(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		for query, why := range map[string]string{
			"SELECT DATE 'infinity' AS d":                                  `column "d" has an infinite time, in 1 of the rows`,
			"SELECT TIMESTAMPTZ '-infinity' AS \"a\"\"b\" FROM range(2)":   "has an infinite time, in 2 of the rows",
			"SELECT '2024-01-01 00:00:00.000000001'::TIMESTAMP_NS AS ns":   `column "ns" has a time with nanoseconds`,
			"SELECT ['2024-01-01 00:00:00.000000001'::TIMESTAMP_NS] AS ns": `column "ns" has a time with nanoseconds`,
			"SELECT 'POINT (1 2)'::GEOMETRY('OGC:CRS84') AS g":             "is a geometry",
			`SELECT 1 AS "DAY"`: `column "DAY" is in the rows, and`,
		} {
			w.fails(t, w.task(t, "a", 1, query, nil), why)
		}
		require.Nil(t, w.content(t, "a", manifestName))
	})
}
