package sources_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/service"
)

// polls returns a DAG of sources that list what there is, each its own list.
func polls(dag string, lists ...string) string {
	text := "name: " + dag + "\njobs:\n"
	for i, list := range lists {
		text += fmt.Sprintf("  - { name: read%d, operator: listed, source: { kind: poll, every: 1h }, "+
			"partition_by: { time: day }, config: { list: %s } }\n", i, list)
	}
	return text
}

// A source that does not answer holds up neither schedules nor other orgs, only what its own org reads.
func TestASlowSourceHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Org("other")
	w.Serve(polls("slow", "a", "b", "c"))
	w.Serve(scheduled)
	other.Serve(polls("quick", "q"))
	thaw := []func(){w.Probe.Freeze("a"), w.Probe.Freeze("b"), w.Probe.Freeze("c")}
	w.Probe.Put("q", dispatchertest.FirstDay, "new")
	w.Exec(`UPDATE sources SET next_fire_at = now()`)
	fire := func() {
		t.Helper()
		_, err := w.D.Sources.Fire(t.Context(), time.Now())
		require.NoError(t, err)
	}
	reading := func(org *dispatchertest.Tenant) int {
		if org == nil {
			return w.Count(`SELECT FROM sources WHERE reading_until > now() AND dag_name = 'slow'`)
		}
		return w.Count(`SELECT FROM sources WHERE reading_until > now() AND org_id = $1`, org.Caller.OrgID)
	}
	fire()
	require.Len(t, w.Tasks("tick"), 1, "the schedule fires")
	w.Eventually("the other org's source is read", func() bool {
		return w.Count(`SELECT FROM tasks WHERE org_id = $1`, other.Caller.OrgID) == 1
	})
	require.Equal(t, 2, reading(nil), "two readers of the org are busy")
	for range 3 {
		fire()
	}
	require.Equal(t, 2, reading(nil))

	// Another process has readers of its own, and reads nothing that is being read.
	second := w.Dispatcher("second")
	_, err := second.Sources.Fire(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 3, reading(nil))
	for _, end := range thaw {
		end()
	}
	w.D.Sources.EndReading()
	second.Sources.EndReading()
	require.Zero(t, reading(nil))
	require.Zero(t, w.Count(`SELECT FROM sources WHERE next_fire_at <= now() AND dag_name = 'slow'`))
}

// A reader that is gone, with its process or because that stops, is followed by another at once or after its time.
func TestAReadingThatIsCutOffIsRepeated(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(polls("daily", "a"))
	thaw := w.Probe.Freeze("a")
	w.Probe.Put("a", dispatchertest.FirstDay, "new")
	w.Exec(`UPDATE sources SET next_fire_at = now()`)
	ctx, stop := context.WithCancel(t.Context())
	_, err := w.D.Sources.Fire(ctx, time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE reading_until > now() AND next_fire_at <= now()`))
	stop()
	w.D.Sources.EndReading()
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE reading_until IS NULL AND next_fire_at <= now()`))

	thaw()
	w.Exec(`UPDATE sources SET reading_until = now() + interval '1 second'`) // of a process that was killed
	w.Fire()
	require.Empty(t, w.Tasks("read0"))
	_, err = w.D.Sources.Fire(t.Context(), dispatchertest.Later(2*time.Second))
	require.NoError(t, err)
	w.D.Sources.EndReading()
	require.Len(t, w.Tasks("read0"), 1)
}

// Whoever looks while a source is read anew hears what was wrong with it the last time, and not that nothing is.
func TestAnErrorStandsUntilTheSourceHasBeenReadAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(polls("daily", "a"))
	w.Probe.Fail("a", errors.New("no such folder"))
	w.Poll()
	wrong := func() int { return w.Count(`SELECT FROM sources WHERE error = 'enumerate: no such folder'`) }
	require.Equal(t, 1, wrong())

	w.Probe.Fail("a", nil)
	thaw := w.Probe.Freeze("a")
	w.Exec(`UPDATE sources SET next_fire_at = now()`)
	_, err := w.D.Sources.Fire(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE reading_until > now()`))
	require.Equal(t, 1, wrong())
	thaw()
	w.D.Sources.EndReading()
	require.Zero(t, wrong())
}

// A source that polls once a day is not lost for a day if it cannot be read once.
func TestASourceThatCannotBeReadIsReadAgainSoon(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(polls("daily", "a"))
	w.Probe.Fail("a", errors.New("no such folder"))
	w.Poll()
	require.Equal(t, []string{"enumerate: no such folder"},
		dispatchertest.Texts(t, w.Pool, `SELECT error FROM sources WHERE next_fire_at < now() + interval '2 minutes'`))
	w.Probe.Fail("a", nil)
	w.Poll()
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE error IS NULL AND next_fire_at > now() + interval '50 minutes'`))
}

// Times of a schedule that pass while too much is queued, or while the database is away, are made up for, without
// catchup too. Those that pass during a pause are not.
func TestMissedTimesOfOursAreMadeUpFor(t *testing.T) {
	t.Parallel()
	at := instant(t, "2026-11-01T11:00:00Z")
	later := instant(t, "2026-11-03T12:00:00Z")
	days := []string{"2026-10-31 Queued", "2026-11-01 Queued", "2026-11-02 Queued"}
	for name, c := range map[string]struct {
		meanwhile func(w *dispatchertest.World)
		want      []string
	}{
		"too much is queued": {func(w *dispatchertest.World) {
			w.Enqueue("send", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "a"})})
			w.Enqueue("send", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "b"})})
			_, err := w.D.Pressure.Review(w.T.Context(), at)
			require.NoError(w.T, err)
			require.True(w.T, w.D.Pressure.High())
			fireAt(w, at)
			require.Empty(w.T, w.Tasks("tick"))
			w.Exec(`DELETE FROM ready`)
			_, err = w.D.Pressure.Review(w.T.Context(), later)
			require.NoError(w.T, err)
			require.False(w.T, w.D.Pressure.High())
		}, days},
		"the database is away": {func(w *dispatchertest.World) { fireAt(w, at.Add(-time.Second)) }, days},
		"the DAG is paused": {func(w *dispatchertest.World) {
			_, err := w.D.Control.Pause(w.T.Context(), w.Caller, "scheduled", "", "", at.Add(-time.Second))
			require.NoError(w.T, err)
			fireAt(w, at.Add(time.Minute))
			require.NoError(w.T, w.D.Control.Resume(w.T.Context(), w.Caller, "scheduled", "", later))
		}, days[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(scheduled)
			w.Serve(dispatchertest.Mail)
			w.D = w.Dispatcher("one", func(c *service.Config) { c.Thresholds = pressure.Thresholds{MaxQueued: 1} })
			w.Exec(`UPDATE sources SET next_fire_at = $1 WHERE dag_name = 'scheduled'`, at)
			c.meanwhile(w)
			for fireAt(w, later) {
			}
			require.Equal(t, c.want, w.Tasks("tick"))
			require.Zero(t, w.Count(`SELECT FROM sources WHERE held`))
		})
	}
}

func fireAt(w *dispatchertest.World, at time.Time) (more bool) {
	w.T.Helper()
	more, err := w.D.Sources.Fire(w.T.Context(), at)
	require.NoError(w.T, err)
	return more
}
