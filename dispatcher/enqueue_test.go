package dispatcher

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

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

const mail = `
name: mail
jobs:
  - name: send
    operator: hook
    source: { kind: manual }
    outputs: 0
    payload_schema: { type: object, required: [to], properties: { to: { type: string }, n: { type: integer } } }
  - name: once
    operator: hook
    source: { kind: manual }
    outputs: 0
    dedupe: [to]
  - name: load
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: { tag: l }
publish:
  loaded: { from: { job: load } }
`

func payload(v any) json.RawMessage { b, _ := json.Marshal(v); return b }

func (tn *tenant) enqueue(job string, items ...EnqueueItem) []Enqueued {
	tn.w.t.Helper()
	out, err := tn.w.d.Enqueue(tn.w.t.Context(), tn.caller, "mail", job, items)
	require.NoError(tn.w.t, err)
	require.Len(tn.w.t, out, len(items))
	return out
}

func TestEnqueueIsIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	to := payload(map[string]any{"to": "a"})
	first := w.enqueue("send", EnqueueItem{IdempotencyKey: "k1", Payload: to}, EnqueueItem{Payload: to}, EnqueueItem{Payload: to},
		EnqueueItem{IdempotencyKey: "k1", Payload: to})
	require.True(t, first[0].Created && first[1].Created && first[2].Created)
	require.Equal(t, Enqueued{ID: first[0].ID}, first[3], "twice in one batch")
	require.Equal(t, Enqueued{ID: first[0].ID}, w.enqueue("send", EnqueueItem{IdempotencyKey: "k1", Payload: to})[0])
	require.Equal(t, 3, w.work())
	require.Equal(t, Enqueued{ID: first[0].ID}, w.enqueue("send", EnqueueItem{IdempotencyKey: "k1", Payload: to})[0], "after it was done")
	require.True(t, w.enqueue("once", EnqueueItem{IdempotencyKey: "k1", Payload: to})[0].Created, "a key is of its job")
	// An edit of the job changes nothing about its queue.
	w.serve(edit(mail, "name: send\n", "name: send\n    max_attempts: 9\n    config: { tag: edited }\n"))
	require.Equal(t, Enqueued{ID: first[0].ID}, w.enqueue("send", EnqueueItem{IdempotencyKey: "k1", Payload: to})[0])

	// Eight at the same moment make one.
	g, ctx := errgroup.WithContext(t.Context())
	var mu sync.Mutex
	ids, made := map[uuid.UUID]bool{}, 0
	for range 8 {
		g.Go(func() error {
			out, err := w.d.Enqueue(ctx, w.caller, "mail", "send", []EnqueueItem{{IdempotencyKey: "k2", Payload: to}})
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
	w.check()
}

// One request of a job does not wait for the next one's COMMIT, unless both name one key: then the first makes the task.
func TestRequestsOfOneJobDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	to := payload(map[string]any{"to": "a"})
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	job, err := w.d.shareQueue(t.Context(), tx, w.caller.OrgID, "mail", "send")
	require.NoError(t, err)
	wanted, err := w.d.wantedItems(job, []EnqueueItem{{IdempotencyKey: "k", Payload: to}})
	require.NoError(t, err)
	first, err := w.d.enqueueTx(t.Context(), tx, job, wanted, time.Now())
	require.NoError(t, err)
	require.True(t, w.enqueue("send", EnqueueItem{IdempotencyKey: "other", Payload: to})[0].Created, "while the first has not committed")

	var both []Enqueued
	var waits errgroup.Group
	waits.Go(func() (err error) {
		both, err = w.d.Enqueue(t.Context(), w.caller, "mail", "send", []EnqueueItem{{Payload: to}, {IdempotencyKey: "k", Payload: to}, {IdempotencyKey: "k", Payload: to}})
		return err
	})
	w.eventually("the second to wait for the key", func() bool {
		return w.count(`SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'`) == 1
	})
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, waits.Wait())
	require.True(t, both[0].Created)
	require.Equal(t, []Enqueued{{ID: first[0].ID}, {ID: first[0].ID}}, both[1:])
	w.check()
}

func TestEnqueueDedupesByFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	first := w.enqueue("once", EnqueueItem{Payload: payload(map[string]any{"to": "a", "n": 1})})[0]
	require.Equal(t, Enqueued{ID: first.ID}, w.enqueue("once", EnqueueItem{Payload: payload(map[string]any{"n": 2, "to": "a"})})[0])
	require.True(t, w.enqueue("once", EnqueueItem{Payload: payload(map[string]any{"to": "b"})})[0].Created)
	_, err := w.d.Enqueue(t.Context(), w.caller, "mail", "once", []EnqueueItem{{Payload: json.RawMessage(`[1]`)}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestEnqueueRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(mail)
	w.serve(pair)
	_, err := w.d.Enqueue(t.Context(), w.caller, "mail", "send", []EnqueueItem{{Payload: payload(map[string]any{"to": "a"})}, {Payload: payload(map[string]any{"n": "x"})}, {}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Len(t, problemsOf(err), 2)
	require.Regexp(t, `^body.items\[1\]: payload: .*to`, problemsOf(err)[0])
	require.Regexp(t, `^body.items\[2\]: payload: `, problemsOf(err)[1])
	require.Zero(t, w.count(`SELECT FROM tasks WHERE kind = 'manual'`), "all or nothing")
	_, err = w.d.Enqueue(t.Context(), w.caller, "mail", "load", []EnqueueItem{{Partition: "a/b"}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	for job, kind := range map[string]fault.Kind{"pair/made": fault.Invalid, "pair/raw": fault.Invalid, "mail/none": fault.NotFound, "none/none": fault.NotFound} {
		var dag, name string
		_, _ = fmt.Sscanf(edit(job, "/", " "), "%s %s", &dag, &name)
		_, err := w.d.Enqueue(t.Context(), w.caller, dag, name, []EnqueueItem{{}})
		require.Equal(t, kind, fault.KindOf(err), "%s: %v", job, err)
	}
}

// Each task asked for by hand is done with its own payload; those of one output partition one after the other.
func TestEnqueuedForOnePartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	w.probe.on("load", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.probe.write(ctx, task, string(task.Payload))
	})
	at := later(time.Hour)
	out := w.enqueue("load", EnqueueItem{Partition: "p", Payload: json.RawMessage(`1`), IdempotencyKey: "a"}, EnqueueItem{Partition: "p", Payload: json.RawMessage(`2`), IdempotencyKey: "b"},
		EnqueueItem{Partition: "p", Payload: json.RawMessage(`3`)}, EnqueueItem{Partition: "q", Payload: json.RawMessage(`4`)}, EnqueueItem{Partition: "q", Payload: json.RawMessage(`5`), RunAt: &at})
	for i, o := range out {
		require.True(t, o.Created, i)
	}
	w.check()
	running := w.claim(w.d)
	require.Len(t, running, 2, "one of p, one of q")
	w.check()
	for _, task := range running {
		w.d.execute(t.Context(), task)
	}
	w.settle()
	require.Equal(t, map[string]int64{"p": 3, "q": 1}, w.published("load"))
	require.Equal(t, map[string][]string{"p": {"3"}, "q": {"4"}}, w.read("loaded"))
	w.promote(at)
	w.settle()
	require.Equal(t, map[string][]string{"p": {"3"}, "q": {"5"}}, w.read("loaded"))
}

func TestEnqueueOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	high, low := 10, -10
	to := payload(map[string]any{"to": "a"})
	past, future := later(-time.Hour), later(time.Hour)
	out := w.enqueue("send", EnqueueItem{Payload: to, Priority: &low}, EnqueueItem{Payload: to}, EnqueueItem{Payload: to, Priority: &high},
		EnqueueItem{Payload: to, RunAt: &future, Priority: &high}, EnqueueItem{Payload: to, RunAt: &past})
	var order []uuid.UUID
	for range 4 {
		tasks, err := w.d.claim(t.Context(), []string{"dispatcher"}, "one", 1, later(0))
		require.NoError(t, err)
		require.Len(t, tasks, 1)
		order = append(order, tasks[0].TaskID)
	}
	require.Equal(t, []uuid.UUID{out[2].ID, out[1].ID, out[4].ID, out[0].ID}, order)
	require.Empty(t, w.claim(w.d))
	w.promote(future)
	require.Equal(t, out[3].ID, w.one(w.d).TaskID)
	w.check()
}
