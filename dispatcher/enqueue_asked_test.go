package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/operators"
)

// asking has a job whose tasks ask for tasks of others.
const asking = `
name: asking
jobs:
  - name: plan
    operator: hook
    source: { kind: manual }
    outputs: 0
    max_attempts: 3
    enqueues: [send, plan, load]
  - name: send
    operator: hook
    source: { kind: manual }
    outputs: 0
    scaling: { max_concurrency: 2 }
    payload_schema: { type: object, required: [to], properties: { to: { type: string } } }
  - name: load
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: { tag: l }
  - name: other
    operator: hook
    source: { kind: manual }
    outputs: 0
publish:
  asked_loaded: { from: { job: load } }
`

func askingWorld(t *testing.T, tasks ...operators.EnqueuedTask) *world {
	t.Helper()
	w := newWorld(t)
	w.serve(asking)
	w.probe.on("plan", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Tasks: tasks}, nil
	})
	return w
}

func (tn *tenant) plan() uuid.UUID {
	tn.w.t.Helper()
	made, err := tn.w.d.Enqueue(tn.w.t.Context(), tn.caller, "asking", "plan", []EnqueueItem{{}})
	require.NoError(tn.w.t, err)
	return made[0].ID
}

func TestTasksAskForTasks(t *testing.T) {
	t.Parallel()
	soon, priority := later(time.Hour), 7
	w := askingWorld(t,
		operators.EnqueuedTask{Job: "send", IdempotencyKey: "k", Payload: payload(map[string]string{"to": "a"}), Priority: &priority, MaxAttempts: 9,
			Metadata: payload(map[string]int{"n": 1}), ConcurrencyKey: "one"},
		operators.EnqueuedTask{Job: "asking/send", Payload: payload(map[string]string{"to": "b"}), RunAt: &soon},
		operators.EnqueuedTask{Job: "load", PartitionKey: "p"})
	w.plan()
	tasks := w.claim(w.d)
	require.Len(t, tasks, 1)
	done := w.do(w.d, tasks[0])
	require.Equal(t, 1, w.count(`SELECT FROM tasks`), "nothing before it commits")
	require.NoError(t, w.d.complete(t.Context(), tasks[0], done, time.Now()))
	require.NoError(t, w.d.complete(t.Context(), tasks[0], done, time.Now()), "an answer that was lost")
	require.Equal(t, 4, w.count(`SELECT FROM tasks`))
	require.Equal(t, []string{"manual k 7 9 one 1"}, texts(t, w.pool, `SELECT concat_ws(' ', kind, replace(dedupe_key, 'key:', ''), priority, max_attempts, concurrency_key, metadata->>'n')
		FROM tasks WHERE payload->>'to' = 'a'`))
	require.Equal(t, 1, w.count(`SELECT FROM waiting WHERE reason = 'run_at'`))
	w.settle()
	require.Len(t, w.read("asked_loaded"), 1)

	// The same again: one that is known by its key is not made twice.
	w.plan()
	w.settle()
	require.Equal(t, 1, w.count(`SELECT FROM tasks WHERE payload->>'to' = 'a'`))
	require.Equal(t, 2, w.count(`SELECT FROM tasks WHERE payload->>'to' = 'b'`))
	w.promote(later(2 * time.Hour))

	// What is open survives an edit of its job.
	w.plan()
	w.serve(edit(asking, "config: { tag: l }", "config: { tag: changed }"))
	w.settle()
	w.check()
	require.Empty(t, texts(t, w.pool, `SELECT id::text FROM tasks WHERE status IN ('Canceled', 'Failed')`))
}

// What cannot be made ends the attempt for good and says where; nothing of it is made.
func TestWhatMayNotBeAskedFor(t *testing.T) {
	t.Parallel()
	good := operators.EnqueuedTask{Job: "send", Payload: payload(map[string]string{"to": "a"})}
	for name, c := range map[string]struct {
		bad  operators.EnqueuedTask
		says string
	}{
		"a job that is not named": {operators.EnqueuedTask{Job: "other"}, `tasks[1].job: asking/plan does not name "other" in ` + "`enqueues`"},
		"another DAG's":           {operators.EnqueuedTask{Job: "mail/send"}, "is of another DAG"},
		"a payload":               {operators.EnqueuedTask{Job: "send", Payload: payload(map[string]int{"to": 1})}, "payload: "},
		"a partition":             {operators.EnqueuedTask{Job: "load", PartitionKey: "a/b"}, "partition key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := askingWorld(t, good, c.bad)
			id := w.plan()
			w.work()
			require.Equal(t, "Failed error waiting:dead", w.task(id))
			var message string
			w.row(`SELECT error_message FROM tasks WHERE id = $1`, id)(&message)
			require.Contains(t, message, c.says)
			require.Equal(t, 1, w.count(`SELECT FROM tasks`))
			w.check()
		})
	}
}

// An attempt that was fenced off has asked for nothing.
func TestAFencedAttemptAsksForNothing(t *testing.T) {
	t.Parallel()
	w := askingWorld(t, operators.EnqueuedTask{Job: "send", Payload: payload(map[string]string{"to": "a"})})
	w.plan()
	first := w.one(w.d)
	done := w.do(w.d, first)
	w.reap(later(time.Hour))
	w.promote(later(2 * time.Hour))
	second := w.one(w.d)
	require.Error(t, w.d.complete(t.Context(), first, done, time.Now()))
	require.Equal(t, 1, w.count(`SELECT FROM tasks`))
	w.d.execute(t.Context(), second)
	require.Equal(t, 2, w.count(`SELECT FROM tasks`))
}

// Tasks that ask for each other's, under limits, from many processes: none waits for another for ever, and none is lost.
func TestManyTasksAskAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(edit(asking, "enqueues: [send, plan, load]", "enqueues: [send, plan, load]\n    scaling: { max_concurrency: 3 }"))
	w.probe.on("plan", func(_ context.Context, task *operators.Task) (operators.Result, error) {
		var depth struct{ Depth int }
		_ = json.Unmarshal(task.Payload, &depth)
		var tasks []operators.EnqueuedTask
		for i := range 3 {
			tasks = append(tasks, operators.EnqueuedTask{Job: "send", Payload: payload(map[string]string{"to": fmt.Sprint(i)}), ConcurrencyKey: fmt.Sprint("c", i%2)})
			if depth.Depth < 2 {
				tasks = append(tasks, operators.EnqueuedTask{Job: "plan", Payload: payload(map[string]int{"depth": depth.Depth + 1})})
			}
		}
		return operators.Result{Tasks: tasks}, nil
	})
	w.plan()
	const plans = 1 + 3 + 9
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		d := w.dispatcher(fmt.Sprint("worker", i))
		g.Go(func() error {
			for w.count(`SELECT FROM tasks WHERE status = 'Completed'`) < plans*4 {
				tasks, err := d.claim(ctx, d.inProcessRuntimes(), d.WorkerID, 3, time.Now())
				if err != nil {
					return err
				}
				for _, task := range tasks {
					d.execute(ctx, task)
				}
				if _, err := d.promoteDue(ctx, later(time.Minute)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, plans*4, w.count(`SELECT FROM tasks`))
	require.Zero(t, w.count(`SELECT FROM tasks WHERE attempt > 1`), "no attempt failed")
	w.check()
	require.Zero(t, w.count(`SELECT FROM limits WHERE held <> 0`))
}
