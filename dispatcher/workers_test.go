package dispatcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/fault"
)

// A drained process finishes what it runs and claims no more; others go on.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	a, b := w.Dispatcher("a"), w.Dispatcher("b")
	beat := func(d *service.Service) {
		_, err := d.HeartbeatWorker(t.Context(), time.Now())
		require.NoError(t, err)
	}
	beat(a) // the first heartbeat registers it
	beat(b)
	w.Change("b")
	running := w.One(a)
	drained, err := b.Drain(t.Context(), w.Caller, "a", "", dispatchertest.Later(0))
	require.NoError(t, err)
	require.Equal(t, "drained", drained.State)
	require.NotNil(t, drained.DrainedAt)
	again, err := b.Drain(t.Context(), w.Caller, "a", "", dispatchertest.Later(time.Second))
	require.NoError(t, err)
	require.Equal(t, drained.DrainedAt, again.DrainedAt, "it is drained already")
	beat(a)
	require.True(t, a.Drained())
	require.False(t, b.Drained())
	require.NoError(t, a.CompleteAttempt(t.Context(), running, w.Do(a, running), dispatchertest.Later(0)))
	w.Change("c")
	n, err := a.ClaimAndRun(t.Context(), a.InProcessRuntimes(), nil, dispatchertest.Later(0))
	require.NoError(t, err)
	require.Zero(t, n, "drained")
	require.Len(t, w.Claim(b), 1)

	w.Exec(`DELETE FROM workers WHERE id = 'a'`) // removed, because it was frozen
	beat(a)
	require.Equal(t, 1, w.Count(`SELECT FROM workers WHERE id = 'a' AND drained_at IS NOT NULL`))
	require.Equal(t, 1, w.Count(`SELECT FROM audit_log WHERE action = 'worker.drain' AND object = 'a' LIMIT 1`))
	_, err = b.Drain(t.Context(), w.Caller, "nobody", "", dispatchertest.Later(0))
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	w.Exec(`UPDATE workers SET last_heartbeat = now() - interval '1 minute' WHERE id = 'a'`)
	_, err = b.Drain(t.Context(), w.Caller, "a", "", dispatchertest.Later(0))
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	list, err := b.Workers(t.Context(), w.Caller, dispatcher.WorkerKey{}, 10, dispatchertest.Later(0))
	require.NoError(t, err)
	require.Equal(t, []string{"a dead", "b live"}, []string{list[0].ID + " " + list[0].State, list[1].ID + " " +
		list[1].State})

	w.Org("umbrella")
	_, err = b.Drain(t.Context(), w.Caller, "b", "", dispatchertest.Later(0))
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.Zero(t, w.Count(`SELECT FROM workers WHERE id = 'b' AND drained_at IS NOT NULL`))
	_, err = dispatcher.DrainWorker(t.Context(), w.Pool, "b", "", dispatchertest.Later(0))
	require.NoError(t, err)
	beat(b)
	require.True(t, b.Drained())
}

// Who leads the periodic sweeps is whom River elected.
func TestLeadershipIsShown(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	leaders := func() (ids []string) {
		list, err := w.D.Workers(t.Context(), w.Caller, dispatcher.WorkerKey{}, 10, time.Now())
		require.NoError(t, err)
		for _, worker := range list {
			if worker.IsLeader {
				require.NotNil(t, worker.LeaderUntil)
				ids = append(ids, worker.ID)
			}
		}
		return ids
	}
	a, b := w.Dispatcher("a"), w.Dispatcher("b")
	stop := map[string]func(){"a": w.Start(a), "b": w.Start(b)}
	w.Eventually("somebody leads", func() bool { return len(leaders()) == 1 })
	first := leaders()[0]
	require.Equal(t, 1.0, w.FiguresOf(map[string]*service.Service{"a": a, "b": b}[first])["leader{}"])
	stop[first]()
	w.Eventually("another takes over", func() bool { l := leaders(); return len(l) == 1 && l[0] != first })
}
