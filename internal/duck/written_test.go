package duck_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

func anyPath(t *testing.T) *duck.Session {
	t.Helper()
	s, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// written writes a query's rows, and returns types and values as they are read.
func written(t *testing.T, s *duck.Session, query string) ([]duck.Column, string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "part.parquet")
	if _, err := s.CopyToParquet(t.Context(), query, file); err != nil {
		return nil, "", err
	}
	from := "SELECT * FROM " + duck.ReadParquet([]string{file})
	columns, err := s.Describe(t.Context(), from)
	require.NoError(t, err)
	var text string
	require.NoError(t, s.Value(t.Context(), &text, "SELECT string_agg(CAST(v AS VARCHAR), ';') FROM ("+from+") AS v"))
	return columns, text, nil
}

// TestWrittenTypes writes values at the edges of every type, and reads them back.
func TestWrittenTypes(t *testing.T) {
	t.Parallel()
	s := anyPath(t)
	for _, test := range []struct{ value, wants, text string }{ // wants and text: of the value itself if empty
		{value: "true"}, {value: "(-128)::TINYINT"}, {value: "255::UTINYINT"}, {value: "(-32768)::SMALLINT"},
		{value: "65535::USMALLINT"}, {value: "(-2147483648)::INTEGER"}, {value: "4294967295::UINTEGER"},
		{value: "9223372036854775807::BIGINT"}, {value: "18446744073709551615::UBIGINT"},
		{value: "170141183460469231::HUGEINT", wants: "DECIMAL(38,0)"},
		{value: "99999999999999999999999999999999999999::HUGEINT", wants: "DECIMAL(38,0)"},
		{value: "(-99999999999999999999999999999999999999)::HUGEINT", wants: "DECIMAL(38,0)"},
		{value: "9007199254740993::UHUGEINT", wants: "DECIMAL(38,0)"},
		{value: "NULL::HUGEINT", wants: "DECIMAL(38,0)"},
		{value: "[9007199254740993::HUGEINT, NULL]", wants: "DECIMAL(38,0)[]"},
		{value: "{'a b': 9007199254740993::UHUGEINT, 'c': [[1::HUGEINT]]}",
			wants: `STRUCT("a b" DECIMAL(38,0), c DECIMAL(38,0)[][])`},
		{value: "MAP {9007199254740993::HUGEINT: 1::HUGEINT, 0::HUGEINT: NULL}",
			wants: "MAP(DECIMAL(38,0), DECIMAL(38,0))"},
		{value: "(SELECT sum(x) FROM (VALUES (9007199254740993::BIGINT), (9007199254740993::BIGINT)) AS t(x))",
			wants: "DECIMAL(38,0)"},
		{value: "0.1::FLOAT"}, {value: "'-0'::DOUBLE"}, {value: "'nan'::DOUBLE"}, {value: "'-inf'::FLOAT"},
		{value: "1.5::DECIMAL(4,1)"}, {value: "12345678901234567890123456789012345678::DECIMAL(38,0)"},
		{value: `E'a\r\n"b'`}, {value: "chr(0)"}, {value: `'\x00\xFF'::BLOB`},
		{value: "DATE '0044-03-15 (BC)'"}, {value: "'infinity'::DATE"}, {value: "TIME '24:00:00'"},
		{value: "TIMESTAMP '0044-03-15 (BC) 01:02:03.000001'"}, {value: "'-infinity'::TIMESTAMP"},
		{value: "'infinity'::TIMESTAMPTZ"}, {value: "TIMESTAMPTZ '0044-03-15 (BC) 00:00:00+00'"},
		{value: "'2024-01-01 01:02:03.123456789'::TIMESTAMP_NS"}, {value: "'infinity'::TIMESTAMP_NS"},
		{value: "'2024-01-01 01:02:03'::TIMESTAMP_S", wants: "TIMESTAMP"},
		{value: "'-infinity'::TIMESTAMP_S", wants: "TIMESTAMP"},
		{value: "'2024-01-01 01:02:03.123'::TIMESTAMP_MS", wants: "TIMESTAMP"},
		{value: "['2024-01-01 01:02:03'::TIMESTAMP_S]", wants: "TIMESTAMP[]"},
		{value: "INTERVAL '1 year 2 days 3.123 seconds'"}, {value: "INTERVAL '100000 days 1193 hours'"},
		{value: "[INTERVAL '1 month', NULL]"}, {value: "NULL::INTERVAL"}, {value: "{'a': NULL::INTERVAL}"},
		{value: "MAP {INTERVAL '1 day': [INTERVAL '1 day']}"},
		{value: "'6e1b9b3c-6d31-4e1a-8c0f-0a8f3a1b2c3d'::UUID"}, {value: `'{"a":  1.12345678901234567890}'::JSON`},
		{value: `[' {"a":  1} '::JSON]`}, {value: "NULL", wants: "INTEGER"}, {value: "[NULL]", wants: "INTEGER[]"},
		{value: "[]::INTEGER[]"}, {value: "[1, 2]::INTEGER[2]", wants: "INTEGER[]"},
		{value: "[[1, 2]]::INTEGER[2][]", wants: "INTEGER[][]"},
		{value: "{'a': 1, 'B': [NULL, {'c': DATE '2024-01-31'}]}"},
		{value: "NULL::STRUCT(a INTEGER)"}, {value: "{'a': NULL::INTEGER}"},
		{value: "row(1, TIMESTAMPTZ '2024-01-01')"},
		{value: "MAP {'z': 1, 'a': NULL}"}, {value: "MAP {}::MAP(VARCHAR, INTEGER)"}, {value: "MAP {[1]: {'x': 1}}"},
		{value: `{'X"y': 1, 'select': 2, 'é': 3, 'timestamp': TIMESTAMPTZ '2024-01-01'}`},
		{value: "'POINT(1 2)'::GEOMETRY('OGC:CRS84')"},
	} {
		query := "SELECT " + test.value + ` AS "the v"`
		columns, err := s.Describe(t.Context(), query)
		require.NoError(t, err, test.value)
		want := columns[0]
		if test.wants != "" {
			want.Type = test.wants
		}
		says, err := sqltext.Written(columns[0])
		require.NoError(t, err, test.value)
		require.Equal(t, want, says, test.value)

		var text string
		require.NoError(t, s.Value(t.Context(), &text, "SELECT CAST(v AS VARCHAR) FROM ("+query+") AS v"))
		got, values, err := written(t, s, query)
		require.NoError(t, err, test.value)
		require.Equal(t, []duck.Column{want}, got, test.value)
		require.Equal(t, text, values, test.value)
	}
}

// TestWrittenRefuses refuses types and values that would be changed, by the name of their column.
func TestWrittenRefuses(t *testing.T) {
	t.Parallel()
	s := anyPath(t)
	nines := strings.Repeat("9", 36)
	sum := func(as, of, more string) string {
		return fmt.Sprintf("(SELECT %s FROM (SELECT unnest([%s, %s]) AS x))", as, of, more)
	}
	for value, says := range map[string][2]string{
		"'12:34:56+02'::TIMETZ":                                    {"type TIME WITH TIME ZONE cannot", `write CAST("v" AS VARCHAR) AS "v"`},
		"TIME_NS '12:34:56.123456789'":                             {"type TIME_NS cannot", `CAST("v" AS VARCHAR)`},
		"'0101'::BIT":                                              {"type BIT cannot", `CAST("v" AS VARCHAR)`},
		"12::BIGNUM":                                               {"type BIGNUM cannot", `CAST("v" AS VARCHAR)`},
		"'a'::ENUM('a', 'it''s')":                                  {"type ENUM('a', 'it''s') cannot", `CAST("v" AS VARCHAR)`},
		"'x'::VARIANT":                                             {"type VARIANT cannot", `CAST("v" AS JSON)`},
		"'POINT(1 2)'::GEOMETRY":                                   {"type GEOMETRY cannot", `CAST("v" AS VARCHAR)`},
		"union_value(a := 1)":                                      {"type UNION(", `CAST("v" AS VARCHAR)`},
		"[{'a': union_value(b := 1), 'c': 1}]":                     {"type UNION(", `CAST("v" AS STRUCT(a VARCHAR, c INTEGER)[])`},
		"MAP {1::HUGEINT: '12:00+02'::TIMETZ}":                     {"type TIME WITH", `CAST("v" AS MAP(DECIMAL(38,0), VARCHAR))`},
		"170141183460469231731687303715884105727":                  {"HUGEINT that does not fit DECIMAL(38,0)", `CAST("v" AS VARCHAR)`},
		"[1, 170141183460469231731687303715884105]":                {"", ""}, // fits
		"[1, 170141183460469231731687303715884105727]":             {"does not fit DECIMAL(38,0)[]", `CAST("v" AS DOUBLE)`},
		"{'a': 340282366920938463463374607431768211455::UHUGEINT}": {"does not fit STRUCT(", `CAST("v" AS VARCHAR)`},
		sum("sum(x)", "'"+nines+"99'::DECIMAL(38,0)", "1"):         {"more than 38 digits", `CAST("v" AS DOUBLE)`},
		sum("[sum(x)]", "'"+nines+".99'::DECIMAL(38,2)", "0.01"):   {"more than 38 digits", ""},
		"'-" + nines + "99'::DECIMAL(38,0)":                        {"", ""}, // fits
		"'0.99" + nines + "'::DECIMAL(38,38)":                      {"", ""},
		"INTERVAL '1 microsecond'":                                 {"an INTERVAL that cannot be stored", `CAST("v" AS VARCHAR)`},
		"INTERVAL '-1 day'":                                        {"an INTERVAL that cannot", ""},
		"INTERVAL '1 month -1 day'":                                {"an INTERVAL that cannot", ""},
		"INTERVAL '2000 hours'":                                    {"an INTERVAL that cannot", ""},
		"[NULL, INTERVAL '1 microsecond']":                         {"an INTERVAL that cannot", ""},
		"{'a': {'b': INTERVAL '1 microsecond'}}":                   {"an INTERVAL that cannot", ""},
		"MAP {1: [INTERVAL '1 microsecond']}":                      {"an INTERVAL that cannot", ""},
	} {
		query := fmt.Sprintf("SELECT 1 AS first, %s AS v FROM range(3)", value)
		_, _, err := written(t, s, query)
		if says[0] == "" {
			require.NoError(t, err, value)
			continue
		}
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", value, err)
		require.ErrorContains(t, err, `column "v"`, value)
		require.ErrorContains(t, err, says[0], value)
		require.Contains(t, fault.Text(err), says[1], value)
	}
}

func TestLinesOfJSONAreExact(t *testing.T) {
	t.Parallel()
	s := anyPath(t)
	for query, want := range map[string]string{
		"SELECT 12345678901234567890.1234::DECIMAL(38,4) AS d, 9007199254740993 AS b, 99999999999999999999::HUGEINT AS h": `{"d":12345678901234567890.1234,"b":9007199254740993,"h":99999999999999999999}`,
		`SELECT E'{"x":\n 1.12345678901234567890}'::JSON AS j, 1 AS "k""é", NULL AS n`:                                    `{"j":{"x":  1.12345678901234567890},"k\"é":1,"n":null}`,
		`SELECT [{'j': '1e400'::JSON, 't': E'a,"\r\nb'}] AS l, 'not json'::VARCHAR AS t`:                                  `{"l":[{"j":1e400,"t":"a,\"\r\nb"}],"t":"not json"}`,
		"SELECT 'nan'::DOUBLE AS a, ['-inf'::FLOAT, 1.5] AS b":                                                            `{"a":NaN,"b":[-Infinity,1.5]}`,
		"SELECT 'nan'::DOUBLE AS a, ['-inf'::FLOAT, 1.5] AS b, '1'::JSON AS j":                                            `{"a":NaN,"b":[-Infinity,1.5],"j":1}`,
		`SELECT MAP {'z': '1.10'::JSON, 'a': NULL} AS m, []::JSON[] AS e`:                                                 `{"m":{"z":1.10,"a":null},"e":[]}`,
	} {
		file := filepath.Join(t.TempDir(), "rows.ndjson")
		require.NoError(t, s.CopyTo(t.Context(), query, file, "ndjson"))
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want+"\n", string(text))
	}
}
