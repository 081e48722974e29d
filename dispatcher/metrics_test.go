package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
)

// figuresOf is what a dispatcher tells now: values by name and labels, and of histograms how often they were observed.
// The org of the world is called acme.
func (w *world) figuresOf(d *Dispatcher) map[string]float64 {
	w.t.Helper()
	r := prometheus.NewRegistry()
	require.NoError(w.t, r.Register(d.Metrics()))
	families, err := r.Gather()
	require.NoError(w.t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+strings.ReplaceAll(l.GetValue(), w.caller.OrgID.String(), "acme"))
			}
			name := strings.TrimPrefix(f.GetName(), "dagctl_") + "{" + strings.Join(labels, ",") + "}"
			found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

func TestAttemptsAreCountedOnceEach(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	before := w.figuresOf(w.d)
	runs := 0
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if runs++; runs < 3 {
			return operators.Result{}, errors.New("not yet")
		}
		return operators.Result{}, w.probe.write(ctx, task, "at last")
	})
	w.change("b")
	w.work()
	w.promote(later(time.Minute))
	w.work()
	w.promote(later(time.Minute))
	w.settle()

	w.change("c") // a lease that is lost, then a late completion
	lost := w.one(w.d)
	w.reap(later(time.Hour))
	require.NoError(t, w.d.complete(t.Context(), lost, w.do(w.d, lost), later(0)))
	w.settle()

	w.probe.on("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("never"))
	})
	w.change("d")
	w.work()

	after := w.figuresOf(w.d)
	grown := map[string]float64{}
	for name, v := range after {
		if grew := v - before[name]; grew != 0 && strings.Contains(name, "_total{") {
			grown[name] = grew
		}
	}
	require.Equal(t, map[string]float64{
		"attempts_total{org=acme,outcome=Failed}": 3, "attempts_total{org=acme,outcome=lease_expired}": 1,
		"attempts_total{org=acme,outcome=Completed}": grown["attempts_total{org=acme,outcome=Completed}"],
		"retries_total{org=acme}":                    3, "dead_tasks_total{org=acme}": 1, "lease_expiries_total{org=acme}": 1,
		"events_routed_total{org=acme}": grown["events_routed_total{org=acme}"],
	}, grown)
	require.Equal(t, w.count(`SELECT FROM tasks WHERE status = 'Completed'`), int(after["attempts_total{org=acme,outcome=Completed}"]))
	require.Equal(t, w.count(`SELECT FROM events`), int(after["events_routed_total{org=acme}"]))
	for _, step := range []string{"claim", "complete", "route"} {
		require.Positive(t, after["batch_size{step="+step+"}"], step)
		require.Equal(t, after["batch_size{step="+step+"}"], after["batch_seconds{step="+step+"}"], step)
	}
	require.Positive(t, after["cutover_seconds{}"])
	require.Equal(t, 1.0, after["waiting_tasks{org=acme,reason=dead}"])
	require.NotContains(t, after, "running_tasks{org=acme}")
}

// What a transaction did that was rolled back is not counted.
func TestWhatWasNotCommittedIsNotCounted(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	w.route()
	task := w.one(w.d)
	done := w.do(w.d, task)
	w.exec(`ALTER TABLE task_events RENAME TO hidden`)
	require.Error(t, w.d.complete(t.Context(), task, done, later(0)))
	w.exec(`ALTER TABLE hidden RENAME TO task_events`)
	before := w.figuresOf(w.d)["attempts_total{org=acme,outcome=Completed}"]
	require.NoError(t, w.d.complete(t.Context(), task, done, later(0)))
	require.NoError(t, w.d.complete(t.Context(), task, done, later(0)), "said again")
	require.Equal(t, before+1, w.figuresOf(w.d)["attempts_total{org=acme,outcome=Completed}"])
}

func TestFiguresOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.probe.put("raw", firstDay, "b")
	w.poll()
	w.work()
	w.exec(`UPDATE outbox SET created_at = now() - interval '1 hour'`)
	f := w.figuresOf(w.d)
	require.Equal(t, 1.0, f["outbox_pending_rows{org=acme}"])
	require.InDelta(t, 3600, f["outbox_oldest_seconds{org=acme}"], 60)
	w.exec(`UPDATE outbox SET status = 'Failed'`)
	require.Equal(t, 1.0, w.figuresOf(w.d)["outbox_failed_rows{org=acme}"])
	w.exec(`UPDATE outbox SET status = 'Pending'`)
	w.route()
	f = w.figuresOf(w.d)
	require.NotContains(t, f, "outbox_pending_rows{org=acme}")
	require.Equal(t, 1.0, f["queue_tasks{org=acme,runtime=dispatcher}"])
	require.InDelta(t, 0, f["queue_oldest_seconds{org=acme,runtime=dispatcher}"], 60)
	w.one(w.d)
	f = w.figuresOf(w.d)
	require.Equal(t, 1.0, f["running_tasks{org=acme}"])
	require.NotContains(t, f, "queue_tasks{org=acme,runtime=dispatcher}")
	w.exec(`UPDATE sources SET next_fire_at = now() - interval '10 minutes'`)
	if n := w.count(`SELECT FROM sources`); n > 0 {
		f = w.figuresOf(w.d)
		require.Equal(t, float64(n), f["sources_due{org=acme}"])
		require.InDelta(t, 600, f["source_lag_seconds{org=acme}"], 60)
	}
}

// However often somebody asks, the database is asked every five seconds at most; and a database that does not answer is
// told of, and takes nothing else away.
func TestFiguresAreReadSeldomAndMayFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := &gauges{d: w.d}
	read := func(now time.Time) (names []string) {
		out := make(chan prometheus.Metric, 100)
		g.collect(out, now)
		close(out)
		for m := range out {
			names = append(names, fmt.Sprint(m.Desc()))
		}
		return names
	}
	now := time.Now()
	first := read(now)
	w.exec(`ALTER TABLE ready RENAME TO hidden`)
	require.Equal(t, first, read(now.Add(gaugesEvery-time.Millisecond)))
	require.Len(t, read(now.Add(gaugesEvery)), 1, "how long it took")
	w.exec(`ALTER TABLE hidden RENAME TO ready`)
	require.Len(t, read(now.Add(gaugesEvery+time.Second)), 1, "nor is a failure repeated at once")
	require.Equal(t, first, read(now.Add(2*gaugesEvery)))
	require.Equal(t, 1.0, w.figuresOf(w.d)["gauge_failures_total{}"])
}
