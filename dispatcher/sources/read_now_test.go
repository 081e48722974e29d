package sources_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/fault"
)

// later makes every source due only in a while.
func later(w *dispatchertest.World) {
	w.T.Helper()
	w.Exec(`UPDATE sources SET next_fire_at = now() + interval '1 day'`)
}

// readNow asks for a source to be read, and returns whether it was not due already.
func readNow(w *dispatchertest.World, dag, job string) sources.Reading {
	w.T.Helper()
	r, err := w.D.Sources.ReadNow(w.T.Context(), w.Caller, dag, job, time.Now())
	require.NoError(w.T, err)
	return r
}

func TestASourceIsReadNow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "n\n1\n")
	w.Serve(dispatchertest.Landed)
	later(w)
	w.Drop("2024-01-02.csv", "n\n10\n")
	w.Fire()
	w.Settle()
	require.Len(t, w.Read("landed_sums"), 1, "it is not due")

	first := readNow(w, "landed", "raw")
	require.True(t, first.Asked)
	again := readNow(w, "landed", "raw")
	require.False(t, again.Asked, "it is read once")
	require.True(t, first.DueAt.Equal(again.DueAt))
	require.Equal(t, 1, w.Count(`SELECT FROM audit_log WHERE action = 'source.read' AND object = 'landed/raw'`))
	w.Fire()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"1"}, "2024-01-02": {"10"}}, w.Read("landed_sums"))
	require.Zero(t, w.Count(`SELECT FROM sources WHERE next_fire_at <= now()`))
}

// A schedule keeps its times, and what waits of it already is not made twice.
func TestAScheduleIsReadNow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(scheduled)
	var due, next time.Time
	w.Row(`SELECT next_fire_at FROM sources WHERE job_name = 'tick'`)(&due)
	for range 2 {
		require.True(t, readNow(w, "scheduled", "tick").Asked)
		w.Fire()
		require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE status = 'Queued'`))
	}
	w.Row(`SELECT next_fire_at FROM sources WHERE job_name = 'tick'`)(&next)
	require.True(t, due.Equal(next), "%s is not %s", next, due)
}

// One that is being read is read once more: its reader may be past what is new.
func TestASourceIsReadAgainAfterItsReader(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(polls("daily", "a"))
	thaw := w.Probe.Freeze("a")
	require.True(t, readNow(w, "daily", "read0").Asked)
	_, err := w.D.Sources.Fire(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE reading_until > now()`))
	require.True(t, readNow(w, "daily", "read0").Asked)
	thaw()
	w.D.Sources.EndReading()
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE next_fire_at <= now() AND reading_until IS NULL`))
}

func TestWhatIsNotReadNow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Org("other")
	w.Serve(dispatchertest.Landed)
	later(w)
	refused := func(kind fault.Kind, says string, dag, job string) {
		t.Helper()
		_, err := w.D.Sources.ReadNow(t.Context(), w.Caller, dag, job, time.Now())
		require.ErrorContains(t, err, says)
		require.True(t, fault.Is(err, kind), "%v", err)
	}
	refused(fault.Invalid, "landed/sums is no source", "landed", "sums")
	refused(fault.NotFound, "there is no job landed/none", "landed", "none")
	refused(fault.NotFound, "there is no job none/raw", "none", "raw")
	_, err := w.D.Sources.ReadNow(t.Context(), other.Caller, "landed", "raw", time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	for _, paused := range [][2]string{{"landed", "raw"}, {"landed", ""}, {"", ""}} {
		w.Pause(paused[0], paused[1])
		refused(fault.Conflict, "is paused by", "landed", "raw")
		require.NoError(t, w.D.Control.Resume(t.Context(), w.Caller, paused[0], paused[1], time.Now()))
	}
	require.Zero(t, w.Count(`SELECT FROM sources WHERE next_fire_at <= now()`))
	require.Zero(t, w.Count(`SELECT FROM audit_log WHERE action = 'source.read'`))
}
