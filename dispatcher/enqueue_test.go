package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

func TestEnqueueIsIdempotent(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	to := dispatchertest.Payload(map[string]any{"to": "a"})
	first := w.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "k1", Payload: to},
		dispatcher.EnqueueItem{Payload: to}, dispatcher.EnqueueItem{Payload: to},
		dispatcher.EnqueueItem{IdempotencyKey: "k1", Payload: to})
	require.True(t, first[0].Created && first[1].Created && first[2].Created)
	require.Equal(t, dispatcher.Enqueued{ID: first[0].ID}, first[3], "twice in one batch")
	require.Equal(t, dispatcher.Enqueued{ID: first[0].ID},
		w.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "k1", Payload: to})[0])
	require.Equal(t, 3, w.Work())
	require.Equal(t, dispatcher.Enqueued{ID: first[0].ID},
		w.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "k1", Payload: to})[0], "after it was done")
	require.True(t, w.Enqueue("once", dispatcher.EnqueueItem{IdempotencyKey: "k1", Payload: to})[0].Created,
		"a key is of its job")
	// An edit of the job does not change its queue.
	w.Serve(dispatchertest.Edit(dispatchertest.Mail, "name: send\n",
		"name: send\n    max_attempts: 9\n    config: { tag: edited }\n"))
	require.Equal(t, dispatcher.Enqueued{ID: first[0].ID},
		w.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "k1", Payload: to})[0])

	// Eight simultaneous requests create one task.
	g, ctx := errgroup.WithContext(t.Context())
	var mu sync.Mutex
	ids, made := map[uuid.UUID]bool{}, 0
	for range 8 {
		g.Go(func() error {
			out, err := w.D.Enqueue(ctx, w.Caller, "mail", "send",
				[]dispatcher.EnqueueItem{{IdempotencyKey: "k2", Payload: to}})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			ids[out[0].ID] = true
			if out[0].Created {
				made++
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, ids, 1)
	require.Equal(t, 1, made)
	w.Check()
}

func TestACanceledTaskGivesUpItsKey(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	item := dispatcher.EnqueueItem{IdempotencyKey: "k", Payload: dispatchertest.Payload(map[string]any{"to": "a"})}
	first := w.Enqueue("send", item)[0]
	_, err := w.D.Control.Cancel(t.Context(), w.Caller, first.ID)
	require.NoError(t, err)

	again := w.Enqueue("send", item, item)
	require.True(t, again[0].Created)
	require.NotEqual(t, first.ID, again[0].ID)
	require.Equal(t, dispatcher.Enqueued{ID: again[0].ID}, again[1])
	require.Equal(t, 1, w.Work())
	require.Equal(t, dispatcher.Enqueued{ID: again[0].ID}, w.Enqueue("send", item)[0], "one that is done keeps it")
	require.Equal(t, []string{"key:k"}, dispatchertest.Texts(t, w.Pool, `
		SELECT detail ->> 'gave_up_key' FROM task_events WHERE task_id = $1 AND detail ? 'gave_up_key'`, first.ID))
	w.Check()
}

func TestPriorityZeroIsNotTheJobs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(dispatchertest.Mail, "name: send\n", "name: send\n    priority: 7\n"))
	zero, to := 0, dispatchertest.Payload(map[string]any{"to": "a"})
	out := w.Enqueue("send", dispatcher.EnqueueItem{Payload: to, Priority: &zero}, dispatcher.EnqueueItem{Payload: to})
	for i, want := range []int{0, 7} {
		var got int
		w.Row(`SELECT priority FROM tasks WHERE id = $1`, out[i].ID)(&got)
		require.Equal(t, want, got)
	}
}

// One request for a job does not wait for another one's COMMIT, unless both name the same key: then the first creates
// the task.
func TestRequestsOfOneJobDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	to := dispatchertest.Payload(map[string]any{"to": "a"})
	tx, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	job, err := w.D.SharedJob(t.Context(), tx, w.Caller.OrgID, "mail", "send")
	require.NoError(t, err)
	wanted, err := dispatcher.WantedItems(job, []dispatcher.EnqueueItem{{IdempotencyKey: "k", Payload: to}}, time.Now())
	require.NoError(t, err)
	first, err := w.D.EnqueueTx(t.Context(), tx, job, wanted, time.Now())
	require.NoError(t, err)
	require.True(t, w.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "other", Payload: to})[0].Created,
		"while the first has not committed")

	var both []dispatcher.Enqueued
	var waits errgroup.Group
	waits.Go(func() (err error) {
		both, err = w.D.Enqueue(t.Context(), w.Caller, "mail", "send", []dispatcher.EnqueueItem{{Payload: to},
			{IdempotencyKey: "k", Payload: to}, {IdempotencyKey: "k", Payload: to}})
		return err
	})
	w.Eventually("the second to wait for the key", func() bool {
		return w.Count(`SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event = 'transactionid'`) == 1
	})
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, waits.Wait())
	require.True(t, both[0].Created)
	require.Equal(t, []dispatcher.Enqueued{{ID: first[0].ID}, {ID: first[0].ID}}, both[1:])
	w.Check()
}

func TestEnqueueDedupesByFields(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	first := w.Enqueue("once", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"to": "a",
		"n": 1})})[0]
	require.Equal(t, dispatcher.Enqueued{ID: first.ID},
		w.Enqueue("once", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"n": 2,
			"to": "a"})})[0])
	require.True(t, w.Enqueue("once", dispatcher.EnqueueItem{
		Payload: dispatchertest.Payload(map[string]any{"to": "b"})})[0].Created)
	_, err := w.D.Enqueue(t.Context(), w.Caller, "mail", "once",
		[]dispatcher.EnqueueItem{{Payload: json.RawMessage(`[1]`)}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestEnqueueRefuses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Mail)
	w.Serve(dispatchertest.Pair)
	_, err := w.D.Enqueue(t.Context(), w.Caller, "mail", "send",
		[]dispatcher.EnqueueItem{{Payload: dispatchertest.Payload(map[string]any{"to": "a"})},
			{Payload: dispatchertest.Payload(map[string]any{"n": "x"})}, {}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Len(t, dispatchertest.ProblemsOf(err), 2)
	require.Regexp(t, `^body.items\[1\]: payload: .*to`, dispatchertest.ProblemsOf(err)[0])
	require.Regexp(t, `^body.items\[2\]: payload: `, dispatchertest.ProblemsOf(err)[1])
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE kind = 'manual'`), "all or nothing")
	_, err = w.D.Enqueue(t.Context(), w.Caller, "mail", "load", []dispatcher.EnqueueItem{{Partition: "a/b"}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	for job, kind := range map[string]fault.Kind{"pair/made": fault.Invalid, "pair/raw": fault.Invalid,
		"mail/none": fault.NotFound, "none/none": fault.NotFound} {
		var dag, name string
		_, _ = fmt.Sscanf(dispatchertest.Edit(job, "/", " "), "%s %s", &dag, &name)
		_, err := w.D.Enqueue(t.Context(), w.Caller, dag, name, []dispatcher.EnqueueItem{{}})
		require.Equal(t, kind, fault.KindOf(err), "%s: %v", job, err)
	}
}

// Each manual task runs with its own payload; tasks for one output partition run one after the other.
func TestEnqueuedForOnePartition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	w.Probe.On("load", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, string(task.Payload))
	})
	at := dispatchertest.Later(time.Hour)
	out := w.Enqueue("load", dispatcher.EnqueueItem{Partition: "p", Payload: json.RawMessage(`1`), IdempotencyKey: "a"},
		dispatcher.EnqueueItem{Partition: "p", Payload: json.RawMessage(`2`), IdempotencyKey: "b"},
		dispatcher.EnqueueItem{Partition: "p", Payload: json.RawMessage(`3`)}, dispatcher.EnqueueItem{Partition: "q",
			Payload: json.RawMessage(`4`)}, dispatcher.EnqueueItem{Partition: "q", Payload: json.RawMessage(`5`),
			RunAt: &at})
	for i, o := range out {
		require.True(t, o.Created, i)
	}
	w.Check()
	running := w.Claim(w.D)
	require.Len(t, running, 2, "one of p, one of q")
	w.Check()
	for _, task := range running {
		dispatchertest.Execute(t.Context(), w.D, task)
	}
	w.Settle()
	require.Equal(t, map[string]int64{"p": 3, "q": 1}, w.Published("load"))
	require.Equal(t, map[string][]string{"p": {"3"}, "q": {"4"}}, w.Read("loaded"))
	w.Promote(at)
	w.Settle()
	require.Equal(t, map[string][]string{"p": {"3"}, "q": {"5"}}, w.Read("loaded"))
}

func TestEnqueueOrder(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	high, low := 10, -10
	to := dispatchertest.Payload(map[string]any{"to": "a"})
	past, future := dispatchertest.Later(-time.Hour), dispatchertest.Later(time.Hour)
	out := w.Enqueue("send", dispatcher.EnqueueItem{Payload: to, Priority: &low}, dispatcher.EnqueueItem{Payload: to},
		dispatcher.EnqueueItem{Payload: to, Priority: &high},
		dispatcher.EnqueueItem{Payload: to, RunAt: &future, Priority: &high}, dispatcher.EnqueueItem{Payload: to,
			RunAt: &past})
	var order []uuid.UUID
	for range 4 {
		tasks, err := w.D.Claim(t.Context(), []string{"dispatcher"}, "one", 1, dispatchertest.Later(0))
		require.NoError(t, err)
		require.Len(t, tasks, 1)
		order = append(order, tasks[0].TaskID)
	}
	require.Equal(t, []uuid.UUID{out[2].ID, out[1].ID, out[4].ID, out[0].ID}, order)
	require.Empty(t, w.Claim(w.D))
	w.Promote(future)
	require.Equal(t, out[3].ID, w.One(w.D).TaskID)
	w.Check()
}

// Payloads are the same work if their numbers are equal, and not if they only round alike.
func TestDedupeComparesNumbersExactly(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	to := func(number string) dispatcher.Enqueued {
		return w.Enqueue("once", dispatcher.EnqueueItem{Payload: json.RawMessage(`{"to": ` + number + `}`)})[0]
	}
	first := to("9007199254740993")
	require.True(t, first.Created)
	require.True(t, to("9007199254740992").Created)
	require.Equal(t, dispatcher.Enqueued{ID: first.ID}, to("9007199254740993.0"))
}
