package views_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/operators"
)

func TestAttemptsAreCountedOnceEach(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	before := w.FiguresOf(w.D)
	runs := 0
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if runs++; runs < 3 {
			return operators.Result{}, errors.New("not yet")
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "at last")
	})
	w.Change("b")
	w.Work()
	w.Promote(dispatchertest.Later(time.Minute))
	w.Work()
	w.Promote(dispatchertest.Later(time.Minute))
	w.Settle()

	w.Change("c") // a lease that is lost, then a late completion
	lost := w.One(w.D)
	w.Reap(dispatchertest.Later(time.Hour))
	require.NoError(t, w.D.CompleteAttempt(t.Context(), lost, w.Do(w.D, lost), dispatchertest.Later(0)))
	w.Settle()

	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("never"))
	})
	w.Change("d")
	w.Work()

	after := w.FiguresOf(w.D)
	grown := map[string]float64{}
	for name, v := range after {
		if grew := v - before[name]; grew != 0 && strings.Contains(name, "_total{") {
			grown[name] = grew
		}
	}
	require.Equal(t, map[string]float64{
		"attempts_total{org=acme,outcome=Failed}": 3, "attempts_total{org=acme,outcome=lease_expired}": 1,
		"attempts_total{org=acme,outcome=Completed}": grown["attempts_total{org=acme,outcome=Completed}"],
		"retries_total{org=acme}":                    3, "dead_tasks_total{org=acme}": 1,
		"lease_expiries_total{org=acme}": 1,
		"events_routed_total{org=acme}":  grown["events_routed_total{org=acme}"],
	}, grown)
	require.Equal(t, w.Count(`SELECT FROM tasks WHERE status = 'Completed'`),
		int(after["attempts_total{org=acme,outcome=Completed}"]))
	require.Equal(t, w.Count(`SELECT FROM events`), int(after["events_routed_total{org=acme}"]))
	for _, step := range []string{"claim", "complete", "route"} {
		require.Positive(t, after["batch_size{step="+step+"}"], step)
		require.Equal(t, after["batch_size{step="+step+"}"], after["batch_seconds{step="+step+"}"], step)
	}
	require.Positive(t, after["cutover_seconds{}"])
	require.Equal(t, 1.0, after["waiting_tasks{org=acme,reason=dead}"])
	require.NotContains(t, after, "running_tasks{org=acme}")

	// Dead tasks of jobs that no version runs any more call nobody.
	w.Exec(`UPDATE dag_versions SET status = 'Abandoned'`)
	ended := w.FiguresOf(w.D)
	require.Equal(t, 1.0, ended["waiting_tasks{org=acme,reason=dead_ended}"])
	require.NotContains(t, ended, "waiting_tasks{org=acme,reason=dead}")
}

// The work of a transaction that was rolled back is not counted.
func TestWhatWasNotCommittedIsNotCounted(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	w.Route()
	task := w.One(w.D)
	done := w.Do(w.D, task)
	w.Exec(`ALTER TABLE task_events RENAME TO hidden`)
	require.Error(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
	w.Exec(`ALTER TABLE hidden RENAME TO task_events`)
	before := w.FiguresOf(w.D)["attempts_total{org=acme,outcome=Completed}"]
	require.NoError(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
	require.NoError(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)), "said again")
	require.Equal(t, before+1, w.FiguresOf(w.D)["attempts_total{org=acme,outcome=Completed}"])
}

func TestFiguresOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	w.Work()
	w.Exec(`UPDATE outbox SET created_at = now() - interval '1 hour'`)
	f := w.FiguresOf(w.D)
	require.Equal(t, 1.0, f["outbox_pending_rows{kind=route_event,org=acme}"])
	require.InDelta(t, 3600, f["outbox_oldest_seconds{kind=route_event,org=acme}"], 60)
	w.Exec(`UPDATE outbox SET status = 'Failed'`)
	require.Equal(t, 1.0, w.FiguresOf(w.D)["outbox_failed_rows{kind=route_event,org=acme}"])
	w.Exec(`UPDATE outbox SET available_at = now() - interval '25 hours'`)
	require.Zero(t, w.FiguresOf(w.D)["outbox_failed_rows{kind=route_event,org=acme}"], "given up a day ago")
	w.Exec(`UPDATE outbox SET status = 'Pending'`)
	w.Route()
	f = w.FiguresOf(w.D)
	require.NotContains(t, f, "outbox_pending_rows{kind=route_event,org=acme}")
	require.Equal(t, 1.0, f["queue_tasks{org=acme,runtime=dispatcher}"])
	require.InDelta(t, 0, f["queue_oldest_seconds{org=acme,runtime=dispatcher}"], 60)
	w.One(w.D)
	f = w.FiguresOf(w.D)
	require.Equal(t, 1.0, f["running_tasks{org=acme}"])
	require.NotContains(t, f, "queue_tasks{org=acme,runtime=dispatcher}")
	w.Exec(`UPDATE sources SET next_fire_at = now() - interval '10 minutes'`)
	n := w.Count(`SELECT FROM sources WHERE next_fire_at IS NOT NULL`)
	require.Positive(t, n)
	f = w.FiguresOf(w.D)
	require.Equal(t, float64(n), f["sources_due{org=acme}"])
	require.InDelta(t, 600, f["source_lag_seconds{org=acme}"], 60)

	// A source that is not to fire is not late: it is paused, or is being replaced.
	w.Exec(`INSERT INTO pauses (org_id, dag_name, job_name, actor, at) SELECT org_id, dag_name, job_name, 'x', now() FROM sources`)
	require.NotContains(t, w.FiguresOf(w.D), "source_lag_seconds{org=acme}")
	w.Exec(`DELETE FROM pauses`)
	w.Exec(`UPDATE sources SET state = 'Draining'`)
	require.NotContains(t, w.FiguresOf(w.D), "source_lag_seconds{org=acme}")
}

// The database is queried every five seconds at most, however often somebody asks. If it does not answer, that is
// reported, and the other metrics stay.
func TestFiguresAreReadSeldomAndMayFail(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	g := &views.Gauges{Views: w.D.Views}
	read := func(now time.Time) (names []string) {
		out := make(chan prometheus.Metric, 100)
		g.Collect(out, now)
		close(out)
		for m := range out {
			names = append(names, fmt.Sprint(m.Desc()))
		}
		return names
	}
	now := time.Now()
	first := read(now)
	w.Exec(`ALTER TABLE ready RENAME TO hidden`)
	require.Equal(t, first, read(now.Add(views.GaugesEvery-time.Millisecond)))
	require.Len(t, read(now.Add(views.GaugesEvery)), 1, "how long it took")
	w.Exec(`ALTER TABLE hidden RENAME TO ready`)
	require.Len(t, read(now.Add(views.GaugesEvery+time.Second)), 1, "nor is a failure repeated at once")
	require.Equal(t, first, read(now.Add(2*views.GaugesEvery)))
	require.Equal(t, 1.0, w.FiguresOf(w.D)["gauge_failures_total{}"])
}

// Whatever workers of an org say of themselves is told of that org, and nobody else's tasks count as served by them.
func TestWorkersOfAnOrgServeItsTasksOnly(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	w.Work()
	w.Route()
	w.Exec(`DELETE FROM workers`)
	const slots, unserved = "worker_slots{org=%s}", "queue_unserved_tasks{org=acme,runtime=dispatcher}"
	f := w.FiguresOf(w.D)
	require.Contains(t, f, fmt.Sprintf(slots, ""))
	require.Zero(t, f[fmt.Sprintf(slots, "")])
	require.Equal(t, 1.0, f[unserved])

	other := uuid.New()
	enter := func(org uuid.UUID) {
		w.Exec(`INSERT INTO workers (token, id, hostname, pool_size, last_heartbeat, runtimes, orgs)
			SELECT $1::text || '/w', 'w-' || n, '', 10000, now() + interval '1 hour', '{dispatcher}', ARRAY[$2::uuid]
			FROM generate_series(1, 50) AS n`, org.String(), org)
	}
	enter(other)
	f = w.FiguresOf(w.D)
	require.Zero(t, f[fmt.Sprintf(slots, "")])
	require.Equal(t, 500_000.0, f[fmt.Sprintf(slots, other)])
	require.Equal(t, 50.0, f["workers{org="+other.String()+",state=live}"])
	require.Equal(t, 1.0, f[unserved])
	enter(w.Caller.OrgID)
	f = w.FiguresOf(w.D)
	require.Zero(t, f[unserved])
	require.Contains(t, f, unserved)
}

// Who reads a queue need not say that they live, so that nothing is known of what is unserved there.
func TestQueuesAreNotUnserved(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	with := func(name string, backend backends.Backend) *service.Service {
		return w.Dispatcher(name, func(c *service.Config) {
			c.AWS, c.BaseURL = testaws.Config(t), "https://dagctl.example.com"
			c.Backends = backends.RuntimeMap{"poll": {backend}, "lambda": {{Kind: backends.Lambda, Function: "f"}}}
		})
	}
	w.D = with("poll", backends.Backend{Kind: backends.Poll})
	w.Serve(dispatchertest.WorkDAG)
	w.Want("loads")
	const unserved = "queue_unserved_tasks{org=acme,runtime=poll}"
	require.Equal(t, 1.0, w.FiguresOf(w.D)[unserved])
	f := w.FiguresOf(with("queue", backends.Backend{Kind: backends.SQS, QueueURL: "http://127.0.0.1:1/q/tasks"}))
	require.Contains(t, f, unserved)
	require.Zero(t, f[unserved])
}
