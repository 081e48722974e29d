package dispatcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
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
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n2,x\n")
	w.Serve(log)
	require.Equal(t, []string{"1,x", "2,x"}, w.Read("log")["all"])
	w.Drop("b.csv", "id,v\n3,x\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x", "2,x", "3,x"}, w.Read("log")["all"])
	require.Equal(t, 1, w.Count(`SELECT FROM partition_inputs i
		JOIN dag_version_datasets s ON s.dataset_version = i.output_version AND s.job_name = 'all'
		WHERE i.output_revision = 2`),
		"only the new file was read")
	w.Drop("b.csv", "id,v\n3,y\n4,y\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x", "2,x", "3,y", "4,y"}, w.Read("log")["all"], "the newer row of a key stands")
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, 3, w.Attempts("all"))
}

// What remains of an input whose partition is purged with everything downstream is appended again; what a person purges
// alone stays away.
func TestAnAppendBeginsAnewWithoutWhatIsPurged(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Drop("b.csv", "id,v\n2,x\n")
	w.Serve(log)
	purge := func(dataset, key string, downstream bool) {
		_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, dataset, upkeep.PurgeRequest{Reason: "erasure request 17",
			From: key, To: key, Downstream: downstream, BreakWindow: true}, time.Now())
		require.NoError(t, err)
		require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
		w.Settle()
	}

	purge("log/raw/0", "b", true)
	require.Equal(t, []string{"1,x"}, w.Read("log")["all"])
	attempts := w.Attempts("all")
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, attempts, w.Attempts("all"))
	w.Drop("c.csv", "id,v\n3,x\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x", "3,x"}, w.Read("log")["all"])

	purge("log", "all", false)
	require.Empty(t, w.Read("log"))
}

// Two tasks append at the same time: the second finds that its base has moved, and appends again without a failure.
func TestTheBaseOfAnAppendMoved(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Serve(log)
	step := func(name, content string) {
		w.Drop(name, content)
		w.Poll()
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
	}
	step("b.csv", "id,v\n2,x\n")
	first := w.One(w.D)
	done := w.Do(w.D, first)
	w.Reap(dispatchertest.Later(time.Hour)) // takes its lease back
	step("c.csv", "id,v\n3,x\n")
	second := w.One(w.D)
	require.NoError(t, w.D.CompleteAttempt(t.Context(), second, w.Do(w.D, second), dispatchertest.Later(0)))
	w.Check()
	require.Equal(t, []string{"1,x", "2,x", "3,x"}, w.Read("log")["all"], "it read what the first had not committed")
	dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), first, done, dispatchertest.Later(0)))

	// The other way round: the base moves under a task that holds its lease.
	step("d.csv", "id,v\n4,x\n")
	held := w.One(w.D)
	done = w.Do(w.D, held)
	done.Outcome.Written[0].BaseRevision--
	require.ErrorIs(t, w.D.CompleteAttempt(t.Context(), held, done, dispatchertest.Later(0)), dispatcher.ErrBaseMoved)
	require.NoError(t, w.D.Report(t.Context(), held, done, nil, false))
	var failures int
	w.Row(`SELECT failures FROM tasks WHERE id = $1`, held.TaskID)(&failures)
	require.Zero(t, failures)
	w.Promote(dispatchertest.Later(time.Minute))
	w.Settle()
	require.Equal(t, []string{"1,x", "2,x", "3,x", "4,x"}, w.Read("log")["all"])
	require.Equal(t, map[string]int64{"all": 3}, w.Published("all"))
}

// An appended revision that is rejected does not block the next one.
func TestAnAppendAfterARejectedOne(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Serve(dispatchertest.Edit(log, "config: { query: \"SELECT id, v FROM raw\" }",
		"config: { query: \"SELECT id, v FROM raw\" }\n"+
			"    checks: [{ name: good, sql: \"SELECT * FROM output WHERE v = 'bad'\" }]"))
	w.Drop("b.csv", "id,v\n2,bad\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x"}, w.Read("log")["all"])
	w.Drop("b.csv", "id,v\n2,good\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x", "2,good"}, w.Read("log")["all"])
	require.Equal(t, 3, w.Attempts("all"))
	// The task is not repeated in a loop while a revision waits for its check.
	w.Drop("c.csv", "id,v\n3,x\n")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	w.Route()
	w.Unchecked(w.One(w.D))
	check := w.One(w.D)
	require.NotNil(t, check.Check)
	w.Drop("d.csv", "id,v\n4,x\n")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	w.Route()
	w.Work()
	require.LessOrEqual(t, w.Attempts("all"), 5)
	dispatchertest.Execute(t.Context(), w.D, check)
	w.Promote(dispatchertest.Later(time.Minute))
	w.Settle()
	require.Equal(t, []string{"1,x", "2,good", "3,x", "4,x"}, w.Read("log")["all"])
}

// checkedLog is log, with a check that refuses the value bad.
var checkedLog = dispatchertest.Edit(log, "config: { query: \"SELECT id, v FROM raw\" }",
	"config: { query: \"SELECT id, v FROM raw\" }\n"+
		"    checks: [{ name: good, sql: \"SELECT * FROM output WHERE v = 'bad'\" }]")

// Rows that a check rejected come back with the next update: they and it wait for the check, and nothing is lost.
func TestRejectedAppendsWaitWithWhatComesNext(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Serve(checkedLog)
	drop := func(name, content string) {
		w.Drop(name, content)
		w.Poll()
		w.Settle()
	}
	drop("b.csv", "id,v\n2,bad\n")
	require.Equal(t, []string{"1,x"}, w.Read("log")["all"])
	attempts := w.Attempts("all")
	w.Settle()
	require.Equal(t, attempts, w.Attempts("all"), "it is not repeated")

	drop("c.csv", "id,v\n3,x\n")
	require.Equal(t, []string{"1,x"}, w.Read("log")["all"], "it waits with the rejected rows")
	drop("b.csv", "id,v\n2,good\n")
	require.Equal(t, []string{"1,x", "2,good", "3,x"}, w.Read("log")["all"])
}

// withRejected returns a world with checkedLog, where a rejected row and a good one wait.
func withRejected(t *testing.T) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Serve(checkedLog)
	for _, row := range []string{"2,bad", "3,x"} {
		w.Drop(row+".csv", "id,v\n"+row+"\n")
		w.Poll()
		w.Settle()
	}
	return w
}

// A person who accepts a rejected append accepts all that waited with it.
func TestAnAcceptedAppendHasAllThatWaited(t *testing.T) {
	t.Parallel()
	w := withRejected(t)
	_, err := w.D.Control.Accept(t.Context(), w.Caller, "log", control.DecideRequest{Partition: "all", Reason: "fine"})
	require.NoError(t, err)
	require.Equal(t, []string{"1,x", "2,bad", "3,x"}, w.Read("log")["all"])
	w.Settle()
	require.Equal(t, []string{"1,x", "2,bad", "3,x"}, w.Read("log")["all"])
}

// Without its check, what it had rejected is served.
func TestAnAppendWithoutTheCheckThatRejectedIt(t *testing.T) {
	t.Parallel()
	w := withRejected(t)
	w.Serve(log)
	w.Drop("4.csv", "id,v\n4,x\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x", "2,bad", "3,x", "4,x"}, w.Read("log")["all"])
}

// An update that was under way when another one was rejected does not leave the rejected rows behind.
func TestARejectedAppendIsTriedAgainOnTopOfTheNext(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Serve(checkedLog)
	start := func(name, content string) dispatcher.Claimed {
		w.Drop(name, content)
		w.Poll()
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
		return w.One(w.D)
	}
	first := start("b.csv", "id,v\n2,bad\n")
	w.Unchecked(first)
	check := w.One(w.D)
	require.NotNil(t, check.Check)
	second := start("c.csv", "id,v\n3,x\n")
	done := w.Do(w.D, second)
	dispatchertest.Execute(t.Context(), w.D, check)
	require.NoError(t, w.D.CompleteAttempt(t.Context(), second, done, dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, []string{"1,x", "3,x"}, w.Read("log")["all"])
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	d, err := w.D.Registry.Dataset(t.Context(), w.Caller, "log")
	require.NoError(t, err)
	require.Len(t, d.Withheld, 1, "the rejected rows were tried again")
	w.Drop("b.csv", "id,v\n2,good\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,x", "2,good", "3,x"}, w.Read("log")["all"])
}
