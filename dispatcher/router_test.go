package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/pg"
)

// joined: left and right are read together.
const join = `
name: join
jobs:
  - name: left
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { list: left }
  - name: right
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { list: right }
  - name: both
    operator: hook
    inputs: [{ from: { job: left } }, { from: { job: right } }]
    execution_strategy: PerPartition
    config: { tag: b }
publish:
  both: { from: { job: both } }
`

// Two inputs whose events are committed and routed at the same moment make exactly one task, and never none.
func TestTwoInputsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(join)
	const rounds = 200
	for i := range rounds {
		key := fmt.Sprintf("k%03d", i)
		w.probe.put("left", key, "l")
		w.probe.put("right", key, "r")
	}
	w.poll()
	tasks := map[string][]claimed{}
	for more := true; more; {
		some := w.claim(w.d)
		for _, task := range some {
			tasks[task.slot] = append(tasks[task.slot], task)
		}
		more = len(some) > 0
	}
	require.Len(t, tasks, rounds)
	routers := []*Dispatcher{w.dispatcher("a"), w.dispatcher("b")}
	for key, two := range tasks {
		require.Len(t, two, 2)
		var start sync.WaitGroup
		start.Add(1)
		g, ctx := errgroup.WithContext(t.Context())
		for i, task := range two {
			c := w.do(w.d, task)
			g.Go(func() error {
				start.Wait()
				if err := routers[i].complete(ctx, task, c, later(0)); err != nil {
					return err
				}
				_, err := routers[i].routeOnce(ctx, later(0))
				return err
			})
		}
		start.Done()
		require.NoError(t, g.Wait())
		require.Equal(t, 1, w.count(`SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'both' AND t.slot = $1`, key), key)
	}
	w.check()
	require.Equal(t, rounds, w.count(`SELECT FROM ready`))
}

func TestAnyMakesATaskForWhatIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("left", "k", "l")
	w.serve(edit(join, "execution_strategy: PerPartition", "execution_strategy: PerPartition\n    trigger: any"))
	require.Equal(t, map[string][]string{"k": {"b(l,)"}}, w.read("both"))
	w.probe.put("right", "k", "r")
	w.poll()
	w.settle()
	require.Equal(t, map[string][]string{"k": {"b(l,r)"}}, w.read("both"))
}

func TestADimensionDoesNotTrigger(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		input string
		after string
	}{
		"latest":       {"{ from: { job: right }, map: latest }", "b(l,r1)"},
		"with refresh": {"{ from: { job: right }, map: latest, refresh: true }", "b(l,r2)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("left", "k", "l")
			w.serve(edit(join, "{ from: { job: right } }", c.input))
			require.Empty(t, w.read("both"), "it waits for the dimension's first partition")
			w.probe.put("right", "x", "r1")
			w.poll()
			w.settle()
			require.Equal(t, map[string][]string{"k": {"b(l,r1)"}}, w.read("both"))
			w.probe.put("right", "x", "r2")
			w.poll()
			w.settle()
			require.Equal(t, map[string][]string{"k": {c.after}}, w.read("both"))
		})
	}
}

// Whatever is delivered twice is done once.
func TestEverythingTwice(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	for _, content := range []string{"b", "c", "d"} {
		w.probe.put("raw", firstDay, content)
		w.poll()
		w.poll()
		w.work()
		w.exec(`INSERT INTO outbox (org_id, kind, payload) SELECT org_id, kind, payload FROM outbox`)
		var events []Event
		require.NoError(t, pg.InTx(t.Context(), w.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			rows, err := tx.Query(ctx, `SELECT id FROM events`)
			if err != nil {
				return err
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
			if err != nil {
				return err
			}
			if events, err = loadEvents(ctx, tx, ids); err != nil {
				return err
			}
			for i := range events {
				events[i].ID = uuid.Must(uuid.NewV7()) // reported by another
			}
			return accept(ctx, tx, events, later(0))
		}))
		w.route()
		w.exec(`INSERT INTO outbox (org_id, kind, payload) SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) FROM events GROUP BY org_id`)
		w.settle()
	}
	require.Equal(t, []string{"m(d)"}, w.read("pair_made")[firstDay])
	require.Equal(t, map[string]int64{firstDay: 4}, w.published("made"))
	require.Equal(t, 4, w.attempts("made"))
	require.Equal(t, 8, w.count(`SELECT FROM events`))
	require.Equal(t, 4, w.count(`SELECT FROM event_outcomes WHERE outcome = 'triggered'`))
	require.Zero(t, w.count(`SELECT FROM outbox`))
}

func TestManyClaimersLeaseEachTaskOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(edit(pair, "partition_by: { time: day }", "partition_by: key"))
	for i := range 300 {
		w.probe.put("raw", fmt.Sprintf("k%03d", i), "a")
	}
	w.poll()
	var mu sync.Mutex
	leased := map[uuid.UUID]int{}
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 8 {
		d := w.dispatcher(fmt.Sprint("claimer", i))
		g.Go(func() error {
			for {
				tasks, err := d.claim(ctx, []string{"dispatcher"}, d.WorkerID, 7, later(0))
				if err != nil || len(tasks) == 0 {
					return err
				}
				mu.Lock()
				for _, task := range tasks {
					leased[task.TaskID]++
				}
				mu.Unlock()
			}
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, leased, 300)
	for id, n := range leased {
		require.Equal(t, 1, n, id)
	}
	w.check()
}

// A row that cannot be routed is put off, and the others of its batch are routed.
func TestAPoisonedOutboxRow(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.probe.put("raw", firstDay, "b")
	w.poll()
	w.work()
	w.exec(`INSERT INTO outbox (org_id, kind, payload, available_at) VALUES ($1, 'route_event', '{"event_ids": ["no uuid"]}', now() - interval '1 hour')`, w.caller.OrgID)
	now := later(0)
	_, err := w.d.routeOnce(t.Context(), now)
	require.NoError(t, err)
	require.Equal(t, 1, w.count(`SELECT FROM ready`))
	require.Equal(t, 1, w.count(`SELECT FROM outbox WHERE attempts = 1 AND last_error LIKE '%invalid UUID%' AND available_at > now()`))
	for range 30 {
		now = now.Add(10 * 60 * 1e9)
		_, _ = w.d.routeOnce(t.Context(), now)
	}
	require.Equal(t, 1, w.count(`SELECT FROM outbox WHERE attempts = 20 AND status = 'Failed'`), "it is left for people to see")
	w.settle()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
}

// Events, outbox rows and wake-ups are hints: what they would have brought about comes about without them.
func TestLostHints(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]string{
		"outbox rows":         `DELETE FROM outbox`,
		"events":              `DELETE FROM events`,
		"events and accounts": `WITH a AS (DELETE FROM events) DELETE FROM event_consumers`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.probe.put("raw", firstDay, "b")
			w.poll()
			w.work()
			w.exec(lose)
			w.settle()
			require.Equal(t, []string{"m(a)"}, w.read("pair_made")[firstDay])
			require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
			w.settle()
			require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
			require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
			w.settle()
			require.Equal(t, 2, w.attempts("made"), "nothing is left to repair")
		})
	}
}

// Finished tasks may be forgotten: what is stale is told by what was made.
func TestRetentionMakesNothingAgain(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	require.NoError(t, w.d.sweepRetention(t.Context(), later(2*keepTasks)))
	require.Zero(t, w.count(`SELECT FROM tasks UNION ALL SELECT FROM events UNION ALL SELECT FROM task_events UNION ALL SELECT FROM task_attempts`))
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.poll()
	require.Zero(t, w.count(`SELECT FROM tasks`))
	w.change("b")
	w.settle()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
}

// An open task that is in no set, as after a restore by hand, is placed again; one whose slot is taken waits for it.
func TestStrayTasks(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	w.exec(`DELETE FROM ready`)
	require.NoError(t, w.d.replaceStrays(t.Context(), later(2*60*1e9)))
	require.Equal(t, 1, w.count(`SELECT FROM ready`))
	w.check()
	running := w.one(w.d)
	w.change("c")
	w.exec(`DELETE FROM waiting`)
	require.NoError(t, w.d.replaceStrays(t.Context(), later(2*60*1e9)))
	w.check()
	require.Empty(t, w.claim(w.d))
	require.NoError(t, w.d.complete(t.Context(), running, w.do(w.d, running), later(0)))
	w.settle()
	require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])
}
