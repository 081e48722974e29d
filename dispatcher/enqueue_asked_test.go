package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
)

// asking has a job whose tasks enqueue tasks of other jobs.
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

func askingWorld(t *testing.T, tasks ...operators.EnqueuedTask) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Serve(asking)
	w.Probe.On("plan", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Tasks: tasks}, nil
	})
	return w
}

func plan(tn *dispatchertest.Tenant) uuid.UUID {
	tn.W.T.Helper()
	made, err := tn.W.D.Enqueue(tn.W.T.Context(), tn.Caller, "asking", "plan", []dispatcher.EnqueueItem{{}})
	require.NoError(tn.W.T, err)
	return made[0].ID
}

func TestTasksAskForTasks(t *testing.T) {
	t.Parallel()
	soon, priority := dispatchertest.Later(time.Hour), 7
	w := askingWorld(t,
		operators.EnqueuedTask{Job: "send", IdempotencyKey: "k",
			Payload: dispatchertest.Payload(map[string]string{"to": "a"}), Priority: &priority, MaxAttempts: 9,
			Metadata: dispatchertest.Payload(map[string]int{"n": 1}), ConcurrencyKey: "one"},
		operators.EnqueuedTask{Job: "asking/send", Payload: dispatchertest.Payload(map[string]string{"to": "b"}),
			RunAt: &soon},
		operators.EnqueuedTask{Job: "load", PartitionKey: "p"})
	plan(w.Tenant)
	tasks := w.Claim(w.D)
	require.Len(t, tasks, 1)
	done := w.Do(w.D, tasks[0])
	require.Equal(t, 1, w.Count(`SELECT FROM tasks`), "nothing before it commits")
	require.NoError(t, w.D.CompleteAttempt(t.Context(), tasks[0], done, time.Now()))
	require.NoError(t, w.D.CompleteAttempt(t.Context(), tasks[0], done, time.Now()), "an answer that was lost")
	require.Equal(t, 4, w.Count(`SELECT FROM tasks`))
	require.Equal(t, []string{"manual k 7 9 one 1"}, dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', kind,
		replace(dedupe_key, 'key:', ''), priority, max_attempts, concurrency_key, metadata->>'n')
		FROM tasks WHERE payload->>'to' = 'a'`))
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'run_at'`))
	w.Settle()
	require.Len(t, w.Read("asked_loaded"), 1)

	// Enqueued again: a task with the same key is not created twice.
	plan(w.Tenant)
	w.Settle()
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE payload->>'to' = 'a'`))
	require.Equal(t, 2, w.Count(`SELECT FROM tasks WHERE payload->>'to' = 'b'`))
	w.Promote(dispatchertest.Later(2 * time.Hour))

	// Open tasks survive an edit of their job.
	plan(w.Tenant)
	w.Serve(dispatchertest.Edit(asking, "config: { tag: l }", "config: { tag: changed }"))
	w.Settle()
	w.Check()
	require.Empty(t, dispatchertest.Texts(t, w.Pool,
		`SELECT id::text FROM tasks WHERE status IN ('Canceled', 'Failed')`))
}

// A request that cannot be met ends the attempt for good with an error that names it; none of its tasks is created.
func TestWhatMayNotBeAskedFor(t *testing.T) {
	t.Parallel()
	beyond := 99999999999
	good := operators.EnqueuedTask{Job: "send", Payload: dispatchertest.Payload(map[string]string{"to": "a"})}
	for name, c := range map[string]struct {
		bad  operators.EnqueuedTask
		says string
	}{
		"a job that is not named": {operators.EnqueuedTask{Job: "other"},
			`tasks[1].job: asking/plan does not name "other" in ` + "`enqueues`"},
		"another DAG's": {operators.EnqueuedTask{Job: "mail/send"}, "is in another DAG"},
		"a payload": {operators.EnqueuedTask{Job: "send", Payload: dispatchertest.Payload(map[string]int{"to": 1})},
			"payload: "},
		"a priority": {operators.EnqueuedTask{Job: "load", PartitionKey: "p", Priority: &beyond},
			"tasks[1].priority: 99999999999 is not between -1000 and 1000"},
		"a number of attempts": {operators.EnqueuedTask{Job: "load", PartitionKey: "p", MaxAttempts: beyond},
			"tasks[1].max_attempts: 99999999999 is not between 1 and 100"},
		"a deep payload": {operators.EnqueuedTask{Job: "load", PartitionKey: "p",
			Payload: json.RawMessage(strings.Repeat("[", 600) + strings.Repeat("]", 600))}, "is nested too deeply"},
		"a partition": {operators.EnqueuedTask{Job: "load", PartitionKey: "a/b"}, "partition key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := askingWorld(t, good, c.bad)
			id := plan(w.Tenant)
			w.Work()
			require.Equal(t, "Failed error waiting:dead", w.Task(id))
			var message string
			w.Row(`SELECT error_message FROM tasks WHERE id = $1`, id)(&message)
			require.Contains(t, message, c.says)
			require.Equal(t, 1, w.Count(`SELECT FROM tasks`))
			w.Check()
		})
	}
}

// The requests of an attempt that was fenced off have no effect.
func TestAFencedAttemptAsksForNothing(t *testing.T) {
	t.Parallel()
	w := askingWorld(t, operators.EnqueuedTask{Job: "send",
		Payload: dispatchertest.Payload(map[string]string{"to": "a"})})
	plan(w.Tenant)
	first := w.One(w.D)
	done := w.Do(w.D, first)
	w.Reap(dispatchertest.Later(time.Hour))
	w.Promote(dispatchertest.Later(2 * time.Hour))
	second := w.One(w.D)
	require.Error(t, w.D.CompleteAttempt(t.Context(), first, done, time.Now()))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks`))
	dispatchertest.Execute(t.Context(), w.D, second)
	require.Equal(t, 2, w.Count(`SELECT FROM tasks`))
}

// Many processes run tasks that enqueue each other's tasks under limits: there is no deadlock, and no task is lost.
func TestManyTasksAskAtOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(asking, "enqueues: [send, plan, load]",
		"enqueues: [send, plan, load]\n    scaling: { max_concurrency: 3 }"))
	w.Probe.On("plan", func(_ context.Context, task *operators.Task) (operators.Result, error) {
		var depth struct{ Depth int }
		_ = json.Unmarshal(task.Payload, &depth)
		var tasks []operators.EnqueuedTask
		for i := range 3 {
			tasks = append(tasks, operators.EnqueuedTask{Job: "send",
				Payload: dispatchertest.Payload(map[string]string{"to": fmt.Sprint(i)}), ConcurrencyKey: fmt.Sprint("c",
					i%2)})
			if depth.Depth < 2 {
				tasks = append(tasks, operators.EnqueuedTask{Job: "plan",
					Payload: dispatchertest.Payload(map[string]int{"depth": depth.Depth + 1})})
			}
		}
		return operators.Result{Tasks: tasks}, nil
	})
	plan(w.Tenant)
	const plans = 1 + 3 + 9
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		d := w.Dispatcher(fmt.Sprint("worker", i))
		g.Go(func() error {
			for w.Count(`SELECT FROM tasks WHERE status = 'Completed'`) < plans*4 {
				tasks, err := d.Claim(ctx, d.InProcessRuntimes(), d.WorkerID, 3, time.Now())
				if err != nil {
					return err
				}
				for _, task := range tasks {
					dispatchertest.Execute(ctx, d, task)
				}
				if _, err := d.PromoteDue(ctx, dispatchertest.Later(time.Minute)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, plans*4, w.Count(`SELECT FROM tasks`))
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE attempt > 1`), "no attempt failed")
	w.Check()
	require.Zero(t, w.Count(`SELECT FROM limits WHERE held <> 0`))
}
