package duck_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
)

// write is one of the ways in which a session writes rows.
type write func(s *duck.Session, ctx context.Context, query string, to io.Writer, most duck.ArrowLimits) (
	duck.Streamed, error)

func TestTextHasTheValuesOfJSONRows(t *testing.T) {
	t.Parallel()
	const query = `SELECT true AS b, 7::TINYINT AS i, 9007199254740993 AS big, 8.0::DOUBLE AS whole, 0.1::FLOAT AS f,
		'nan'::DOUBLE AS nan, 1e300::DOUBLE AS large, 12.50::DECIMAL(9,2) AS d, 'a"b' AS t, NULL::INTEGER AS n,
		[1, NULL] AS l, {'x': 1, 'y': [2.5]} AS s, MAP {'k': 1} AS m, '{"z": 1.00}'::JSON AS j,
		INTERVAL 3 DAY AS iv, encode('é') AS bytes, DATE '2026-01-31' AS day, uuid '00000000-0000-0000-0000-000000000001'
		AS id, 170141183460469231731687303715::HUGEINT AS h`
	s := arrowSession(t)
	for _, test := range []struct {
		write write
		want  string
	}{
		{(*duck.Session).WriteCSV, "b,i,big,whole,f,nan,large,d,t,n,l,s,m,j,iv,bytes,day,id,h\n" +
			`true,7,9007199254740993,8,0.1,NaN,1e+300,12.50,"a""b",,"[1,null]","{""x"":1,""y"":[2.5]}","{""k"":1}",` +
			`"{""z"": 1.00}",3 days,\xC3\xA9,2026-01-31,00000000-0000-0000-0000-000000000001,` +
			"170141183460469231731687303715\n"},
		{(*duck.Session).WriteJSONLines, `{"b":true,"i":7,"big":"9007199254740993","whole":8,"f":0.1,"nan":"NaN",` +
			`"large":1e+300,"d":"12.50","t":"a\"b","n":null,"l":[1,null],"s":{"x":1,"y":[2.5]},"m":{"k":1},` +
			`"j":{"z":1.00},"iv":"3 days","bytes":"\\xC3\\xA9","day":"2026-01-31",` +
			`"id":"00000000-0000-0000-0000-000000000001","h":"170141183460469231731687303715"}` + "\n"},
	} {
		var out bytes.Buffer
		done, err := test.write(s, t.Context(), query, &out, duck.ArrowLimits{})
		require.NoError(t, err)
		require.Equal(t, test.want, out.String())
		require.EqualValues(t, 1, done.Rows)
		require.Equal(t, "HUGEINT", done.Columns[18].Type)
	}

	var out bytes.Buffer
	done, err := s.WriteCSV(t.Context(), "SELECT range AS n FROM range(100000)", &out, duck.ArrowLimits{Rows: 3})
	require.NoError(t, err)
	require.True(t, done.Truncated)
	require.Equal(t, "n\n0\n1\n2\n", out.String())
}

// Parquet has each value, or the column is refused before a byte is written.
func TestParquetHasOddTypesOrRefusesThem(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "odd.parquet")
	s, err := duck.Open(t.Context(), duck.Config{AllowedPaths: []string{file}, Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	for expression, want := range map[string]string{
		"INTERVAL 3 DAY":                     "has a type that Parquet lacks",
		"[INTERVAL 3 DAY]":                   "has a type that Parquet lacks",
		"'101'::BIT":                         "Arrow has no type",
		"TIMETZ '12:00:00+02'":               "Arrow has no type",
		"'a'::ENUM ('a', 'b')":               "",
		"uuid()":                             "",
		"'{\"a\": 1}'::JSON":                 "",
		"[1, NULL]":                          "",
		"{'x': {'y': 1}}":                    "",
		"MAP {'k': [1]}":                     "",
		"18446744073709551615::UBIGINT":      "",
		"1::HUGEINT":                         "",
		"TIMESTAMP '2026-01-31 12:00:00'":    "",
		"TIMESTAMP_S '2026-01-31 12:00:00'":  "",
		"TIMESTAMP_MS '2026-01-31 12:00:00'": "",
		"TIMESTAMP_NS '2026-01-31 12:00:00'": "",
		"TIMESTAMPTZ '2026-01-31 12:00:00Z'": "",
		"TIME '12:00:00'":                    "",
		"'x'::BLOB":                          "",
		"NULL":                               "",
	} {
		var out bytes.Buffer
		_, err := s.WriteParquet(t.Context(), "SELECT "+expression+" AS odd", &out, duck.ArrowLimits{})
		if want != "" {
			require.ErrorContains(t, err, want, expression)
			continue
		}
		require.NoError(t, err, expression)
		require.NoError(t, os.WriteFile(file, out.Bytes(), 0o600))
		var rows int64
		require.NoError(t, s.Value(t.Context(), &rows, "SELECT count(odd IS NULL) FROM '"+file+"'"), expression)
		require.EqualValues(t, 1, rows, expression)
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	ask := func(query string) [][]any {
		shown, of := duck.ShownOf(query)
		statement, err := s.Parse(t.Context(), of)
		require.NoError(t, err, query)
		view, err := s.View(t.Context(), statement)
		require.NoError(t, err, query)
		asked, err := s.Show(t.Context(), shown, view)
		require.NoError(t, err, query)
		_, rows, err := duck.JSONRows(t.Context(), s, asked, 100, 0)
		require.NoError(t, err, query)
		return rows
	}
	require.Equal(t, [][]any{{"n", "BIGINT"}, {"it's", "VARCHAR"}},
		ask("-- what is it?\n describe SELECT range AS n, 'x' AS \"it's\" FROM range(3)"))

	rows := ask(`SUMMARIZE SELECT * FROM (VALUES (1.0::DOUBLE, 'a', DATE '2026-01-01', [1], 1e200::DOUBLE),
		('nan', 'b', DATE '2026-01-03', NULL, 1), ('inf', NULL, NULL, NULL, 2), (3, NULL, NULL, NULL, 3)) AS v (x, t, d,
		l, huge)`)
	require.Len(t, rows, 5)
	require.Equal(t, []any{"x", "DOUBLE", "1.0", "nan", int64(4), "2.0", "1.4142135623730951"}, rows[0][:7])
	require.Equal(t, []any{int64(4), "0.00"}, rows[0][10:])
	require.Equal(t, []any{"t", "VARCHAR", "a", "b"}, rows[1][:4])
	require.Equal(t, "50.00", rows[1][11])
	require.Equal(t, []any{nil, nil}, rows[4][5:7], "numbers that have no mean are no error")
	require.Empty(t, ask("SUMMARIZE SELECT 1 AS n WHERE false")[0][2])

	for query, want := range map[string]string{
		"DESCRIBE sales":         "             FROM sales",
		"SUMMARIZE FROM sales":   "          FROM sales",
		"SELECT * FROM describe": "SELECT * FROM describe",
	} {
		shown, of := duck.ShownOf(query)
		require.Equal(t, query == "SELECT * FROM describe", shown == duck.ShownRows, query)
		require.Contains(t, want, of[max(0, len(of)-10):], query)
	}

	_, of := duck.ShownOf("DESCRIBE (SUMMARIZE SELECT 1)")
	_, err := s.Parse(t.Context(), of)
	require.True(t, fault.Is(err, fault.Invalid), err)
}
