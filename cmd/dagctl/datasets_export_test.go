package main

import (
	"bytes"
	"encoding/csv"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

func TestDatasetsExport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env, dir := w.env(t, reader), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	read := func(name string) string {
		text, err := os.ReadFile(at(name))
		require.NoError(t, err)
		return string(text)
	}

	done := dagctl(t, env, "datasets", "export", "daily_highest", "-o", at("all.csv"))
	require.Zero(t, done.code, done.err)
	require.Contains(t, done.err, "4 rows in "+at("all.csv"))
	rows, err := csv.NewReader(strings.NewReader(read("all.csv"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 5)
	require.Equal(t, []string{"harbour", "5.25"}, rows[1])
	must(t, env, "datasets", "export", "daily_highest", "-o", at("some.jsonl"), "--where", "highest > 0 -- warm",
		"--partition", "2026-01-02")
	require.Equal(t, `{"station":"harbour","highest":5.25}`+"\n", read("some.jsonl"))
	must(t, env, "datasets", "export", "daily_highest", "-o", at("all.parquet"), "--partition", "2026-01-01..")
	parquet, err := file.NewParquetReader(strings.NewReader(read("all.parquet")))
	require.NoError(t, err)
	require.EqualValues(t, 4, parquet.NumRows())
	stream, err := ipc.NewReader(strings.NewReader(must(t, env, "datasets", "export", "daily_highest", "-o", "-",
		"--format", "arrow")))
	require.NoError(t, err)
	require.True(t, stream.Next())
	require.EqualValues(t, 4, stream.RecordBatch().NumRows())

	// A link is followed, and a file keeps its mode; a failure leaves what was there.
	require.NoError(t, os.WriteFile(at("real.csv"), []byte("old"), 0o600))
	require.NoError(t, os.Symlink("real.csv", at("link.csv")))
	require.NotZero(t, dagctl(t, env, "datasets", "export", "daily_highest", "-o", at("link.csv"), "--where",
		"error('no')").code)
	require.Equal(t, "old", read("real.csv"))
	must(t, env, "datasets", "export", "daily_highest", "-o", at("link.csv"))
	require.Equal(t, read("all.csv"), read("real.csv"))
	info, err := os.Lstat(at("link.csv"))
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
	info, err = os.Stat(at("real.csv"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	left, err := filepath.Glob(at(".*"))
	require.NoError(t, err)
	require.Empty(t, left, "no partial file is left")

	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"daily_highest", "-o", at("x.txt")}, "does not say its format"},
		{[]string{"daily_highest", "-o", "-"}, "has no name that says the format"},
		{[]string{"daily_highest", "-o", at("x"), "--format", "xlsx"}, `--format "xlsx" is not known`},
		{[]string{"daily_highest", "-o", dir, "--format", "csv"}, "is a folder"},
		{[]string{"daily_highest", "-o", at("no/x.csv")}, "no such file"},
		{[]string{"daily_highest"}, "--output is missing"},
		{[]string{"nothing", "-o", at("x.csv")}, "there is no dataset"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--partition", "2030-01-01"}, "has no partition"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--partition", `"2026-01-01"`}, `has no partition "\"2026-01-01\""`},
		{[]string{"daily_highest", "-o", at("x.csv"), "--partition", "b..a"}, "ends before it begins"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where", "nope > 1"}, "nope"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where", "true); SELECT (1"}, `syntax error at or near ")"`},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where", "false) UNION ALL (SELECT 'x', 1"},
			`syntax error at or near ")"`},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where", "true GROUP BY ALL"}, "syntax error"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where", ""}, "--where is empty"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--partition", ""}, "--partition is empty"},
		{[]string{"daily_highest", "-o", at("none/x.csv")}, at("none/x.csv")},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where",
			"station IN (SELECT station FROM \"readings/landing/0\")"}, "reads other datasets"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--where", "read_text('/etc/passwd') IS NULL"}, "read_text"},
		{[]string{"daily_highest", "-o", at("x.csv"), "--at", "v1"}, "only writers"},
	} {
		r := dagctl(t, env, append([]string{"datasets", "export"}, test.args...)...)
		require.Equal(t, cli.ExitFailed, r.code, "%v\n%s", test.args, r.err)
		require.Contains(t, r.err, test.want, test.args)
	}
	require.NoFileExists(t, at("x.csv"))
	must(t, w.env(t, writer), "datasets", "export", "daily_highest", "-o", at("v1.csv"), "--at", "v1")
	must(t, w.env(t, writer), "datasets", "export", "readings/landing/0", "-o", at("hidden.csv"))
	require.Contains(t, dagctl(t, w.env(t, foreign), "datasets", "export", "daily_highest", "-o", at("x.csv")).err,
		"there is no dataset")
	_, err = w.pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{role:finance}' WHERE name = 'daily_highest'`)
	require.NoError(t, err)
	require.Contains(t, dagctl(t, env, "datasets", "export", "daily_highest", "-o", at("x.csv")).err,
		"there is no dataset")
}

// An export is one audited query, however it ends, and holds nothing afterwards.
func TestExportsAreAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, reader)
	must(t, env, "datasets", "export", "daily_highest", "-o", "-", "--format", "csv", "--where", "highest > 471108.25")
	dagctl(t, env, "query", "SELECT nope FROM daily_highest", "-o", "csv")

	body := `{"sql": "SELECT a.range AS n, d.station FROM range(1000000000) a, daily_highest d", "format": "csv"}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/query/export",
		strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+w.tokens[reader])
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	_, err = io.CopyN(io.Discard, response.Body, 3<<20)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())

	var list struct{ Items []authz.AuditEntry }
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/audit?action=query.run", nil, &list))
	require.Len(t, list.Items, 3)
	require.Contains(t, string(list.Items[0].Detail), `"station"`)
	require.NotContains(t, string(list.Items[0].Detail), "failed")
	require.Contains(t, string(list.Items[1].Detail), `"failed"`)
	require.Contains(t, string(list.Items[2].Detail), `"highest"`)
	require.NotContains(t, string(list.Items[2].Detail), "471108.25", "the log has no statements")
	eventually(t, "nothing is held", func() (bool, error) {
		var held int
		err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM reader_leases`).Scan(&held)
		return held == 0, err
	})
}

func TestQueryStreamsAllRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env, dir := w.env(t, reader), t.TempDir()
	const many = "SELECT range AS n FROM range(25000)"
	require.Equal(t, 25_001, strings.Count(must(t, env, "query", many, "-o", "csv"), "\n"))
	require.Equal(t, 25_000, strings.Count(must(t, env, "query", many, "-o", "ndjson"), "\n"))
	cut := dagctl(t, env, "query", many, "-o", "csv", "--limit", "20000")
	require.Equal(t, 20_001, strings.Count(cut.out, "\n"))
	require.Contains(t, cut.err, "There are more rows than these 20000")
	require.Contains(t, dagctl(t, env, "query", many, "--limit", "0").err, "--limit 0 shows nothing")

	sql := filepath.Join(dir, "n.sql")
	require.NoError(t, os.WriteFile(sql, []byte("-- a comment\nSELECT 42 AS n\n"), 0o600))
	require.Equal(t, "n\n42\n", must(t, env, "query", "-f", sql, "-o", "csv"))
	require.Equal(t, "n\n42\n", dagctlWithInput(t, env, "SELECT 42 AS n", "query", "-f", "-", "-o", "csv").out)
	latin1, large := filepath.Join(dir, "latin1.sql"), filepath.Join(dir, "large.sql")
	require.NoError(t, os.WriteFile(latin1, []byte("SELECT\n'Sk\u00e5ne', 'caf\xe9'"), 0o600))
	require.NoError(t, os.WriteFile(large, []byte("SELECT 1"+strings.Repeat(" ", 100_000)), 0o600))
	for want, args := range map[string][]string{
		"there are two statements": {"SELECT 1", "-f", sql},
		"no such file":             {"-f", sql + "x"},
		"latin1.sql is not UTF-8 text (line 2, column 14)": {"-f", latin1},
		"the statement is not UTF-8 text (line 1":          {"SELECT '\xe9'"},
		"large.sql has more than the 100000 bytes":         {"-f", large},
		"name its file with -f":                            {},
	} {
		require.Contains(t, dagctl(t, env, append([]string{"query"}, args...)...).err, want)
	}

	require.Equal(t, "column_name,column_type\nstation,VARCHAR\nhighest,DOUBLE\n",
		must(t, env, "query", "DESCRIBE daily_highest", "-o", "csv"))
	summary := must(t, env, "query", "SUMMARIZE FROM daily_highest", "-o", "csv")
	require.True(t, strings.HasPrefix(summary, "column_name,column_type,min,max,approx_unique,avg,std,q25,q50,q75,"+
		"count,null_percentage\nstation,VARCHAR,harbour,summit,2,"), summary)
	require.Contains(t, must(t, env, "query", "SUMMARIZE SELECT unnest(['nan', 'inf', '1'])::DOUBLE AS x"), "nan")
	require.Contains(t, dagctl(t, env, "query", `DESCRIBE "readings/landing/0"`).err, "there is no dataset")
	require.Contains(t, dagctl(t, env, "query", "SELECT * FROM (SUMMARIZE daily_highest)").err, "not allowed")
	require.Equal(t, "station,highest\nharbour,5.25\n",
		must(t, env, "datasets", "preview", "daily_highest", "--limit", "1", "-o", "csv"))
	require.True(t, bytes.HasPrefix([]byte(must(t, env, "query", "SELECT 1 AS n", "-o", "parquet")), []byte("PAR1")))
	require.Contains(t, dagctl(t, env, "query", "SELECT INTERVAL 1 DAY AS i", "-o", "parquet").err,
		`column "i" has a type that Parquet lacks`)
}
