package dispatchertest

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/service"
)

// Settle works until only a clock can bring more work: every source that is due has fired, every event is routed, every
// task has run and every build is decided.
func (w *World) Settle() {
	w.T.Helper()
	for range 200 {
		w.Fire()
		w.Route()
		w.FanOut()
		w.Advance()
		worked := w.Work()
		var pending bool
		w.Row(`SELECT EXISTS (SELECT FROM outbox WHERE status = 'Pending' AND kind NOT IN ('notify', 'openlineage')
			AND available_at <= now()) OR EXISTS (SELECT FROM ready)
			OR EXISTS (SELECT FROM sources WHERE next_fire_at <= now())`)(&pending)
		if worked == 0 && !pending {
			w.Check()
			return
		}
	}
	require.Fail(w.T, "does not settle")
}

// Unrouted calls do while another transaction locks every origin, which leaves the events that do causes to the router.
func (w *World) Unrouted(do func()) {
	w.T.Helper()
	require.NoError(w.T, pgx.BeginFunc(w.T.Context(), w.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(w.T.Context(), `SELECT pg_advisory_xact_lock(hashtextextended(o.origin_job_id::text, 1))
			FROM (SELECT DISTINCT origin_job_id FROM jobs) AS o`)
		do()
		return err
	}))
}

// Route routes every event of the outbox.
func (w *World) Route() {
	w.T.Helper()
	for more := true; more; {
		var err error
		more, err = w.D.RouteOnce(w.T.Context(), time.Now())
		require.NoError(w.T, err)
	}
}

// FanOut looks at the outputs that the background was asked to look at.
func (w *World) FanOut() {
	w.T.Helper()
	for _, object := range Texts(w.T, w.Pool, `DELETE FROM work_items WHERE kind = $1 RETURNING object`,
		dispatcher.KindFanOut) {
		r, err := w.D.ReconcilingOf(w.T.Context(), uuid.MustParse(object))
		require.NoError(w.T, err)
		for position, over := "", r == nil; !over; {
			position, over, err = r.Next(w.T.Context(), position, time.Now())
			require.NoError(w.T, err)
		}
	}
}

// Advance moves every build one step on.
func (w *World) Advance() {
	w.T.Helper()
	_, err := w.D.Builds.AdvanceBuilds(w.T.Context(), time.Now())
	require.NoError(w.T, err)
}

// Fire fires every source that is due, and waits until all have been read that may be.
func (w *World) Fire() {
	w.T.Helper()
	for left := -1; ; {
		_, err := w.D.Sources.Fire(w.T.Context(), time.Now())
		require.NoError(w.T, err)
		w.D.Sources.EndReading()

		was := left // an org reads a few at once
		if left = w.Count(`SELECT FROM sources WHERE next_fire_at <= now() AND enumerates`); left == 0 || left == was {
			return
		}
	}
}

// Poll makes every source with a clock due and fires it.
func (w *World) Poll() {
	w.T.Helper()
	w.Exec(`UPDATE sources SET next_fire_at = now() WHERE next_fire_at IS NOT NULL`)
	w.Fire()
}

// Work runs every claimable task, one by one, and returns their number.
func (w *World) Work() (n int) {
	w.T.Helper()
	for {
		tasks := w.Claim(w.D)
		if len(tasks) == 0 {
			return n
		}
		for _, t := range tasks {
			Execute(w.T.Context(), w.D, t)
		}
		n += len(tasks)
	}
}

// Claim leases all claimable tasks of the runtimes in process.
func (w *World) Claim(d *service.Service) (tasks []dispatcher.Claimed) {
	w.T.Helper()
	tasks, err := d.Claim(w.T.Context(), d.InProcessRuntimes(), d.WorkerID, 100, time.Now())
	require.NoError(w.T, err)
	return tasks
}

// One claims and requires that exactly one task comes.
func (w *World) One(d *service.Service) dispatcher.Claimed {
	w.T.Helper()
	tasks := w.Claim(d)
	require.Len(w.T, tasks, 1)
	return tasks[0]
}

// Do runs a claimed task and does not report it.
func (w *World) Do(d *service.Service, t dispatcher.Claimed) dispatcher.Completion {
	w.T.Helper()
	c := d.RunTask(w.T.Context(), &t, &dispatcher.ProgressNote{})
	require.NoError(w.T, c.Outcome.Err)
	return c
}

// Promote readies the tasks whose time has come.
func (w *World) Promote(now time.Time) {
	w.T.Helper()
	_, err := w.D.PromoteDue(w.T.Context(), now)
	require.NoError(w.T, err)
}

// Reap takes back the leases that have expired.
func (w *World) Reap(now time.Time) {
	w.T.Helper()
	_, err := w.D.Reap(w.T.Context(), now)
	require.NoError(w.T, err)
}

// Later returns the time d from now, for code that is given the time.
func Later(d time.Duration) time.Time { return time.Now().Add(d) }

// Unchecked runs one claimed task to its end without the checks of its outputs, which are left to check tasks: as with
// an attempt elsewhere.
func (w *World) Unchecked(t dispatcher.Claimed) {
	w.T.Helper()
	done := w.Do(w.D, t)
	for i := range done.Outcome.Written {
		done.Outcome.Written[i].Checks = nil
	}
	require.NoError(w.T, w.D.CompleteAttempt(w.T.Context(), t, done, time.Now()))
}

// Execute runs one claimed task to its end, and no other.
func Execute(ctx context.Context, d *service.Service, t dispatcher.Claimed) {
	d.Attempt(ctx, &t, nil)
}
