package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// next gives raw new content and claims the task of good that reads it.
func next(w *dispatchertest.World, content string) dispatcher.Claimed {
	w.T.Helper()
	w.Settle()
	w.Probe.Put("raw", "2024-01-01", content)
	w.Poll()
	dispatchertest.Execute(w.T.Context(), w.D, w.One(w.D))
	w.Route()
	return w.One(w.D)
}

// checksOf lists the outcomes of the checks of a job's revisions, with the kind of the task that ran them.
func checksOf(w *dispatchertest.World, job string) []string {
	return dispatchertest.Texts(w.T, w.Pool, `
		SELECT concat_ws(' ', c.revision, p.state, c.name, c.severity, c.outcome, c.failures, t.kind)
		FROM check_results c JOIN partition_versions p USING (dataset_version, partition_key, revision)
		JOIN tasks t ON t.id = c.task_id JOIN jobs j ON j.id = t.job_id
		WHERE j.name = '`+job+`' ORDER BY c.revision, c.name`)
}

// checkTasks counts the check tasks there ever were.
func checkTasks(w *dispatchertest.World) int {
	return w.Count(`SELECT FROM tasks WHERE kind = 'check'`)
}

// both has a check that holds revisions back and one that only warns.
var both = dispatchertest.Edit(dispatchertest.Checked, "    checks:\n",
	"    checks:\n      - { name: tiny, severity: warn, sql: \"SELECT * FROM output WHERE n > 1\" }\n")

// A completion decides over the revisions that its run has checked: it publishes or rejects them, and no check task is
// made.
func TestARunChecksWhatItWrites(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	served := w.Serve(both)
	dispatchertest.Execute(t.Context(), w.D, next(w, "ab"))
	require.Equal(t, []string{"ab,2"}, w.Read("checked_good")["2024-01-01"])
	dispatchertest.Execute(t.Context(), w.D, next(w, "toolong"))
	require.Equal(t, []string{"ab,2"}, w.Read("checked_good")["2024-01-01"])
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"2"}}, w.Read("checked_count"))

	require.Zero(t, checkTasks(w))
	require.Equal(t, []string{
		"1 Replaced short error pass 0 build", "1 Replaced tiny warn pass 0 build",
		"2 Published short error pass 0 reactive", "2 Published tiny warn fail 1 reactive",
		"3 Rejected short error fail 1 reactive", "3 Rejected tiny warn fail 1 reactive",
	}, checksOf(w, "good"))
	require.Equal(t, []string{"Published", "Published", "Rejected"}, dispatchertest.Texts(t, w.Pool, `
		SELECT t.outputs -> 0 ->> 'state' FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'good' ORDER BY t.id`))

	passed := dispatchertest.Texts(t, w.Pool, `SELECT cardinality(passed_checks)::text FROM partition_versions
		WHERE dataset_version = '`+w.Generation(served.Version.ID, "good").String()+`' ORDER BY revision`)
	require.Equal(t, []string{"2", "1", "0"}, passed, "by hash")
}

// A completion whose attempt lost its lease or was overtaken stores no outcome.
func TestOutcomesGoWithTheirCompletion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Checked)
	results := w.Count(`SELECT FROM check_results`)

	late := next(w, "ab")
	done := w.Do(w.D, late)
	require.NotEmpty(t, done.Outcome.Written[0].Checks)
	w.Exec(`UPDATE leases SET expires_at = now() - interval '1 s' WHERE task_id = $1`, late.TaskID)
	w.Reap(time.Now())
	w.Promote(dispatchertest.Later(time.Hour))
	again := w.One(w.D)
	require.Equal(t, late.TaskID, again.TaskID)
	dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), late, done, time.Now()))
	require.Equal(t, results, w.Count(`SELECT FROM check_results`))

	// The other attempt commits, twice by the same report.
	done = w.Do(w.D, again)
	for range 2 {
		require.NoError(t, w.D.CompleteAttempt(t.Context(), again, done, time.Now()))
		require.Equal(t, results+1, w.Count(`SELECT FROM check_results`))
	}
	require.Equal(t, []string{"ab,2"}, w.Read("checked_good")["2024-01-01"])
	require.Zero(t, checkTasks(w))
}

// A check that cannot run because of the data has the outcome error, and holds the revision back.
func TestARunWithACheckThatCannotRun(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	v := w.Deploy(dispatchertest.Edit(dispatchertest.Checked, "WHERE n > 3", "WHERE content::INTEGER > 3"))
	w.Settle()
	status, reason := w.Status(v.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "short: ")
	require.Contains(t, reason, "INT32")
	require.Equal(t, []string{"1 Rejected short error error 0 build"}, checksOf(w, "good"))
}

// shortCheck is the check of Checked.
const shortCheck = `    checks:
      - { name: short, sql: "SELECT * FROM output WHERE n > 3" }
`

// Checks of the version that serves by now decide, not those of the version whose task has run.
func TestARunThatOutlastsItsVersion(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after string
		first, last   []string
	}{
		"a stricter check": {dispatchertest.Checked, dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 2"),
			[]string{"a,1"}, []string{"a,1"}},
		"a milder check": {dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 2"), dispatchertest.Checked,
			[]string{"a,1"}, []string{"abc,3"}},
		"from warn to error": {dispatchertest.Edit(dispatchertest.Checked, "{ name: short,",
			"{ name: short, severity: warn,", "n > 3", "n > 2"),
			dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 2"),
			[]string{"a,1"}, []string{"a,1"}},
		"a first check": {dispatchertest.Edit(dispatchertest.Checked, shortCheck, ""),
			dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 2"), []string{"a,1"}, []string{"a,1"}},
		"no check any more": {dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 2"),
			dispatchertest.Edit(dispatchertest.Checked, shortCheck, ""), []string{"abc,3"}, []string{"abc,3"}},
		"another description": {dispatchertest.Checked, dispatchertest.Edit(dispatchertest.Checked, "  - name: good\n",
			"  - name: good\n    description: better\n"), []string{"abc,3"}, []string{"abc,3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(test.before)
			task := next(w, "abc")
			done := w.Do(w.D, task)
			w.Serve(test.after)
			require.NoError(t, w.D.CompleteAttempt(t.Context(), task, done, time.Now()))
			require.Equal(t, test.first, w.Read("checked_good")["2024-01-01"])
			w.Settle()
			require.Equal(t, test.last, w.Read("checked_good")["2024-01-01"])
		})
	}
}

// A run that is stopped while it checks ends as one that is stopped while it computes, and publishes nothing.
func TestARunThatIsStoppedWhileItChecks(t *testing.T) {
	t.Parallel()
	endless := dispatchertest.Edit(dispatchertest.Checked, "WHERE n > 3",
		"WHERE n > 3 AND (SELECT count(*) FROM range(1000000000) a, range(1000000) b) > 0")
	for name, test := range map[string]struct {
		stop func(w *dispatchertest.World, task uuid.UUID)
		want string
	}{
		"canceled": {func(w *dispatchertest.World, task uuid.UUID) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, task)
			require.NoError(w.T, err)
		}, "Canceled canceled"},
		"fenced": {func(w *dispatchertest.World, task uuid.UUID) {
			w.Exec(`UPDATE leases SET lease_token = gen_random_uuid() WHERE task_id = $1`, task)
		}, "Running"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "ab")
			w.Deploy(endless)
			w.Advance()
			dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
			w.Route()
			task := w.One(w.D)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				dispatchertest.Execute(context.WithoutCancel(t.Context()), w.D, task)
			}()
			require.Eventually(t, func() bool {
				return w.Count(`SELECT FROM leases WHERE task_id = $1 AND state = 'checking the output'`, task.TaskID) == 1
			}, time.Minute, 10*time.Millisecond)
			test.stop(w, task.TaskID)
			<-ended
			require.Contains(t, w.Task(task.TaskID), test.want)
			require.Zero(t, w.Count(`SELECT FROM check_results`))
			require.Zero(t, w.Count(`SELECT FROM partition_versions p JOIN tasks t ON t.id = p.task_id
				JOIN jobs j ON j.id = t.job_id WHERE j.name = 'good'`))
		})
	}
}

// Checks of a run read the inputs that it had, its partition's scope, and each its own output.
func TestTheScopeOfChecksInARun(t *testing.T) {
	t.Parallel()
	const split = `
name: split
jobs:
` + dispatchertest.Raw + `  - name: parts
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    partition_by: { time: day, timezone: Asia/Tokyo }
    outputs: [left, right]
    config:
      queries:
        left: "SELECT content, getvariable('start') AS seen FROM raw"
        right: "SELECT content || '!' AS content FROM raw WHERE content <> 'none'"
    checks:
      - { name: known, output: left, relationships: { column: content, to: { input: raw, column: content } } }
      - { name: scope, output: left, sql: "SELECT * FROM output WHERE getvariable('partition') <> '2024-01-01'
          OR seen <> getvariable('start') OR seen::VARCHAR NOT LIKE '2024-01-01 00:00:00+09'" }
      - { name: same, output: right, sql: "SELECT * FROM output WHERE content NOT IN (SELECT content || '!' FROM raw)" }
      - { name: some, output: right, row_count: { min: 1 } }
publish:
  lefts: { from: { job: parts, output: left } }
  rights: { from: { job: parts, output: right } }
`
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Edit(split, dispatchertest.Raw,
		dispatchertest.Edit(dispatchertest.Raw, "{ time: day }", "{ time: day, timezone: Asia/Tokyo }")))
	require.Equal(t, []string{"a!"}, w.Read("rights")["2024-01-01"])

	// One output passes and the other, which has no rows, does not.
	w.Probe.Put("raw", "2024-01-01", "none")
	w.Poll()
	w.Settle()
	require.Len(t, w.Read("lefts")["2024-01-01"], 1)
	require.Contains(t, w.Read("lefts")["2024-01-01"][0], "none,")
	require.Equal(t, []string{"a!"}, w.Read("rights")["2024-01-01"])
	require.Equal(t, []string{"some fail"}, dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', name, outcome)
		FROM check_results WHERE outcome <> 'pass'`))
	require.Zero(t, checkTasks(w))
}

// What a run could not check for now is left to a check task, and the run is not repeated.
func TestWhatARunCannotCheckGetsACheckTask(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Checked)
	w.Unchecked(next(w, "ab"))
	check := w.One(w.D)
	require.NotNil(t, check.Check)
	require.Equal(t, 1, w.Count(`SELECT FROM partition_versions WHERE state = 'Held'`))

	// The next revision does not wait for it, and takes its place.
	dispatchertest.Execute(t.Context(), w.D, next(w, "abc"))
	require.Equal(t, []string{"abc,3"}, w.Read("checked_good")["2024-01-01"])
	dispatchertest.Execute(t.Context(), w.D, check)
	w.Settle()
	require.Equal(t, []string{"abc,3"}, w.Read("checked_good")["2024-01-01"])
	require.Equal(t, 3, w.Attempts("good"))
	require.Equal(t, 1, checkTasks(w))
}

// Segments of a cursor are published with the run that checked them, and one that is rejected is read again.
func TestARunChecksItsSegment(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "ab"}
	w.Probe.On("chain", l.Read)
	w.Serve(dispatchertest.Edit(chained, "    config: { tag: c }", "    config: { tag: c }\n    checks:\n"+
		"      - { name: no_z, sql: \"SELECT * FROM output WHERE content = 'z' "+
		"OR getvariable('partition') IS NULL\" }"))
	for _, blocks := range []string{"abc", "abcd"} {
		grow(w, l, blocks)
		w.Settle()
	}
	require.Equal(t, map[string]int64{"0-2": 1, "2-3": 1, "3-4": 1}, w.Published("chain"))
	grow(w, l, "abcdz")
	require.Equal(t, map[string]int64{"0-2": 1, "2-3": 1, "3-4": 1}, w.Published("chain"))
	w.Settle()
	grow(w, l, "abcdef")
	w.Settle()
	require.Equal(t, map[string]int64{"0-2": 1, "2-3": 1, "3-4": 1, "4-6": 1}, w.Published("chain"))
	require.Zero(t, checkTasks(w))
}

// The checks of an append read the whole revision, the earlier rows with the new ones.
func TestARunChecksAnAppendAsAWhole(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	w.Serve(dispatchertest.Edit(checkedLog, "WHERE v = 'bad'", "QUALIFY count(*) OVER () > 2"))
	for _, row := range []string{"2", "3"} {
		w.Drop(row+".csv", "id,v\n"+row+",x\n")
		w.Poll()
		w.Settle()
	}
	require.Equal(t, []string{"1,x", "2,x"}, w.Read("log")["all"])
	require.Zero(t, checkTasks(w))
}

// A run whose work cannot be committed stores no outcomes either.
func TestOutcomesOfARunThatFails(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Checked)
	task := next(w, "toolong")
	done := w.Do(w.D, task)
	done.Outcome = operators.Outcome{Err: errors.New("out of luck"), Retryable: true}
	require.NoError(t, w.D.Report(t.Context(), task, done, nil, false))
	require.Contains(t, w.Task(task.TaskID), "Failed "+string(tasks.ReasonError))
	require.Equal(t, 1, w.Count(`SELECT FROM check_results`))
}

// Rows that a check finds are kept as far as they can be: a run does not fail for a NUL in them.
func TestASampleWithWhatCannotBeStored(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	v := w.Deploy(dispatchertest.Edit(dispatchertest.Checked, "SELECT content, length(content) AS n",
		"SELECT content || chr(0) AS content, 9 AS n"))
	w.Settle()
	status, reason := w.Status(v.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "short: 1 row")
	require.Equal(t, 1, w.Attempts("good"))
	require.Contains(t, dispatchertest.Texts(t, w.Pool, `SELECT sample::text FROM check_results`)[0], "ab\ufffd")
}
