package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// A drained process finishes what it runs and claims no more; others go on.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	a, b := w.dispatcher("a"), w.dispatcher("b")
	beat := func(d *Dispatcher) {
		_, err := d.heartbeatWorker(t.Context(), time.Now())
		require.NoError(t, err)
	}
	beat(a) // which registers it
	beat(b)
	w.change("b")
	running := w.one(a)
	drained, err := b.Drain(t.Context(), w.caller, "a", later(0))
	require.NoError(t, err)
	require.Equal(t, "drained", drained.State)
	require.NotNil(t, drained.DrainedAt)
	again, err := b.Drain(t.Context(), w.caller, "a", later(time.Second))
	require.NoError(t, err)
	require.Equal(t, drained.DrainedAt, again.DrainedAt, "it is drained already")
	beat(a)
	require.True(t, a.drained.Load())
	require.False(t, b.drained.Load())
	require.NoError(t, a.complete(t.Context(), running, w.do(a, running), later(0)))
	w.change("c")
	n, err := a.claimAndRun(t.Context(), a.inProcessRuntimes(), nil, later(0))
	require.NoError(t, err)
	require.Zero(t, n, "drained")
	require.Len(t, w.claim(b), 1)

	w.exec(`DELETE FROM workers WHERE id = 'a'`) // forgotten, because it was frozen
	beat(a)
	require.Equal(t, 1, w.count(`SELECT FROM workers WHERE id = 'a' AND drained_at IS NOT NULL`))
	require.Equal(t, 1, w.count(`SELECT FROM audit_log WHERE action = 'worker.drain' AND object = 'a' LIMIT 1`))
	_, err = b.Drain(t.Context(), w.caller, "nobody", later(0))
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	w.exec(`UPDATE workers SET last_heartbeat = now() - interval '1 minute' WHERE id = 'a'`)
	_, err = b.Drain(t.Context(), w.caller, "a", later(0))
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	list, err := b.Workers(t.Context(), w.caller, "", 10, later(0))
	require.NoError(t, err)
	require.Equal(t, []string{"a dead", "b live"}, []string{list[0].ID + " " + list[0].State, list[1].ID + " " + list[1].State})

	w.org("umbrella")
	_, err = b.Drain(t.Context(), w.caller, "b", later(0))
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.Zero(t, w.count(`SELECT FROM workers WHERE id = 'b' AND drained_at IS NOT NULL`))
	_, err = DrainWorker(t.Context(), w.pool, "b", later(0))
	require.NoError(t, err)
	beat(b)
	require.True(t, b.drained.Load())
}

// Who leads the periodic sweeps is whom River elected.
func TestLeadershipIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leaders := func() (ids []string) {
		list, err := w.d.Workers(t.Context(), w.caller, "", 10, time.Now())
		require.NoError(t, err)
		for _, worker := range list {
			if worker.IsLeader {
				require.NotNil(t, worker.LeaderUntil)
				ids = append(ids, worker.ID)
			}
		}
		return ids
	}
	a, b := w.dispatcher("a"), w.dispatcher("b")
	stop := map[string]func(){"a": w.start(a), "b": w.start(b)}
	w.eventually("somebody leads", func() bool { return len(leaders()) == 1 })
	first := leaders()[0]
	require.Equal(t, 1.0, w.figuresOf(map[string]*Dispatcher{"a": a, "b": b}[first])["leader{}"])
	stop[first]()
	w.eventually("another takes over", func() bool { l := leaders(); return len(l) == 1 && l[0] != first })
}
