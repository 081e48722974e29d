package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
)

// deadMail serves mail and makes n of its tasks die, each with the error that say returns.
func deadMail(t *testing.T, n int, say func(i int) string) (*dispatchertest.World, []uuid.UUID) {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	w.Probe.On("send", func(_ context.Context, task *operators.Task) (operators.Result, error) {
		var i int
		if _, err := fmt.Sscanf(string(task.Payload), `{"n":%d`, &i); err != nil {
			return operators.Result{}, err
		}
		return operators.Result{}, operators.Permanent(errors.New(say(i)))
	})
	items := make([]dispatcher.EnqueueItem, n)
	for i := range items {
		items[i] = dispatcher.EnqueueItem{Payload: []byte(fmt.Sprintf(`{"n":%d,"to":"a"}`, i))}
	}
	var ids []uuid.UUID
	for _, e := range w.Enqueue("send", items...) {
		ids = append(ids, e.ID)
	}
	require.Equal(t, n, w.Work())
	require.Equal(t, n, dead(w))
	return w, ids
}

func dead(w *dispatchertest.World) int {
	w.T.Helper()
	return w.Count(`SELECT FROM waiting WHERE reason = 'dead'`)
}

func bulk(w *dispatchertest.World, verb string, req control.BulkRequest) control.BulkAction {
	w.T.Helper()
	b, err := w.D.Control.StartBulk(w.T.Context(), w.Caller, verb, req, time.Now())
	require.NoError(w.T, err)
	for b.Status == "Running" { // on a slow machine, the answer comes before the end
		_, err = w.D.Control.AdvanceBulkActions(w.T.Context(), time.Now())
		require.NoError(w.T, err)
		b, err = w.D.Control.Bulk(w.T.Context(), w.Caller, b.ID)
		require.NoError(w.T, err)
	}
	w.Check()
	return b
}

func TestErrorPatterns(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for message, want := range map[string]string{
		"row 17 of 4000 is bad":                                   "row N of N is bad",
		"task 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 of 2026-01-31": "task ID of DATE",
		"at 2026-01-31T09:00:00.123Z\n  took 1.5s":                "at DATE took Ns",
		"at 2026-01-31 09:00:00+02:00, object deadbeef01":         "at DATE, object ID",
		"file s3://b/2026-01-31/part-00017.csv":                   "file sN://b/DATE/part-N.csv",
		"a word such as defaced stays":                            "a word such as defaced stays",
		"":                                                        "",
	} {
		var got string
		w.Row(`SELECT error_pattern($1)`, message)(&got)
		require.Equal(t, want, got, message)
	}
}

func TestDeadTasksAreGroupedByError(t *testing.T) {
	t.Parallel()
	w, ids := deadMail(t, 7, func(i int) string {
		if i < 5 {
			return fmt.Sprintf("mailbox %d of %s is full", i, uuid.New())
		}
		return "no route"
	})
	groups, err := w.D.Views.ErrorGroups(t.Context(), w.Caller, views.TaskSelection{Dead: true})
	require.NoError(t, err)
	require.Len(t, groups, 2)
	require.Regexp(t, `^mailbox 4 of [0-9a-f-]{36} is full$`, groups[0].Error, "the words of the newest one")
	require.Equal(t, []int64{5, 2}, []int64{groups[0].Count, groups[1].Count})
	require.Equal(t, []string{"mail/send"}, groups[0].Jobs)
	require.Equal(t, ids[4], groups[0].Example)
	require.Equal(t, []int64{5, 2}, []int64{groups[0].Retryable, groups[1].Retryable})
	require.False(t, groups[0].FirstSeen.After(groups[0].LastSeen))

	for name, c := range map[string]struct {
		s views.TaskSelection
		n int
	}{
		"by group":          {views.TaskSelection{ErrorGroup: groups[1].Group}, 2},
		"by text":           {views.TaskSelection{Error: "IS FULL"}, 5},
		"by no such text":   {views.TaskSelection{Error: "100%"}, 0},
		"by DAG and job":    {views.TaskSelection{DAG: "mail", Job: "send", Dead: true}, 7},
		"by another job":    {views.TaskSelection{DAG: "mail", Job: "once", Dead: true}, 0},
		"by kind":           {views.TaskSelection{Kind: "manual"}, 7},
		"by ids":            {views.TaskSelection{IDs: ids[:3]}, 3},
		"from the future":   {views.TaskSelection{CreatedAfter: dispatchertest.Later(time.Hour)}, 0},
		"until now":         {views.TaskSelection{CreatedBefore: dispatchertest.Later(time.Hour)}, 7},
		"one status":        {views.TaskSelection{Status: "Running"}, 0},
		"by no partitions":  {views.TaskSelection{Partition: "a..b"}, 0},
		"two say different": {views.TaskSelection{Error: "no route", ErrorGroup: groups[0].Group}, 0},
	} {
		tasks, err := w.D.Views.Tasks(t.Context(), w.Caller, views.TaskFilter{TaskSelection: c.s, Limit: 100})
		require.NoError(t, err, name)
		require.Len(t, tasks, c.n, name)
	}
	// A caller who may not read an error can neither search for it nor group by it.
	reader := w.Caller
	reader.Role = authz.RoleReader
	groups, err = w.D.Views.ErrorGroups(t.Context(), reader, views.TaskSelection{Dead: true})
	require.NoError(t, err)
	require.Empty(t, groups)
	tasks, err := w.D.Views.Tasks(t.Context(), reader, views.TaskFilter{TaskSelection: views.TaskSelection{Error: "no"},
		Limit: 100})
	require.NoError(t, err)
	require.Empty(t, tasks)

	// A purge takes the errors of dead tasks away.
	w.Exec(`UPDATE tasks SET error_message = NULL`)
	_, err = w.D.Views.ErrorGroups(t.Context(), w.Caller, views.TaskSelection{Dead: true})
	require.NoError(t, err)
	w.Exec(`UPDATE waiting SET error_group = NULL`)
	groups, err = w.D.Views.ErrorGroups(t.Context(), w.Caller, views.TaskSelection{Dead: true})
	require.NoError(t, err)
	require.Empty(t, groups)
}

func TestRangesOfPartitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for _, day := range []string{"2024-01-01", "2024-01-02", "2024-01-03"} {
		w.Probe.Put("raw", day, "x")
	}
	w.Serve(dispatchertest.Letters)
	tasks, err := w.D.Views.Tasks(t.Context(), w.Caller,
		views.TaskFilter{TaskSelection: views.TaskSelection{Job: "upper", Partition: "2024-01-02..2024-01-03"},
			Limit: 100})
	require.NoError(t, err)
	require.Len(t, tasks, 2)
	_, err = w.D.Views.Tasks(t.Context(), w.Caller,
		views.TaskFilter{TaskSelection: views.TaskSelection{Partition: "..2024-01-03"}, Limit: 100})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

// A key that looks like a range is found as itself, where there is one.
func TestAPartitionThatIsNamedLikeARange(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(dispatchertest.Letters, "{ time: day }", "key"))
	for _, key := range []string{"a", "aa", "a..b"} {
		w.Probe.Put("raw", key, "x")
	}
	w.Poll()
	w.Settle()
	named := func(partition string) (keys []string) {
		tasks, err := w.D.Views.Tasks(t.Context(), w.Caller, views.TaskFilter{Limit: 100,
			TaskSelection: views.TaskSelection{Job: "raw", Partition: partition}})
		require.NoError(t, err)
		for _, task := range tasks {
			keys = append(keys, task.Partition)
		}
		slices.Sort(keys)
		return keys
	}
	require.Equal(t, []string{"a..b"}, named("a..b"))
	require.Equal(t, []string{"a", "a..b", "aa"}, named("a..c"))
}

func TestBulkVerbs(t *testing.T) {
	t.Parallel()
	w, ids := deadMail(t, 450, func(int) string { return "no route" })
	all := views.TaskSelection{DAG: "mail", Dead: true}
	for name, c := range map[string]struct {
		verb string
		req  control.BulkRequest
		want string
	}{
		"nothing said":         {control.VerbRetry, control.BulkRequest{}, "the filter is empty"},
		"no reason":            {control.VerbSkip, control.BulkRequest{Filter: all}, "a reason is needed"},
		"a reason to retry":    {control.VerbRetry, control.BulkRequest{Filter: all, Reason: "x"}, "for skip"},
		"downstream to cancel": {control.VerbCancel, control.BulkRequest{Filter: all, Downstream: true}, "for retry"},
	} {
		_, err := w.D.Control.StartBulk(t.Context(), w.Caller, c.verb, c.req, time.Now())
		require.ErrorContains(t, err, c.want, name)
		require.True(t, fault.Is(err, fault.Invalid), name)
	}
	dry := bulk(w, control.VerbRetry, control.BulkRequest{Filter: all, DryRun: true})
	require.Equal(t, control.BulkAction{Verb: control.VerbRetry, Matched: 450}, dry)
	require.Equal(t, 450, dead(w))

	skipped := bulk(w, control.VerbSkip, control.BulkRequest{Filter: views.TaskSelection{IDs: ids[:50]},
		Reason: "lost"})
	require.Equal(t, "Completed", skipped.Status)
	require.Equal(t, []int64{50, 50, 0}, []int64{skipped.Matched, skipped.Done, skipped.Refused})
	require.Equal(t, "Canceled skipped", w.Task(ids[0]))
	require.Equal(t, 50, w.Count(`SELECT FROM task_events WHERE to_status = 'Canceled' AND actor = $1`, w.Caller.Actor))

	retried := bulk(w, control.VerbRetry, control.BulkRequest{Filter: all})
	require.Equal(t, []int64{400, 400, 0}, []int64{retried.Matched, retried.Done, retried.Refused})
	require.Zero(t, dead(w))
	require.Equal(t, 400, w.Count(`SELECT FROM ready`))
	require.Equal(t, 400, w.Count(`SELECT FROM task_events WHERE from_status = 'Failed' AND to_status = 'Queued'
		AND actor = $1`, w.Caller.Actor))

	running := claimOne(w, t)
	canceled := bulk(w, control.VerbCancel, control.BulkRequest{Filter: views.TaskSelection{DAG: "mail", Job: "send"}})
	require.Equal(t, int64(400), canceled.Done)
	require.Zero(t, w.Count(`SELECT FROM ready`))
	require.Equal(t, 1, w.Count(`SELECT FROM leases WHERE cancel_requested AND task_id = $1`, running.TaskID))
	require.Equal(t, 1, w.Count(`SELECT FROM task_events WHERE task_id = $1 AND state = 'asked to end' AND actor = $2`,
		running.TaskID, w.Caller.Actor))
	require.Equal(t, 3, w.Count(`SELECT FROM audit_log WHERE action IN ('tasks.retry', 'tasks.skip', 'tasks.cancel')`))
	require.Zero(t, w.Count(`SELECT FROM bulk_action_tasks`))
	gone := views.TaskSelection{DAG: "mail", Status: "Canceled"}
	back := bulk(w, control.VerbRetry, control.BulkRequest{Filter: gone})
	require.Equal(t, []int64{399, 399, 0}, []int64{back.Matched, back.Done, back.Refused}, "but those skipped")

	// Another org can neither see nor change the action.
	other := w.Org("other")
	_, err := w.D.Control.Bulk(t.Context(), other.Caller, canceled.ID)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	b, err := w.D.Control.StartBulk(t.Context(), other.Caller, control.VerbCancel,
		control.BulkRequest{Filter: views.TaskSelection{IDs: []uuid.UUID{running.TaskID}}}, time.Now())
	require.NoError(t, err)
	require.Zero(t, b.Matched)
}

// claimOne claims one ready task.
func claimOne(w *dispatchertest.World, t *testing.T) dispatcher.Claimed {
	t.Helper()
	tasks, err := w.D.Claim(t.Context(), w.D.InProcessRuntimes(), w.D.WorkerID, 1, time.Now())
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	return tasks[0]
}

func TestBulkKeepsItsRate(t *testing.T) {
	t.Parallel()
	w, _ := deadMail(t, 30, func(int) string { return "no route" })
	w.Probe.On("send", nil)
	began := time.Now()
	b, err := w.D.Control.StartBulk(t.Context(), w.Caller, control.VerbRetry,
		control.BulkRequest{Filter: views.TaskSelection{Dead: true}, Rate: 10}, began)
	require.NoError(t, err)
	require.Equal(t, []int64{30, 10}, []int64{b.Matched, b.Done})
	require.Equal(t, "Running", b.Status)
	step := func(after time.Duration) int {
		_, err := w.D.Control.AdvanceBulkActions(t.Context(), began.Add(after))
		require.NoError(t, err)
		return 30 - dead(w)
	}
	// The process that began the action is gone; another one continues it at its rate, without making up for lost
	// time.
	require.Equal(t, 10, step(50*time.Millisecond))
	require.Equal(t, 15, step(500*time.Millisecond))
	w.D = w.Dispatcher("two")
	require.Equal(t, 25, step(time.Hour))
	require.Equal(t, 30, step(2*time.Hour))
	b, err = w.D.Control.Bulk(t.Context(), w.Caller, b.ID)
	require.NoError(t, err)
	require.Equal(t, "Completed", b.Status)
	// A task that dies again is not retried again: the set of tasks is fixed.
	_, err = w.D.Control.CancelBulk(t.Context(), w.Caller, b.ID, time.Now())
	dispatchertest.Refused(t, err)

	w.Settle()
	w.Probe.On("send", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("again"))
	})
	w.Enqueue("send", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"to": "a"})},
		dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"to": "b"})})
	w.Work()
	slow, err := w.D.Control.StartBulk(t.Context(), w.Caller, control.VerbRetry,
		control.BulkRequest{Filter: views.TaskSelection{Dead: true}, Rate: 0.1}, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Running", slow.Status)
	slow, err = w.D.Control.CancelBulk(t.Context(), w.Caller, slow.ID, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Canceled", slow.Status)
	require.Zero(t, w.Count(`SELECT FROM bulk_action_tasks`))
}

func TestRetryDownstream(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "publish:", `  - name: next
    operator: hook
    inputs: [{ from: { job: made } }]
    execution_strategy: PerPartition
    config: { tag: n }
  - name: last
    operator: hook
    inputs: [{ from: { job: next } }]
    execution_strategy: PerPartition
    config: { tag: l }
publish:`))
	w.Probe.On("last", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("never"))
	})
	w.Probe.Put("raw", "2024-01-01", "c")
	w.Probe.Put("raw", "2024-01-02", "d")
	w.Poll()
	w.Settle()
	require.Equal(t, 2, dead(w))
	failsFor(w, "made", "2024-01-01")
	w.Probe.Put("raw", "2024-01-01", "e")
	w.Poll()
	w.Settle()
	require.Equal(t, 3, dead(w))
	root, below, beside := w.TaskOf("made", "2024-01-01"), w.TaskOf("last", "2024-01-01"),
		w.TaskOf("last", "2024-01-02")
	b := bulk(w, control.VerbRetry, control.BulkRequest{Filter: views.TaskSelection{IDs: []uuid.UUID{root}},
		Downstream: true})
	require.Equal(t, int64(2), b.Done, "through next, which has not failed")
	require.Contains(t, w.Task(root), "Queued")
	require.Contains(t, w.Task(below), "Queued")
	require.Equal(t, "Failed error waiting:dead", w.Task(beside))
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	w, ids := deadMail(t, 1, func(int) string { return "no route" })
	seen, err := w.D.Views.TaskByID(t.Context(), w.Caller, ids[0])
	require.NoError(t, err)
	_, err = w.D.Control.Do(t.Context(), w.Caller, ids[0], control.Act{Verb: control.VerbRetry},
		control.Etag(seen.Version-1))
	require.ErrorIs(t, err, rest.ErrPreconditionFailed)
	retried, err := w.D.Control.Do(t.Context(), w.Caller, ids[0], control.Act{Verb: control.VerbRetry},
		control.Etag(seen.Version))
	require.NoError(t, err)
	require.Greater(t, retried.Version, seen.Version)
	_, err = w.D.Control.Do(t.Context(), w.Caller, ids[0], control.Act{Verb: control.VerbCancel},
		control.Etag(seen.Version))
	require.ErrorIs(t, err, rest.ErrPreconditionFailed)
	_, err = w.D.Control.Do(t.Context(), w.Caller, ids[0], control.Act{Verb: control.VerbCancel},
		control.Etag(retried.Version))
	require.NoError(t, err)
}
