package dispatcher_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker/protocol"
)

// thinned is raw → kept → seen. The hook of kept keeps what the test says.
var thinned = dispatchertest.Edit(dispatchertest.Upkept, "publish:\n", `  - name: seen
    operator: sql
    inputs: [{ from: { job: made } }]
    execution_strategy: PerPartition
    config: { query: "SELECT count(*)::INTEGER AS n, max(content) AS last FROM made" }
publish:
  letters_seen: { from: { job: seen } }
`)

// keep makes the job made write what it reads, unless that begins with "no".
func keep(w *dispatchertest.World) {
	w.Probe.On("made", func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		read, err := dispatchertest.Contents(ctx, t, 0)
		if err != nil || strings.HasPrefix(read[0], "no") {
			return operators.Result{Unchanged: len(read) > 0 && read[0] == "nothing new"}, err
		}
		return operators.Result{}, w.Probe.Write(ctx, t, read[0])
	})
}

func TestARunWithoutRowsEmptiesItsPartition(t *testing.T) {
	t.Parallel()
	inTables := dispatchertest.Edit(thinned, "    config: { tag: m }\n",
		"    storage: postgres\n    config: { tag: m }\n")
	for name, yaml := range map[string]string{"files": thinned, "tables": inTables} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			keep(w)
			day := dispatchertest.FirstDay
			w.Probe.Put("raw", day, "a")
			w.Serve(yaml)
			require.Equal(t, map[string][]string{day: {"a"}}, w.Read("letters_made"))

			w.Change("none")
			w.Settle()
			require.Equal(t, map[string][]string{day: {}}, w.Read("letters_made"), "no old row stays")
			require.Equal(t, map[string][]string{day: {"0,<nil>"}}, w.Read("letters_seen"), "consumers hear of it")
			require.Equal(t, []string{"published", "up_to_date"},
				dispatchertest.CodesIn(w.WhyNot("letters_made", day).Reasons))

			w.Change("nothing new")
			w.Settle()
			require.Contains(t, dispatchertest.CodesIn(w.WhyNot("letters_made", day).Reasons), "unchanged")
			require.EqualValues(t, 2, w.Published("made")[day], "the run said that nothing changes")

			w.Change("b")
			w.Settle()
			require.Equal(t, map[string][]string{day: {"b"}}, w.Read("letters_made"))

			// A new generation has the columns of the one before.
			w.Change("none")
			w.Settle()
			w.Serve(dispatchertest.Edit(yaml, "tag: m", "tag: other"))
			require.Equal(t, map[string][]string{day: {}}, w.Read("letters_made"))
			require.Equal(t, map[string][]string{day: {"0,<nil>"}}, w.Read("letters_seen"))
		})
	}
}

// Nobody knows the columns of an output that never had a row.
func TestTheFirstRunWithoutRowsPublishesNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	keep(w)
	day := dispatchertest.FirstDay
	w.Probe.Put("raw", day, "none")
	w.Serve(thinned)
	require.Empty(t, w.Read("letters_made"))
	require.Contains(t, dispatchertest.CodesIn(w.WhyNot("letters_made", day).Reasons), "unchanged")
}

func TestAppendsWithoutRowsAreNotAskedForAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	keep(w)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "    execution_strategy: PerPartition\n    config: { tag: m }\n",
		"    partition_by: none\n    update_strategy: append\n    unique_key: [content]\n    config: { tag: m }\n"))
	w.Probe.Put("raw", "2024-01-02", "none")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"a"}}, w.Read("letters_made"))

	w.Exec(`DELETE FROM tasks WHERE status = 'Completed' AND job_id IN (SELECT id FROM jobs WHERE name = 'made')`)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Zero(t, w.Attempts("made"), "what was read is on record, not only in a task that retention removes")
	require.Equal(t, map[string][]string{"all": {"a"}}, w.Read("letters_made"))
}

// What an attempt has committed on its way stays if nothing is left to write at its end.
func TestCommitsOnTheWayStayWithoutRowsAtTheEnd(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	day := dispatchertest.FirstDay
	w.Probe.On("made", func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		if t.Attempt > 1 {
			return operators.Result{}, nil
		}
		if err := w.Probe.Write(ctx, t, "on the way"); err != nil {
			return operators.Result{}, err
		}
		if _, err := t.Commit(ctx, operators.Commit{}); err != nil {
			return operators.Result{}, err
		}
		return operators.Result{}, context.DeadlineExceeded
	})
	w.Change("b")
	w.Settle()
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.Equal(t, map[string][]string{day: {"on the way"}}, w.Read("pair_made"))
}

func TestACompletionElsewhereWithoutOutputsEmptiesThem(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	_, err := f.complete(f.completed(f.upload("one.parquet", rows("x", "y"))), time.Now())
	require.NoError(t, err)
	w.Settle()

	f = claimFar(w.Tenant, "daily", "a")
	body := f.completed(nil)
	body.Unchanged = true
	_, err = f.complete(body, time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"a": {"xx", "yy"}}, w.Read("far_twice"), "unchanged keeps what is there")

	f = claimFar(w.Tenant, "daily", "a")
	body = f.completed(nil)
	body.Events = []protocol.Event{{Output: 0}}
	_, err = f.complete(body, time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"a": {"x", "y"}}, w.Read("far_daily"), "an event speaks for its output")

	f = claimFar(w.Tenant, "daily", "a")
	_, err = f.complete(f.completed(nil), time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"a": {}}, w.Read("far_daily"))
	require.Equal(t, map[string][]string{"a": {}}, w.Read("far_twice"))

	f = claimFar(w.Tenant, "feed", "")
	_, err = f.complete(f.completed(f.upload("1.parquet", rows("a"))), time.Now())
	require.NoError(t, err)
	f = claimFar(w.Tenant, "feed", "")
	_, err = f.complete(f.completed(nil), time.Now())
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"all": {"a"}}, w.Read("far_feed"), "an append without rows adds none")
	require.EqualValues(t, 1, w.Published("feed")["all"])
}

// A cursor moves over positions that have no rows, where the completion says how far it is.
func TestASegmentWithoutRows(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "chain", "")
	_, err := f.complete(f.completed(f.upload("1.parquet", "SELECT range AS height FROM range(10)")), time.Now())
	require.NoError(t, err)

	f = claimFar(w.Tenant, "chain", "")
	at, body := int64(19), f.completed(nil)
	body.Cursor = &at
	_, err = f.complete(body, time.Now())
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"0-10": 1, "10-20": 1}, w.Published("chain"))
	f = claimFar(w.Tenant, "chain", "")
	require.Equal(t, &protocol.Cursor{From: 19}, f.claim.Task.Cursor)
}

// A source that is drained has nothing new to say; that empties nothing.
func TestAnEndOfAnAlwaysOnSourceEmptiesNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	runs := 0
	w.Probe.On("feed", func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		if runs++; runs > 1 {
			return operators.Result{}, nil
		}
		return operators.Result{}, dispatchertest.CopyToParquet(ctx, "SELECT 'x' AS content",
			filepath.Join(t.OutputDirs[0], "a.parquet"))
	})
	w.Serve(`
name: live
jobs:
  - { name: feed, operator: hook, source: { kind: always_on }, retry: { initial_seconds: 60 }, config: { tag: t } }
publish:
  live_feed: { from: { job: feed } }
`)
	for range 2 {
		_, err := w.D.Sources.Supervise(t.Context(), time.Now())
		require.NoError(t, err)
		w.Work()
	}
	require.GreaterOrEqual(t, runs, 2)
	require.Equal(t, map[string][]string{"all": {"x"}}, w.Read("live_feed"))
}

// A program that writes no row empties its output, whatever files it leaves. The columns are those that it names, with
// the types that they had.
func TestAProgramWithoutRows(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	day := dispatchertest.FirstDay
	run := func(script string) {
		w.Drop("make.sh", `dir=$(sed 's/.*"dir":"\([^"]*\)".*/\1/'); cd "$dir"; `+script)
	}
	run(`printf 'content,n\na,1\n' > a.csv`)
	w.Probe.Put("raw", day, "0")
	w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "operator: hook", "operator: command", "config: { tag: m }",
		"config: { argv: [sh, ./make.sh] }"))
	require.Equal(t, map[string][]string{day: {"a,1"}}, w.Read("letters_made"))

	for i, test := range []struct{ script, columns string }{
		{"true", "content VARCHAR, n BIGINT"},
		{"touch a.ndjson b.csv", "content VARCHAR, n BIGINT"},
		{"printf 'n,content,more\n' > a.csv", "n BIGINT, content VARCHAR, more VARCHAR"},
		{"printf 'n,content\n' > a.csv; printf 'n,content\n2,b\n' > b.csv", "n BIGINT, content VARCHAR"},
		{"printf 'n,content\n' > a.csv; echo '{\"n\": 2, \"content\": \"b\"}' > b.ndjson", "n BIGINT, content VARCHAR"},
	} {
		run(test.script)
		w.Change(test.script)
		w.Settle()
		want := []string{}
		if i > 2 {
			want = []string{"2,b"}
		}
		require.Equal(t, map[string][]string{day: want}, w.Read("letters_made"), test.script)
		require.Equal(t, []string{test.columns}, dispatchertest.Texts(t, w.Pool, `SELECT
			(SELECT string_agg(concat_ws(' ', c->>'name', c->>'type'), ', ') FROM jsonb_array_elements(g.schema) AS c)
			FROM dataset_versions g JOIN dag_version_datasets s ON s.dataset_version = g.id AND s.job_name = 'made'`),
			test.script)
	}
}

// Where any input suffices, the others are empty relations with the columns of their dataset.
func TestAnInputWithoutThePartitionHasItsColumns(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml := `
name: letters
jobs:
` + dispatchertest.Raw + strings.ReplaceAll(dispatchertest.Raw, "raw", "rare") + `  - name: both
    operator: sql
    inputs: [{from: {job: raw}}, {from: {job: rare}}]
    trigger: any
    config: {query: "SELECT raw.content, rare.content AS other FROM raw FULL JOIN rare USING (content)"}
publish:
  both: {from: {job: both}}
`
	first, second, third := dispatchertest.FirstDay, "2026-01-02", "2026-01-03"
	w.Probe.Put("raw", first, "a")
	w.Probe.Put("rare", first, "a")
	w.Serve(yaml)

	w.Probe.Put("raw", second, "b")
	w.Probe.Put("rare", third, "c")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{first: {"a,a"}, second: {"b,<nil>"}, third: {"<nil>,c"}}, w.Read("both"))
}

// The partitions that a program writes have one schema, whatever each run writes.
func TestPartitionsOfAProgramHaveOneSchema(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]struct{ rows, err string }{
		`printf 'v,id\n10,2\n' > a.csv`:                        {"2,10", ""},
		`printf 'id\n2\n' > a.csv`:                             {"2,<nil>", ""},
		`echo '{"id": 2}' > a.ndjson`:                          {"2,<nil>", ""},
		`printf 'id,v\n2,1e1\n' > a.csv`:                       {"2,10", ""},
		`printf 'id,v\n2,1.5\n' > a.csv`:                       {"", `partition 2024-01-02, column v: "1.5" does not fit BIGINT`},
		`printf 'id,v\n2,x\n' > a.csv`:                         {"", `partition 2024-01-02, column v: "x" does not fit BIGINT`},
		`echo '{"id": 2, "v": true}' > a.ndjson`:               {"", `partition 2024-01-02, column v: "true" does not fit BIGINT`},
		`printf 'id,v,w\n2,1,1\n' > a.csv`:                     {"", `partition 2024-01-02: column "w" is new; the dataset has id, v`},
		`printf 'id,v\n2,1\n' > a.csv; mkdir s; touch s/a.csv`: {"", `s is not *.parquet`},
		`printf 'id,v\n2,1\n' > a.csv; touch b.CSV.txt`:        {"", `b.CSV.txt is not *.parquet`},
		`printf 'id,v\n2,1\n' > a.csv; touch _SUCCESS`:         {"2,1", ""},
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			run := func(script string) {
				w.Drop("make.sh", `dir=$(sed 's/.*"dir":"\([^"]*\)".*/\1/'); cd "$dir"; `+script)
			}
			run(`printf 'id,v\n1,9\n' > a.csv`)
			w.Probe.Put("raw", "2024-01-01", "0")
			w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "operator: hook", "operator: command",
				"config: { tag: m }", "config: { argv: [sh, ./make.sh] }"))
			run(script)
			w.Probe.Put("raw", "2024-01-02", "0")
			w.Poll()
			w.Settle()

			read := w.Read("letters_made")
			require.Equal(t, []string{"1,9"}, read["2024-01-01"])
			if want.err == "" {
				require.Equal(t, []string{want.rows}, read["2024-01-02"])
			} else {
				require.NotContains(t, read, "2024-01-02")
				var text string
				w.Row(`SELECT error_message FROM tasks WHERE id = $1`, w.TaskOf("made", "2024-01-02"))(&text)
				require.Contains(t, text, want.err)
			}
			require.Equal(t, []string{"id BIGINT, v BIGINT"}, dispatchertest.Texts(t, w.Pool, `SELECT
				(SELECT string_agg(concat_ws(' ', c->>'name', c->>'type'), ', ') FROM jsonb_array_elements(g.schema) AS c)
				FROM dataset_versions g JOIN dag_version_datasets s ON s.dataset_version = g.id AND s.job_name = 'made'`))
		})
	}
}

// Text that a program writes for a column of texts stays as it is written, also where it looks like a number.
func TestTextOfAProgramStaysText(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][]string{
		`printf 'id,v\n2,1.50\n3,007\n4,1e3\n' > a.csv`:                   {"2,1.50", "3,007", "4,1e3"},
		`printf 'V,id\nTRUE,2\n2024-01-02T00:00:00Z,3\n' > a.csv`:         {"2,TRUE", "3,2024-01-02T00:00:00Z"},
		`printf 'id,v\n2,1.50\n' > a.csv; printf 'id\n3\n' > b.csv`:       {"2,1.50", "3,<nil>"},
		`printf '{"id": 2, "v": 1.50}\n{"id": 3, "v": "1.0"}' > a.ndjson`: {"2,1.50", "3,1.0"},
		`printf 'id\n2\n' > a.csv`:                                        {"2,<nil>"},
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			run := func(script string) {
				w.Drop("make.sh", `dir=$(sed 's/.*"dir":"\([^"]*\)".*/\1/'); cd "$dir"; `+script)
			}
			run(`printf 'id,v\n1,x\n' > a.csv`)
			w.Probe.Put("raw", "2024-01-01", "0")
			w.Serve(programOf(""))
			run(script)
			w.Probe.Put("raw", "2024-01-02", "0")
			w.Poll()
			w.Settle()
			require.Equal(t, want, w.Read("letters_made")["2024-01-02"])
		})
	}
}
