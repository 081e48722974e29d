package dispatcher_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/pg"
)

// joined is a DAG with a job that reads left and right together.
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
	w := dispatchertest.NewWorld(t)
	w.Serve(join)
	const rounds = 200
	for i := range rounds {
		key := fmt.Sprintf("k%03d", i)
		w.Probe.Put("left", key, "l")
		w.Probe.Put("right", key, "r")
	}
	w.Poll()
	tasks := map[string][]dispatcher.Claimed{}
	for more := true; more; {
		some := w.Claim(w.D)
		for _, task := range some {
			tasks[task.Slot] = append(tasks[task.Slot], task)
		}
		more = len(some) > 0
	}
	require.Len(t, tasks, rounds)
	routers := []*service.Service{w.Dispatcher("a"), w.Dispatcher("b")}
	for key, two := range tasks {
		require.Len(t, two, 2)
		var start sync.WaitGroup
		start.Add(1)
		g, ctx := errgroup.WithContext(t.Context())
		for i, task := range two {
			c := w.Do(w.D, task)
			g.Go(func() error {
				start.Wait()
				if err := routers[i].CompleteAttempt(ctx, task, c, dispatchertest.Later(0)); err != nil {
					return err
				}
				_, err := routers[i].RouteOnce(ctx, dispatchertest.Later(0))
				return err
			})
		}
		start.Done()
		require.NoError(t, g.Wait())
		require.Equal(t, 1, w.Count(`SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'both'
			AND t.slot = $1`, key), key)
	}
	w.Check()
	require.Equal(t, rounds, w.Count(`SELECT FROM ready`))
}

func TestAnyMakesATaskForWhatIsThere(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("left", "k", "l")
	w.Serve(dispatchertest.Edit(join, "execution_strategy: PerPartition",
		"execution_strategy: PerPartition\n    trigger: any"))
	require.Equal(t, map[string][]string{"k": {"b(l,)"}}, w.Read("both"))
	w.Probe.Put("right", "k", "r")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"k": {"b(l,r)"}}, w.Read("both"))
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
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("left", "k", "l")
			w.Serve(dispatchertest.Edit(join, "{ from: { job: right } }", c.input))
			require.Empty(t, w.Read("both"), "it waits for the dimension's first partition")
			w.Probe.Put("right", "x", "r1")
			w.Poll()
			w.Settle()
			require.Equal(t, map[string][]string{"k": {"b(l,r1)"}}, w.Read("both"))
			w.Probe.Put("right", "x", "r2")
			w.Poll()
			w.Settle()
			require.Equal(t, map[string][]string{"k": {c.after}}, w.Read("both"))
		})
	}
}

// Everything that is delivered twice is processed once.
func TestEverythingTwice(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	for _, content := range []string{"b", "c", "d"} {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		w.Poll()
		w.Work()
		w.Exec(`INSERT INTO outbox (org_id, kind, payload) SELECT org_id, kind, payload FROM outbox`)
		var events []dispatcher.Event
		require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			rows, err := tx.Query(ctx, `SELECT id FROM events`)
			if err != nil {
				return err
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
			if err != nil {
				return err
			}
			if events, err = dispatcher.LoadEvents(ctx, tx, ids); err != nil {
				return err
			}
			for i := range events {
				events[i].ID = uuid.Must(uuid.NewV7()) // another id, as if another caller had reported it
			}
			var b pg.Batch
			dispatcher.Accept(&b, events, dispatcher.ByRouter, dispatchertest.Later(0))
			return b.Send(ctx, tx)
		}))
		w.Route()
		w.Exec(`INSERT INTO outbox (org_id, kind, payload)
			SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) FROM events GROUP BY org_id`)
		w.Settle()
	}
	require.Equal(t, []string{"m(d)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 4}, w.Published("made"))
	require.Equal(t, 4, w.Attempts("made"))
	require.Equal(t, 8, w.Count(`SELECT FROM events`))
	require.Equal(t, 4, w.Count(`SELECT FROM event_outcomes WHERE outcome = 'triggered'`))
	require.Zero(t, w.Count(`SELECT FROM outbox`))
}

func TestManyClaimersLeaseEachTaskOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "partition_by: { time: day }", "partition_by: key"))
	for i := range 300 {
		w.Probe.Put("raw", fmt.Sprintf("k%03d", i), "a")
	}
	w.Poll()
	var mu sync.Mutex
	leased := map[uuid.UUID]int{}
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 8 {
		d := w.Dispatcher(fmt.Sprint("claimer", i))
		g.Go(func() error {
			for {
				tasks, err := d.Claim(ctx, []string{"dispatcher"}, d.WorkerID, 7, dispatchertest.Later(0))
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
	w.Check()
}

// A row that cannot be routed is postponed, and the others of its batch are routed.
func TestAPoisonedOutboxRow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	w.Work()
	w.Exec(`INSERT INTO outbox (org_id, kind, payload, available_at)
		VALUES ($1, 'route_event', '{"event_ids": ["no uuid"]}', now() - interval '1 hour')`, w.Caller.OrgID)
	now := dispatchertest.Later(0)
	_, err := w.D.RouteOnce(t.Context(), now)
	require.NoError(t, err)
	require.Equal(t, 1, w.Count(`SELECT FROM ready`))
	require.Equal(t, 1, w.Count(`SELECT FROM outbox WHERE attempts = 1 AND last_error LIKE '%invalid UUID%'
		AND available_at > now()`))
	for range 30 {
		now = now.Add(10 * 60 * 1e9)
		_, _ = w.D.RouteOnce(t.Context(), now)
	}
	require.Equal(t, 1, w.Count(`SELECT FROM outbox WHERE attempts = 20 AND status = 'Failed'`),
		"it is left for people to see")
	w.Settle()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

// Events, outbox rows and wake-ups are only hints: without them, the same tasks are created later.
func TestLostHints(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]string{
		"outbox rows":         `DELETE FROM outbox`,
		"events":              `DELETE FROM events`,
		"events and accounts": `WITH a AS (DELETE FROM events) DELETE FROM event_consumers`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Probe.Put("raw", dispatchertest.FirstDay, "b")
			w.Poll()
			w.Work()
			w.Exec(lose)
			w.Settle()
			require.Equal(t, []string{"m(a)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
			w.Settle()
			require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
			w.Settle()
			require.Equal(t, 2, w.Attempts("made"), "nothing is left to repair")
		})
	}
}

// Finished tasks may be deleted: staleness is decided by the recorded inputs of revisions.
func TestRetentionMakesNothingAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*upkeep.KeepTasks)))
	require.Zero(t, w.Count(`SELECT FROM tasks UNION ALL SELECT FROM events UNION ALL SELECT FROM task_events UNION ALL
		SELECT FROM task_attempts`))
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Poll()
	require.Zero(t, w.Count(`SELECT FROM tasks`))
	w.Change("b")
	w.Settle()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

// An open task that is in no set, for example after a manual restore, is placed again; if its slot is taken, it waits
// for it.
func TestStrayTasks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	w.Exec(`DELETE FROM ready`)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*60*1e9)))
	require.Equal(t, 1, w.Count(`SELECT FROM ready`))
	w.Check()
	running := w.One(w.D)
	w.Change("c")
	w.Exec(`DELETE FROM waiting`)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*60*1e9)))
	w.Check()
	require.Empty(t, w.Claim(w.D))
	require.NoError(t, w.D.CompleteAttempt(t.Context(), running, w.Do(w.D, running), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

// However many tasks are due at one moment, each transaction moves a bounded number of them.
func TestManyDueTasksMoveInSmallTransactions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve("name: manual\njobs:\n  - { name: hand, operator: hook, source: { kind: manual }, outputs: 0 }\n")
	soon := dispatchertest.Later(60 * 60 * 1e9)
	items := make([]dispatcher.EnqueueItem, 450)
	for i := range items {
		items[i] = dispatcher.EnqueueItem{Payload: dispatchertest.Payload(i), RunAt: &soon}
	}
	_, err := w.D.Enqueue(t.Context(), w.Caller, "manual", "hand", items)
	require.NoError(t, err)
	var ready []int
	for more := true; more; {
		more, err = w.D.PromoteDue(t.Context(), dispatchertest.Later(2*60*60*1e9))
		require.NoError(t, err)
		ready = append(ready, w.Count(`SELECT FROM ready`))
	}
	require.Equal(t, []int{200, 400, 450}, ready)
	w.Check()
}
