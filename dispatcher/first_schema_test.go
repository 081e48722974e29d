package dispatcher_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/worker/protocol"
)

// byDay is a program that writes numbers on the first day, and texts on the second.
const byDay = `request=$(cat)
cd "$(echo "$request" | sed 's/.*"dir":"\([^"]*\)".*/\1/')"
case "$request" in
*'"key":"2024-01-01"'*) printf 'id,v\n1,9\n' ;;
*) printf 'id,v\n2,x\n' ;;
esac > a.csv
`

// programOf is a job whose partitions are written by byDay.
func programOf(checks string) string {
	return dispatchertest.Edit(dispatchertest.Upkept, "operator: hook", "operator: command",
		"config: { tag: m }", "config: { argv: [sh, ./make.sh] }"+checks)
}

// A run that began while nothing stood, and ends once another partition has settled the columns, is done again: its
// text was read by other types.
func TestColumnsThatAreSettledWhileAProgramRuns(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(farDAG)
	upload := func(f far, value string) []protocol.CommittedOutput {
		return f.upload("1.parquet", "SELECT "+value+" AS v")
	}
	text, number := claimFar(w.Tenant, "daily", "a"), claimFar(w.Tenant, "daily", "b")
	_, err := text.complete(text.completed(upload(text, "'x'")), time.Now())
	require.NoError(t, err)
	state, err := number.complete(number.completed(upload(number, "1.50::DOUBLE")), time.Now())
	require.NoError(t, err)
	require.EqualValues(t, "Failed", state.Status)
	require.Equal(t, "Failed handed_back waiting:backoff", w.Task(number.id))
	require.NotContains(t, w.Published("daily"), "b")

	w.Promote(dispatchertest.Later(time.Hour))
	number = claimFarAgain(w.Tenant, number.id)
	require.Equal(t, []protocol.Column{{Name: "v", Type: "VARCHAR"}}, number.claim.Task.Outputs[0].Schema)
	_, err = number.complete(number.completed(upload(number, "'1.50'")), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"1.50"}, w.Read("far_daily")["b"])
}

// Two first runs of a program that write different columns, at the same time: what the first commits stands, and the
// other is compared with it, whether both share a transaction or not, and whether checks hold what they wrote or not.
func TestTheFirstSchemaOfAProgramStands(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		checks  string
		servers int
	}{
		"one server":                    {"", 1},
		"two servers":                   {"", 2},
		"one server, with checks":       {"\n    checks: [{ row_count: { min: 1 } }]", 1},
		"two servers, with checks":      {"\n    checks: [{ row_count: { min: 1 } }]", 2},
		"two servers, checked in tasks": {"\n    checks: [{ row_count: { min: 1 } }]", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("make.sh", byDay)
			w.Probe.Put("raw", "2024-01-01", "0")
			w.Probe.Put("raw", "2024-01-02", "0")
			w.Deploy(programOf(c.checks))
			w.Advance()
			var claimed []dispatcher.Claimed
			for len(claimed) < 2 {
				for _, task := range w.Claim(w.D) {
					if task.Job.Name == "made" {
						claimed = append(claimed, task)
						continue
					}
					dispatchertest.Execute(t.Context(), w.D, task)
				}
				w.Route()
				w.Advance()
			}
			require.Len(t, claimed, 2)

			d := []*service.Service{w.D, w.D}
			if c.servers == 2 {
				d[1] = w.Dispatcher("other")
			}
			ends := make([]error, 2)
			var both sync.WaitGroup
			var done []dispatcher.Completion
			for _, task := range claimed {
				one := w.Do(w.D, task)
				require.NoError(t, one.Outcome.Err)
				if name == "two servers, checked in tasks" {
					for i := range one.Outcome.Written {
						one.Outcome.Written[i].Checks = nil
					}
				}
				done = append(done, one)
			}
			for i, task := range claimed {
				both.Go(func() { ends[i] = d[i].CompleteAttempt(t.Context(), task, done[i], dispatchertest.Later(0)) })
			}
			both.Wait()

			lost := 0
			if ends[0] == nil {
				lost = 1
			}
			require.NoError(t, ends[1-lost])
			require.ErrorIs(t, ends[lost], dispatcher.ErrSchemaMoved)
			require.ErrorIs(t, ends[lost], dispatcher.ErrBaseMoved, "so it is handed back")
			require.NoError(t, w.D.HandBack(t.Context(), claimed[lost], "again", dispatchertest.Later(0),
				dispatchertest.Later(0)))
			w.Settle()

			// The other is done again, and fits or is refused: a number is a text, a text is no number.
			var text string
			w.Row(`SELECT coalesce(error_message, '') FROM tasks WHERE id = $1`, claimed[lost].TaskID)(&text)
			schema := dispatchertest.Texts(t, w.Pool, `SELECT
				(SELECT string_agg(concat_ws(' ', c->>'name', c->>'type'), ', ') FROM jsonb_array_elements(g.schema) AS c)
				FROM dataset_versions g JOIN dag_version_datasets s ON s.dataset_version = g.id AND s.job_name = 'made'`)
			if claimed[lost].Assignment.Partition.Key == "2024-01-02" {
				require.Contains(t, text, `partition 2024-01-02, column v: "x" does not fit BIGINT`)
				require.Equal(t, []string{"id BIGINT, v BIGINT"}, schema)
			} else {
				require.Empty(t, text)
				require.Equal(t, []string{"id BIGINT, v VARCHAR"}, schema)
			}
		})
	}
}

// A program whose CSV file has no rows yet cannot know the types of its columns. Whether it ends before a run with
// rows, after it or with it, the columns are those of the rows. A table would keep the types: there it publishes
// nothing.
func TestAFileWithoutRowsSettlesNoTypes(t *testing.T) {
	t.Parallel()
	const program = `request=$(cat)
cd "$(echo "$request" | sed 's/.*"dir":"\([^"]*\)".*/\1/')"
echo id,v > a.csv
case "$request" in *'"key":"RICH"'*) echo 1,9 >> a.csv ;; esac
`
	for _, rich := range []string{"2024-01-01", "2024-01-02"} {
		for name, c := range map[string]struct {
			steps     [][]int
			storage   string
			published int
		}{
			"rows first":            {[][]int{{1}, {0}}, "parquet", 2},
			"rows first in a table": {[][]int{{1}, {0}}, "postgres", 1},
			"rows last":             {[][]int{{0}, {1}}, "parquet", 2},
			"rows last in a table":  {[][]int{{0}, {1}}, "postgres", 1},
			"together":              {[][]int{{0, 1}}, "parquet", 2},
		} {
			t.Run(rich+" "+name, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				w.Drop("make.sh", strings.Replace(program, "RICH", rich, 1))
				w.Probe.Put("raw", "2024-01-01", "0")
				w.Probe.Put("raw", "2024-01-02", "0")
				w.Deploy(programOf("\n    storage: " + c.storage))
				w.Advance()
				claimed := make([]dispatcher.Claimed, 2) // the one without rows first
				for claimed[0].Job == nil || claimed[1].Job == nil {
					for _, task := range w.Claim(w.D) {
						switch {
						case task.Job.Name != "made":
							dispatchertest.Execute(t.Context(), w.D, task)
						case task.Assignment.Partition.Key == rich:
							claimed[1] = task
						default:
							claimed[0] = task
						}
					}
					w.Route()
					w.Advance()
				}

				done := []dispatcher.Completion{w.Do(w.D, claimed[0]), w.Do(w.D, claimed[1])}
				for _, together := range c.steps {
					var ended sync.WaitGroup
					for _, i := range together {
						ended.Go(func() {
							if w.D.CompleteAttempt(t.Context(), claimed[i], done[i], dispatchertest.Later(0)) != nil {
								_ = w.D.HandBack(t.Context(), claimed[i], "again", dispatchertest.Later(0),
									dispatchertest.Later(0))
							}
						})
					}
					ended.Wait()
				}
				w.Settle()
				require.Equal(t, []string{"id BIGINT, v BIGINT"}, dispatchertest.Texts(t, w.Pool, `SELECT
					(SELECT string_agg(concat_ws(' ', c->>'name', c->>'type'), ', ')
					 FROM jsonb_array_elements(g.schema) AS c)
					FROM dataset_versions g JOIN dag_version_datasets s ON s.dataset_version = g.id
						AND s.job_name = 'made'`))
				require.Equal(t, c.published, w.Count(`SELECT FROM partition_versions p
					JOIN dag_version_datasets s ON s.dataset_version = p.dataset_version AND s.job_name = 'made' WHERE p.state = 'Published'`))
			})
		}
	}
}
