package main

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

func TestQueryOverTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, writer)

	answer := decode[query.Answer](t, env, "query",
		"SELECT station, max(highest) AS top FROM daily_highest GROUP BY ALL ORDER BY 1")
	require.Equal(t, [][]any{{"harbour", 5.25}, {"summit", -8.0}}, answer.Rows)
	require.False(t, answer.Truncated)
	require.Equal(t, "daily_highest", answer.Datasets[0].Dataset)
	require.Equal(t, 1, answer.Datasets[0].DAGVersion)
	require.Equal(t, "station,highest\nharbour,5.25\n",
		must(t, env, "query", "FROM daily_highest ORDER BY highest DESC", "--limit", "1", "--output", "csv"))
	require.Equal(t, "n\n6\n", must(t, env, "query", `SELECT count(*) AS n FROM "readings/landing/0"`))

	arrows := filepath.Join(t.TempDir(), "highest.arrows")
	piped := must(t, env, "query", "FROM daily_highest ORDER BY highest", "--output", "arrow")
	require.Empty(t, must(t, env, "query", "FROM daily_highest ORDER BY highest", "-o", "arrow", "--file", arrows))
	stored, err := os.ReadFile(arrows)
	require.NoError(t, err)
	require.Equal(t, piped, string(stored))
	stream, err := ipc.NewReader(strings.NewReader(piped))
	require.NoError(t, err)
	require.True(t, stream.Next())
	require.Equal(t, "summit -8", stream.RecordBatch().Column(0).ValueStr(0)+" "+
		stream.RecordBatch().Column(1).ValueStr(0))
	require.Contains(t, dagctl(t, env, "query", "FROM daily_highest", "--limit", "1", "-o", "arrow").err,
		"There are more rows than")

	cut := dagctl(t, env, "query", "FROM daily_highest", "--limit", "3")
	require.Zero(t, cut.code)
	require.Contains(t, cut.err, "There are more rows than these 3")
	fromInput := dagctlWithInput(t, env, "SELECT 'a' || chr(10) || ',' AS odd, NULL AS nothing\n", "query",
		"-", "--output", "csv")
	require.Equal(t, "odd,nothing\n\"a\n,\",\n", fromInput.out)

	for _, test := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"SELECT * FROM\n  nothing"}, `there is no dataset "nothing" (line 2, column 3)`, cli.ExitFailed},
		{[]string{"SELECT nope FROM daily_highest"}, "LINE 1: SELECT nope FROM", cli.ExitFailed},
		{[]string{"SELECT 1 FROM FROM"}, "(line 1, column 15)", cli.ExitFailed},
		{[]string{"DROP TABLE daily_highest"}, "only a SELECT is allowed", cli.ExitFailed},
		{[]string{"SELECT 1; SELECT 2"}, "2 statements", cli.ExitFailed},
		{[]string{" "}, "there is no statement", cli.ExitFailed},
		{[]string{""}, "argument 1 of `dagctl query` is empty", cli.ExitFailed},
		{[]string{"SELECT 1", "--limit", "-4"}, "--limit -4 is negative", cli.ExitFailed},
		{[]string{"SELECT 1", "--limit", "20000"}, "limit 20000 is not between 1 and 10000", cli.ExitFailed},
		{[]string{"FROM daily_highest", "--at", "candidate"}, "no DAG has a candidate version", cli.ExitFailed},
		{[]string{"FROM daily_highest", "--at", "v1"}, "version v1 of which DAG?", cli.ExitFailed},
		{[]string{"FROM daily_highest", "--at", "v7", "--dag", "readings"}, "DAG readings has no version v7",
			cli.ExitFailed},
		{[]string{"FROM daily_highest", "--at", "yesterday", "--dag", "readings"}, `"yesterday" is not a moment`, cli.ExitFailed},
		{[]string{"FROM daily_highest", "--dag", "readings"}, "which version of DAG readings?", cli.ExitFailed},
		{[]string{"SELECT 1", "--output", "markdown"}, "--output", cli.ExitFailed},
		{[]string{"SELECT 1", "--file", "x"}, "--file is for --output arrow", cli.ExitFailed},
		{[]string{"SELECT 1", "-o", "arrow", "--file", "no/such/folder/x"}, "no such file", cli.ExitFailed},
		{[]string{"SELECT * FROM nothing", "-o", "arrow"}, "there is no dataset", cli.ExitFailed},
		{[]string{"SELECT 'x'::BIT AS b", "-o", "arrow"}, "", cli.ExitFailed},
	} {
		r := dagctl(t, env, append([]string{"query"}, test.args...)...)
		require.Equal(t, test.code, r.code, "%v\n%s", test.args, r.err)
		require.Contains(t, r.err, test.want, test.args)
	}
	require.Contains(t, must(t, env, "query", "SELECT count(*) AS n FROM daily_highest", "--at", "v1",
		"--dag", "readings"), "4")
}

// Before there are rows, commands say one thing to do.
func TestBeforeTheFirstRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, os.MkdirAll(filepath.Join(w.roots, "landing"), 0o700))
	w.deployReadings(t)
	env := w.env(t, writer)

	file := filepath.Join(t.TempDir(), "rows.csv")
	for _, args := range [][]string{{"query", "SELECT 1\nFROM daily_highest"},
		{"query", "FROM daily_highest", "-o", "csv"},
		{"datasets", "export", "daily_highest", "-o", file}} {
		r := dagctl(t, env, args...)
		require.NotZero(t, r.code)
		require.Contains(t, r.err, "Error: dataset daily_highest has no rows yet, and its columns are not known")
		require.Contains(t, r.err, "\nNext: `dagctl why daily_highest` says what it waits for\n")
	}
	require.NoFileExists(t, file)
	require.Contains(t, dagctl(t, env, "query", "FROM daily_highest", "--at", "v1", "--dag", "readings").err,
		"dataset daily_highest had no rows then, and its columns are not known\nNext: leave --at out")

	r := dagctl(t, env, "datasets", "preview", "daily_highest")
	require.Zero(t, r.code)
	require.Contains(t, r.err, "daily_highest has no rows: `dagctl why daily_highest` says what it waits for\n")

	days := []string{"backfill", "readings/daily", "--from", "2026-01-01", "--to", "2026-01-03"}
	require.Contains(t, dagctl(t, env, days...).err, "Nothing that readings/daily can make from 2026-01-01 to "+
		"2026-01-03 is missing; --existing all computes what is there again.\n")
	require.Contains(t, dagctl(t, env, append(days, "--existing", "all", "--dry-run")...).err, "readings/daily can "+
		"make nothing from 2026-01-01 to 2026-01-03: `dagctl why readings/daily` says what it waits for.\n")
}

func TestQueryShowsOnlyWhatTheCallerMaySee(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	missing := dagctl(t, w.env(t, reader), "query", "SELECT 1 FROM daily_lowest__")
	for caller, name := range map[string]string{reader: `"readings/landing/0"`, foreign: "daily_highest"} {
		r := dagctl(t, w.env(t, caller), "query", "SELECT 1 FROM "+name)
		require.Equal(t, cli.ExitFailed, r.code)
		require.Contains(t, r.err, "there is no dataset")
	}
	must(t, w.env(t, reader), "query", "FROM daily_highest")
	_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{role:finance}' WHERE name = 'daily_highest'`)
	require.NoError(t, err)
	for _, caller := range []string{reader, writer} {
		hidden := dagctl(t, w.env(t, caller), "query", "SELECT 1 FROM daily_highest")
		name := func(r result) string { // target and id of the request apart
			_, text, _ := strings.Cut(r.err, "Error:")
			return strings.NewReplacer("daily_highest", "X", "daily_lowest__", "X").Replace(text)
		}
		require.Equal(t, name(missing), name(hidden), "hidden is as missing")
		at := dagctl(t, w.env(t, caller), "query", "SELECT 1 FROM daily_highest", "--at", "v1", "--dag", "readings")
		require.Equal(t, cli.ExitFailed, at.code)
	}
	require.Contains(t, dagctl(t, w.env(t, reader), "query", "SELECT 1 FROM daily_lowest__", "--at", "v1", "--dag",
		"readings").err, "only writers")
	must(t, w.env(t, admin), "query", "FROM daily_highest")
}

func TestQueryIsAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	must(t, w.env(t, reader), "query", "SELECT count(*) AS secretword FROM daily_highest WHERE highest > 4711")
	dagctl(t, w.env(t, reader), "query", "SELECT station::INTEGER FROM daily_highest")
	must(t, w.env(t, writer), "query", "SELECT 1", "--output", "json")
	var list struct{ Items []authz.AuditEntry }
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/audit?action=query.run", nil, &list))
	require.Len(t, list.Items, 3)
	none, failed, count := list.Items[0], list.Items[1], list.Items[2]
	version := decode[registry.Dataset](t, w.env(t, writer), "datasets", "get", "daily_highest").Version
	require.Equal(t, []string{"token:reader", "daily_highest"}, []string{count.Actor, count.Object})
	require.JSONEq(t, `{"datasets": [{"dataset": "daily_highest", "dataset_version": "`+version.String()+`", "columns": ["highest"]}], "rows": 1}`, string(count.Detail))
	require.JSONEq(t, `{"datasets": [{"dataset": "daily_highest", "dataset_version": "`+version.String()+`", "columns": ["station"]}], "rows": 0, "failed": "invalid"}`, string(failed.Detail))
	require.JSONEq(t, `{"datasets": [], "rows": 1}`, string(none.Detail))
	must(t, w.env(t, reader), "datasets", "preview", "daily_highest", "--limit", "1")
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/audit?action=dataset.preview", nil, &list))
	require.Len(t, list.Items, 1)
	require.JSONEq(t, `{"datasets": [{"dataset": "daily_highest", "dataset_version": "`+version.String()+`", "columns": ["station", "highest"]}], "rows": 1}`, string(list.Items[0].Detail))
	var held int
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM reader_leases`).Scan(&held))
	require.Zero(t, held, "nothing is held once it is answered")
}

func TestQueryPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	post := func(caller, sql string) (int, string) {
		return w.send(t, caller, http.MethodPost, "/query", "application/x-www-form-urlencoded",
			strings.NewReader(url.Values{"sql": {sql}}.Encode()))
	}
	require.Contains(t, text(all(w.page(t, reader, "/query?sql=SELECT+1"), "textarea")[0]), "SELECT 1")
	status, body := post(reader, "SELECT station, '<script>' AS odd FROM daily_highest ORDER BY 1")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "<td>harbour</td><td>&lt;script&gt;</td>")
	require.Contains(t, body, `<a href="/datasets/daily_highest">daily_highest</a> of readings v1`)
	status, body = post(reader, "SELECT * FROM nothing")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "there is no dataset")
	require.Contains(t, body, "SELECT * FROM nothing</textarea>", "the statement is still there to be mended")
	status, _ = post(nobody, "SELECT 1")
	require.Equal(t, http.StatusUnauthorized, status)
	var links []string
	for _, a := range all(w.page(t, reader, "/datasets/daily_highest"), "a") {
		links = append(links, attribute(a, "href"))
	}
	require.Contains(t, links, "/query?sql=SELECT%20%2a%20FROM%20daily_highest%20LIMIT%20100")
}

// TestQuerySizes sends statements that are too large, and ones that are not text.
func TestQuerySizes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, test := range map[string]struct {
		body   string
		status []int
	}{
		"10 MB": {`{"sql": "SELECT 1 -- ` + strings.Repeat("x", 10<<20) + `"}`,
			[]int{http.StatusRequestEntityTooLarge, 0}},
		"200 KB": {`{"sql": "SELECT 1 -- ` + strings.Repeat("x", 200_000) + `"}`,
			[]int{http.StatusUnprocessableEntity}},
		"wide": {`{"sql": "SELECT 1 -- ` + strings.Repeat("ü", 99_000) + `"}`,
			[]int{http.StatusRequestEntityTooLarge}},
		"not UTF-8": {"{\"sql\": \"SELECT '\xff'\"}", []int{http.StatusBadRequest, http.StatusUnprocessableEntity}},
		"NUL":       {`{"sql": "SELECT '\u0000'"}`, []int{http.StatusBadRequest, http.StatusUnprocessableEntity}},
		"no SQL":    {`{}`, []int{http.StatusUnprocessableEntity}},
		"no object": {`[]`, []int{http.StatusUnprocessableEntity}},
		"deep": {`{"sql": "SELECT ` + strings.Repeat("(", 40_000) + `1"}`,
			[]int{http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge}},
	} {
		status, body := w.send(t, reader, http.MethodPost, "/v1/query", "application/json",
			strings.NewReader(test.body))
		require.Contains(t, test.status, status, "%s: %.300s", name, body)
	}
}

// A reader that closes its end of the pipe is no failure of the server, whatever is written.
func TestQueryIntoAClosedPipe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	for _, format := range []string{"arrow", "csv", "json", "yaml"} {
		reader, writer, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, reader.Close())
		var errs strings.Builder
		code := run(t.Context(), []string{"query", "SELECT 1 AS n", "-o", format}, cli.Environment{
			In: strings.NewReader(""), Out: writer, Err: &errs, Getenv: func(name string) string { return env[name] }})
		require.NoError(t, writer.Close())
		require.Equal(t, cli.ExitFailed, code, "%s: %s", format, errs.String())
		require.Contains(t, errs.String(), "broken pipe", format)
	}
}
