package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const log = `
name: log
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv, types: { id: INTEGER, v: VARCHAR } }
  - name: all
    operator: sql
    inputs: [{ from: { job: raw } }]
    partition_by: none
    update_strategy: append
    unique_key: id
    config: { query: "SELECT id, v FROM raw" }
publish:
  log: { from: { job: all } }
`

func TestAppendReadsWhatIsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "id,v\n1,x\n2,x\n")
	w.serve(log)
	require.Equal(t, []string{"1,x", "2,x"}, w.read("log")["all"])
	w.drop("b.csv", "id,v\n3,x\n")
	w.poll()
	w.settle()
	require.Equal(t, []string{"1,x", "2,x", "3,x"}, w.read("log")["all"])
	require.Equal(t, 1, w.count(`SELECT FROM partition_inputs i JOIN dag_version_datasets s ON s.dataset_version = i.output_version AND s.job_name = 'all' WHERE i.output_revision = 2`),
		"only the new file was read")
	w.drop("b.csv", "id,v\n3,y\n4,y\n")
	w.poll()
	w.settle()
	require.Equal(t, []string{"1,x", "2,x", "3,y", "4,y"}, w.read("log")["all"], "the newer row of a key stands")
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.settle()
	require.Equal(t, 3, w.attempts("all"))
}

// Two that append at the same time: the second finds that its base has moved, and does it again without a failure.
func TestTheBaseOfAnAppendMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "id,v\n1,x\n")
	w.serve(log)
	step := func(name, content string) {
		w.drop(name, content)
		w.poll()
		w.d.execute(t.Context(), w.one(w.d))
		w.route()
	}
	step("b.csv", "id,v\n2,x\n")
	first := w.one(w.d)
	done := w.do(w.d, first)
	w.reap(later(time.Hour)) // it is thought lost
	step("c.csv", "id,v\n3,x\n")
	second := w.one(w.d)
	require.NoError(t, w.d.complete(t.Context(), second, w.do(w.d, second), later(0)))
	w.check()
	require.Equal(t, []string{"1,x", "2,x", "3,x"}, w.read("log")["all"], "it read what the first had not committed")
	refused(t, w.d.complete(t.Context(), first, done, later(0)))

	// The other way round: the base moves under a task that holds its lease.
	step("d.csv", "id,v\n4,x\n")
	held := w.one(w.d)
	done = w.do(w.d, held)
	done.outcome.Written[0].BaseRevision--
	require.ErrorIs(t, w.d.complete(t.Context(), held, done, later(0)), errBaseMoved)
	require.NoError(t, w.d.report(t.Context(), held, done, nil, false))
	var failures int
	w.row(`SELECT failures FROM tasks WHERE id = $1`, held.TaskID)(&failures)
	require.Zero(t, failures)
	w.promote(later(time.Minute))
	w.settle()
	require.Equal(t, []string{"1,x", "2,x", "3,x", "4,x"}, w.read("log")["all"])
	require.Equal(t, map[string]int64{"all": 3}, w.published("all"))
}

// What was appended and rejected leaves the way free for what comes next.
func TestAnAppendAfterARejectedOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "id,v\n1,x\n")
	w.serve(edit(log, "config: { query: \"SELECT id, v FROM raw\" }", "config: { query: \"SELECT id, v FROM raw\" }\n    checks: [{ name: good, sql: \"SELECT * FROM output WHERE v = 'bad'\" }]"))
	w.drop("b.csv", "id,v\n2,bad\n")
	w.poll()
	w.settle()
	require.Equal(t, []string{"1,x"}, w.read("log")["all"])
	w.drop("b.csv", "id,v\n2,good\n")
	w.poll()
	w.settle()
	require.Equal(t, []string{"1,x", "2,good"}, w.read("log")["all"])
	require.Equal(t, 3, w.attempts("all"))
	// Nor does it turn in circles while a revision waits for its check.
	w.drop("c.csv", "id,v\n3,x\n")
	w.poll()
	w.d.execute(t.Context(), w.one(w.d))
	w.route()
	w.d.execute(t.Context(), w.one(w.d))
	check := w.one(w.d)
	require.NotNil(t, check.check)
	w.drop("d.csv", "id,v\n4,x\n")
	w.poll()
	w.d.execute(t.Context(), w.one(w.d))
	w.route()
	w.work()
	require.LessOrEqual(t, w.attempts("all"), 5)
	w.d.execute(t.Context(), check)
	w.promote(later(time.Minute))
	w.settle()
	require.Equal(t, []string{"1,x", "2,good", "3,x", "4,x"}, w.read("log")["all"])
}
