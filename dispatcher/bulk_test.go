package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
)

// deadMail serves mail and has n of its tasks die, each with the error that say tells.
func deadMail(t *testing.T, n int, say func(i int) string) (*world, []uuid.UUID) {
	t.Helper()
	w := newWorld(t)
	w.serve(mail)
	w.probe.on("send", func(_ context.Context, task *operators.Task) (operators.Result, error) {
		var i int
		if _, err := fmt.Sscanf(string(task.Payload), `{"n":%d`, &i); err != nil {
			return operators.Result{}, err
		}
		return operators.Result{}, operators.Permanent(errors.New(say(i)))
	})
	items := make([]EnqueueItem, n)
	for i := range items {
		items[i] = EnqueueItem{Payload: []byte(fmt.Sprintf(`{"n":%d,"to":"a"}`, i))}
	}
	var ids []uuid.UUID
	for _, e := range w.enqueue("send", items...) {
		ids = append(ids, e.ID)
	}
	require.Equal(t, n, w.work())
	require.Equal(t, n, w.dead())
	return w, ids
}

func (w *world) dead() int {
	w.t.Helper()
	return w.count(`SELECT FROM waiting WHERE reason = 'dead'`)
}

func (w *world) bulk(verb string, req BulkRequest) BulkAction {
	w.t.Helper()
	b, err := w.d.StartBulk(w.t.Context(), w.caller, verb, req, time.Now())
	require.NoError(w.t, err)
	for b.Status == "Running" { // what a slow machine does not get done before it is answered
		_, err = w.d.advanceBulkActions(w.t.Context(), time.Now())
		require.NoError(w.t, err)
		b, err = w.d.Bulk(w.t.Context(), w.caller, b.ID)
		require.NoError(w.t, err)
	}
	w.check()
	return b
}

func TestErrorPatterns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
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
		w.row(`SELECT error_pattern($1)`, message)(&got)
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
	groups, err := w.d.ErrorGroups(t.Context(), w.caller, TaskSelection{Dead: true})
	require.NoError(t, err)
	require.Len(t, groups, 2)
	require.Equal(t, "mailbox N of ID is full", groups[0].Error)
	require.Equal(t, []int64{5, 2}, []int64{groups[0].Count, groups[1].Count})
	require.Equal(t, []string{"mail/send"}, groups[0].Jobs)
	require.Equal(t, ids[4], groups[0].Example)
	require.False(t, groups[0].FirstSeen.After(groups[0].LastSeen))

	for name, c := range map[string]struct {
		s TaskSelection
		n int
	}{
		"by group":          {TaskSelection{ErrorGroup: groups[1].Group}, 2},
		"by text":           {TaskSelection{Error: "IS FULL"}, 5},
		"by no such text":   {TaskSelection{Error: "100%"}, 0},
		"by DAG and job":    {TaskSelection{DAG: "mail", Job: "send", Dead: true}, 7},
		"by another job":    {TaskSelection{DAG: "mail", Job: "once", Dead: true}, 0},
		"by kind":           {TaskSelection{Kind: "manual"}, 7},
		"by ids":            {TaskSelection{IDs: ids[:3]}, 3},
		"from the future":   {TaskSelection{CreatedAfter: later(time.Hour)}, 0},
		"until now":         {TaskSelection{CreatedBefore: later(time.Hour)}, 7},
		"one status":        {TaskSelection{Status: "Running"}, 0},
		"by no partitions":  {TaskSelection{Partition: "a..b"}, 0},
		"two say different": {TaskSelection{Error: "no route", ErrorGroup: groups[0].Group}, 0},
	} {
		tasks, err := w.d.Tasks(t.Context(), w.caller, TaskFilter{TaskSelection: c.s, Limit: 100})
		require.NoError(t, err, name)
		require.Len(t, tasks, c.n, name)
	}
	// Who may not read an error cannot find it either, nor group by it.
	reader := w.caller
	reader.Role = authz.RoleReader
	groups, err = w.d.ErrorGroups(t.Context(), reader, TaskSelection{Dead: true})
	require.NoError(t, err)
	require.Empty(t, groups)
	tasks, err := w.d.Tasks(t.Context(), reader, TaskFilter{TaskSelection: TaskSelection{Error: "no"}, Limit: 100})
	require.NoError(t, err)
	require.Empty(t, tasks)
}

func TestRangesOfPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, day := range []string{"2024-01-01", "2024-01-02", "2024-01-03"} {
		w.probe.put("raw", day, "x")
	}
	w.serve(letters)
	tasks, err := w.d.Tasks(t.Context(), w.caller, TaskFilter{TaskSelection: TaskSelection{Job: "upper", Partition: "2024-01-02..2024-01-03"}, Limit: 100})
	require.NoError(t, err)
	require.Len(t, tasks, 2)
	_, err = w.d.Tasks(t.Context(), w.caller, TaskFilter{TaskSelection: TaskSelection{Partition: "..2024-01-03"}, Limit: 100})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestBulkVerbs(t *testing.T) {
	t.Parallel()
	w, ids := deadMail(t, 450, func(int) string { return "no route" })
	all := TaskSelection{DAG: "mail", Dead: true}
	for name, c := range map[string]struct {
		verb string
		req  BulkRequest
		want string
	}{
		"nothing said":         {verbRetry, BulkRequest{}, "the filter says nothing"},
		"no reason":            {verbSkip, BulkRequest{Filter: all}, "a reason is needed"},
		"a reason to retry":    {verbRetry, BulkRequest{Filter: all, Reason: "x"}, "for skip"},
		"downstream to cancel": {verbCancel, BulkRequest{Filter: all, Downstream: true}, "for retry"},
	} {
		_, err := w.d.StartBulk(t.Context(), w.caller, c.verb, c.req, time.Now())
		require.ErrorContains(t, err, c.want, name)
		require.True(t, fault.Is(err, fault.Invalid), name)
	}
	dry := w.bulk(verbRetry, BulkRequest{Filter: all, DryRun: true})
	require.Equal(t, BulkAction{Verb: verbRetry, Matched: 450}, dry)
	require.Equal(t, 450, w.dead())

	skipped := w.bulk(verbSkip, BulkRequest{Filter: TaskSelection{IDs: ids[:50]}, Reason: "lost"})
	require.Equal(t, "Completed", skipped.Status)
	require.Equal(t, []int64{50, 50, 0}, []int64{skipped.Matched, skipped.Done, skipped.Refused})
	require.Equal(t, "Canceled skipped", w.task(ids[0]))
	require.Equal(t, 50, w.count(`SELECT FROM task_events WHERE to_status = 'Canceled' AND actor = $1`, w.caller.Actor))

	retried := w.bulk(verbRetry, BulkRequest{Filter: all})
	require.Equal(t, []int64{400, 400, 0}, []int64{retried.Matched, retried.Done, retried.Refused})
	require.Zero(t, w.dead())
	require.Equal(t, 400, w.count(`SELECT FROM ready`))
	require.Equal(t, 400, w.count(`SELECT FROM task_events WHERE from_status = 'Failed' AND to_status = 'Queued' AND actor = $1`, w.caller.Actor))

	running := w.claimOne(t)
	canceled := w.bulk(verbCancel, BulkRequest{Filter: TaskSelection{DAG: "mail", Job: "send"}})
	require.Equal(t, int64(400), canceled.Done)
	require.Zero(t, w.count(`SELECT FROM ready`))
	require.Equal(t, 1, w.count(`SELECT FROM leases WHERE cancel_requested AND task_id = $1`, running.TaskID))
	require.Equal(t, 1, w.count(`SELECT FROM task_events WHERE task_id = $1 AND state = 'asked to end' AND actor = $2`, running.TaskID, w.caller.Actor))
	require.Equal(t, 3, w.count(`SELECT FROM audit_log WHERE action IN ('tasks.retry', 'tasks.skip', 'tasks.cancel')`))
	require.Zero(t, w.count(`SELECT FROM bulk_action_tasks`))

	// Another org sees and touches none of it.
	other := w.org("other")
	_, err := w.d.Bulk(t.Context(), other.caller, canceled.ID)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	b, err := w.d.StartBulk(t.Context(), other.caller, verbCancel, BulkRequest{Filter: TaskSelection{IDs: []uuid.UUID{running.TaskID}}}, time.Now())
	require.NoError(t, err)
	require.Zero(t, b.Matched)
}

// claimOne claims a single task of those that are ready.
func (w *world) claimOne(t *testing.T) claimed {
	t.Helper()
	tasks, err := w.d.claim(t.Context(), w.d.inProcessRuntimes(), w.d.WorkerID, 1, time.Now())
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	return tasks[0]
}

func TestBulkKeepsItsRate(t *testing.T) {
	t.Parallel()
	w, _ := deadMail(t, 30, func(int) string { return "no route" })
	w.probe.on("send", nil)
	began := time.Now()
	b, err := w.d.StartBulk(t.Context(), w.caller, verbRetry, BulkRequest{Filter: TaskSelection{Dead: true}, Rate: 10}, began)
	require.NoError(t, err)
	require.Equal(t, []int64{30, 10}, []int64{b.Matched, b.Done})
	require.Equal(t, "Running", b.Status)
	step := func(after time.Duration) int {
		_, err := w.d.advanceBulkActions(t.Context(), began.Add(after))
		require.NoError(t, err)
		return 30 - w.dead()
	}
	// Whoever asked is gone; another process goes on with it, at its rate, and makes up for nothing.
	require.Equal(t, 10, step(50*time.Millisecond))
	require.Equal(t, 15, step(500*time.Millisecond))
	w.d = w.dispatcher("two")
	require.Equal(t, 25, step(time.Hour))
	require.Equal(t, 30, step(2*time.Hour))
	b, err = w.d.Bulk(t.Context(), w.caller, b.ID)
	require.NoError(t, err)
	require.Equal(t, "Completed", b.Status)
	// A task that dies again is not taken up again: the set was fixed.
	_, err = w.d.CancelBulk(t.Context(), w.caller, b.ID, time.Now())
	refused(t, err)

	w.settle()
	w.probe.on("send", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("again"))
	})
	w.enqueue("send", EnqueueItem{Payload: payload(map[string]any{"to": "a"})}, EnqueueItem{Payload: payload(map[string]any{"to": "b"})})
	w.work()
	slow, err := w.d.StartBulk(t.Context(), w.caller, verbRetry, BulkRequest{Filter: TaskSelection{Dead: true}, Rate: 0.1}, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Running", slow.Status)
	slow, err = w.d.CancelBulk(t.Context(), w.caller, slow.ID, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Canceled", slow.Status)
	require.Zero(t, w.count(`SELECT FROM bulk_action_tasks`))
}

func TestAllowance(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		rate float64
		ago  time.Duration
		n    int
		left time.Duration // how much of the past is not used up
	}{
		"a second":          {10, time.Second, 10, 0},
		"a part":            {10, 250 * time.Millisecond, 2, 50 * time.Millisecond},
		"nothing yet":       {10, 50 * time.Millisecond, 0, 50 * time.Millisecond},
		"a day":             {10, 24 * time.Hour, 10, 0},
		"slow, not yet":     {0.1, 5 * time.Second, 0, 5 * time.Second},
		"slow, now":         {0.1, 10 * time.Second, 1, 0},
		"more than a step":  {1000, time.Second, bulkStep, 800 * time.Millisecond},
		"the clock is back": {10, -time.Second, 0, -time.Second},
	} {
		n, paced := allowance(c.rate, at.Add(-c.ago), at)
		require.Equal(t, c.n, n, name)
		require.InDelta(t, c.left.Seconds(), at.Sub(paced).Seconds(), 1e-6, name)
	}
}

func TestRetryDownstream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.serve(edit(hooks, "publish:", `  - name: next
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
	w.probe.on("last", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("never"))
	})
	w.probe.put("raw", "2024-01-01", "c")
	w.probe.put("raw", "2024-01-02", "d")
	w.poll()
	w.settle()
	require.Equal(t, 2, w.dead())
	w.failsFor("made", "2024-01-01")
	w.probe.put("raw", "2024-01-01", "e")
	w.poll()
	w.settle()
	require.Equal(t, 3, w.dead())
	root, below, beside := w.taskOf("made", "2024-01-01"), w.taskOf("last", "2024-01-01"), w.taskOf("last", "2024-01-02")
	b := w.bulk(verbRetry, BulkRequest{Filter: TaskSelection{IDs: []uuid.UUID{root}}, Downstream: true})
	require.Equal(t, int64(2), b.Done, "through next, which has not failed")
	require.Contains(t, w.task(root), "Queued")
	require.Contains(t, w.task(below), "Queued")
	require.Equal(t, "Failed error waiting:dead", w.task(beside))
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	w, ids := deadMail(t, 1, func(int) string { return "no route" })
	seen, err := w.d.TaskByID(t.Context(), w.caller, ids[0])
	require.NoError(t, err)
	_, err = w.d.do(t.Context(), w.caller, ids[0], act{verb: verbRetry}, etag(seen.Version-1))
	require.ErrorIs(t, err, rest.ErrPreconditionFailed)
	retried, err := w.d.do(t.Context(), w.caller, ids[0], act{verb: verbRetry}, etag(seen.Version))
	require.NoError(t, err)
	require.Greater(t, retried.Version, seen.Version)
	_, err = w.d.do(t.Context(), w.caller, ids[0], act{verb: verbCancel}, etag(seen.Version))
	require.ErrorIs(t, err, rest.ErrPreconditionFailed)
	_, err = w.d.do(t.Context(), w.caller, ids[0], act{verb: verbCancel}, etag(retried.Version))
	require.NoError(t, err)
}
