package storage_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// TestTablesKeepOrder reads rows in the order of the query that made them, whatever Postgres did meanwhile.
func TestTablesKeepOrder(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "all")
	query := "SELECT hash(range) AS h, repeat('x', (range %% 50)::INTEGER) AS v FROM range(%d) ORDER BY h"
	publish(t, s, pool, a, 1, fmt.Sprintf(query, 3000))
	a.Task = uuid.New()
	p := publish(t, s, pool, a, 2, fmt.Sprintf(query, 7000)) // into the space of dead rows, too
	_, err := pool.Exec(t.Context(), "VACUUM data_acme._revisions")
	require.NoError(t, err)

	for revision := int64(3); revision < 6; revision++ {
		a.Task = uuid.New()
		p = publish(t, s, pool, a, revision, fmt.Sprintf(query, 7000))
		table := "data_acme._g_" + strings.ReplaceAll(a.Generation.Version.String(), "-", "")
		_, err := pool.Exec(t.Context(), "VACUUM "+table)
		require.NoError(t, err)
	}
	files, err := s.Open(t.Context(), a.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, content(t, "SELECT * FROM FILES", parquet(t, fmt.Sprintf(query, 7000))),
		content(t, "SELECT * FROM FILES", files[0]...))

	_, rows, err := s.Preview(t.Context(), a.Generation, []storage.Partition{p}, 2, 6998)
	require.NoError(t, err)
	require.Len(t, rows, 2)
}

// TestTablesKeepAppendedOrder reads appended rows in the order in which each key was last written, as from files.
func TestTablesKeepAppendedOrder(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "all")
	a.Generation.UniqueKey = []string{"k"}
	publish(t, s, pool, a, 1, "SELECT unnest([5, 3, 4, 1, 3]) AS k, 'old' AS v")
	a.Task = uuid.New()
	p := publish(t, s, pool, a, 2, "SELECT unnest([9, 4, 2]) AS k, 'new' AS v")
	files, err := s.Open(t.Context(), a.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "ks INTEGER[]\n{'ks': [5, 1, 3, 9, 4, 2]}\n", content(t, "SELECT list(k) AS ks FROM FILES",
		files[0]...))
}

// TestTablesExactValues reads back values at the edges of every type.
func TestTablesExactValues(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	exact := []string{
		"true", "(-128)::TINYINT", "255::UTINYINT", "(-32768)::SMALLINT", "65535::USMALLINT", "4294967295::UINTEGER",
		"9223372036854775807::BIGINT", "(-9223372036854775808)::BIGINT", "18446744073709551615::UBIGINT",
		"(-99999999999999999999999999999999999999)::HUGEINT", "0::DECIMAL(38,38)", "(-0.00001234)::DECIMAL(20,10)",
		"10000.0001::DECIMAL(12,4)", "100000000::DECIMAL(18,0)", "(-0.5)::DECIMAL(4,1)",
		"12345678901234567890.1234567::DECIMAL(38,10)", "0.1::FLOAT", "'-0'::FLOAT", "'nan'::FLOAT", "'-inf'::DOUBLE",
		"'-0'::DOUBLE", "5e-324::DOUBLE", "1.7976931348623157e308::DOUBLE",
		`E'a\rb'`, `E'\r\n'`, `E'\\N'`, "''", `'"'`, "'é😀'", `E'\x01\x7f'`,
		`'\x00\xFF\x5C'::BLOB`, "''::BLOB", "DATE '0044-03-15 (BC)'", "'infinity'::DATE", "'-infinity'::DATE",
		"DATE '4714-11-24 (BC)'", "DATE '9999-12-31'", "TIME '24:00:00'", "TIME '12:34:56.789012'",
		"TIMESTAMP '0044-03-15 (BC) 01:02:03.000001'", "'infinity'::TIMESTAMP", "'-infinity'::TIMESTAMPTZ",
		"TIMESTAMP '290000-01-01 00:00:00'", "TIMESTAMPTZ '0044-03-15 (BC) 00:00:00.123456+00'",
		"TIMESTAMPTZ '1969-12-31 23:59:59.999999+00'", "'2024-01-01 01:02:03.123456'::TIMESTAMP_NS",
		"'-infinity'::TIMESTAMP_NS", "INTERVAL '1 year 2 days 3.123 seconds'", "INTERVAL '100000 days 1193 hours'",
		"'6e1b9b3c-6d31-4e1a-8c0f-0a8f3a1b2c3d'::UUID", "'fe1b9b3c-6d31-4e1a-8c0f-0a8f3a1b2c3d'::UUID",
		`E'{"b":  1.12345678901234567890,\n "a": 1E400, "b": "\\u0000"}'::JSON`, "'null'::JSON", "NULL",

		"[12345678901234567890.1234567::DECIMAL(38,10), 0.10, NULL]", "[99999999999999999999999999::HUGEINT]",
		"{'d': 12345678901234567890.1234567::DECIMAL(38,10), 'u': 18446744073709551615::UBIGINT}",
		"['nan'::DOUBLE, 'inf'::DOUBLE, '-inf'::DOUBLE, '-0'::DOUBLE, 1e308::DOUBLE, 5e-324::DOUBLE, NULL, 0, 1]",
		"['nan'::FLOAT, 0.1::FLOAT, 3.4028235e38::FLOAT, '-0'::FLOAT]", "[9223372036854775807, -9223372036854775808]",
		`['\x00\xFF\x5C\x22'::BLOB, ''::BLOB, NULL]`, `[E'a\r\n"\\', '', '\u0000', 'null', NULL, '-1', '[1]', 'é']`,
		"MAP {'z': 1, 'a': NULL, '': 3, '1': 4}", "MAP {3: 'c', 1: 'a'}", "MAP {}::MAP(VARCHAR, INTEGER)",
		"MAP {DATE '0044-03-15 (BC)': [1.10::DECIMAL(38,20)]}", `MAP {'\x00"'::BLOB: {'b': 2, 'a': 1}}`,
		"MAP {'b': MAP {'z': 'nan'::DOUBLE, 'a': 1.5}, 'a': MAP {}}", "MAP {0.1::DOUBLE: true, 'nan'::DOUBLE: false}",
		"[MAP {'z': 1, 'a': 2}]", "{'m': MAP {'z': 1, 'a': 2}, 'Ä b\"': 'x''y', '%s %[1]d': [1]}",
		`[E'{"b":  1.12345678901234567890, "a": 1}'::JSON, 'null'::JSON, NULL]`,
		"{'a': NULL::INTEGER, 'b': NULL::VARCHAR}",
		"NULL::STRUCT(a INTEGER)",
		"[{'a': NULL::INTEGER}, NULL]", "[[], NULL, [NULL]]::INTEGER[][]", "[]::VARCHAR[]",
		"[DATE '0044-03-15 (BC)', 'infinity'::DATE]", "[TIMESTAMP '0044-03-15 (BC) 01:02:03', 'infinity'::TIMESTAMP]",
		"[TIMESTAMPTZ '2024-01-31 12:34:56.123456+02']", "['2024-01-01 01:02:03.123456789'::TIMESTAMP_NS]",
		"[TIME '24:00:00']", "[INTERVAL '1 year 2 days 3.123 seconds']",
		"['6e1b9b3c-6d31-4e1a-8c0f-0a8f3a1b2c3d'::UUID]",
		"[true, false, NULL]",
	}
	values := make([]string, len(exact))
	for i, v := range exact {
		values[i] = fmt.Sprintf("%s AS c%d", v, i)
	}
	// The values, a row of NULLs, and the values again
	query := "WITH one AS (SELECT " + strings.Join(values, ", ") + ") FROM one UNION ALL (SELECT * EXCLUDE (extra) " +
		"FROM (FROM one LIMIT 0) RIGHT JOIN (SELECT 1 AS extra) ON true) UNION ALL FROM one"

	a := attempt(storage.Postgres, "all")
	p := publish(t, s, pool, a, 1, query)
	files, err := s.Open(t.Context(), a.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)
	original := parquet(t, query)
	for i, value := range exact {
		column := fmt.Sprintf("SELECT c%d AS v FROM FILES", i)
		require.Equal(t, content(t, column, original), content(t, column, files[0]...), value)
	}
}

// TestTablesRefuseValues refuses what Postgres cannot hold before it is published, and names the column.
func TestTablesRefuseValues(t *testing.T) {
	t.Parallel()
	s, _ := openTables(t)
	for value, says := range map[string]string{
		"chr(0)": "the character NUL", "['a' || chr(0)]": "the character NUL", `[E'\\' || chr(0)]`: "the character NUL",
		"MAP {chr(0): 1}":                               "the character NUL",
		"DATE '4714-11-23 (BC)'":                        "before 4714-11-24 BC",
		"DATE '5881580-07-10'":                          "after the last one",
		"TIMESTAMP '4715-01-01 (BC) 00:00:00'":          "before 4714-11-24 BC",
		"'2024-01-01 01:02:03.123456789'::TIMESTAMP_NS": "finer than microseconds",
		"row(1, 2)":                           "postgres storage has no type for STRUCT(INTEGER, INTEGER)",
		"MAP {[1]: 2}":                        "postgres storage has no type for MAP(INTEGER[], INTEGER)",
		"'POINT(1 2)'::GEOMETRY('OGC:CRS84')": "postgres storage has no type for GEOMETRY",
	} {
		file := parquet(t, "SELECT 1 AS n, "+value+" AS v")
		_, err := s.Seal(t.Context(), attempt(storage.Postgres, "all"), []string{file})
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", value, err)
		require.ErrorContains(t, err, `column "v"`, value)
		require.ErrorContains(t, err, says, value)
		require.Contains(t, fault.Text(err), "; write ", value)
	}
}
