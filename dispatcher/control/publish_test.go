package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
)

const loadedByHand = `
name: mail
jobs:
  - name: load
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: { tag: l }
  - name: sorted
    operator: hook
    inputs: [{ from: { job: load } }]
    execution_strategy: PerPartition
    config: { tag: s }
publish:
  loaded: { from: { job: load } }
  sorted: { from: { job: sorted } }
`

func TestAPublishedEventHasTheConsumersRunOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(loadedByHand)
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a", Payload: dispatchertest.Payload(1)},
		dispatcher.EnqueueItem{Partition: "b", Payload: dispatchertest.Payload(2)})
	w.Settle()
	before := w.Read("sorted")
	require.Equal(t, map[string]int64{"a": 1, "b": 1}, w.Published("sorted"))

	publish := func(req control.PublishRequest) (control.PublishedEvent, error) {
		return w.D.Control.PublishEvent(t.Context(), w.Caller, "loaded", req, time.Now())
	}
	first, err := publish(control.PublishRequest{Partition: "a", IdempotencyKey: "k1"})
	require.NoError(t, err)
	require.Equal(t, control.PublishedEvent{ID: first.ID, Partition: "a", Revision: 2}, first)
	w.Settle()
	require.Equal(t, map[string]int64{"a": 2, "b": 1}, w.Published("sorted"))
	require.Equal(t, before, w.Read("sorted"), "no data came with it")
	require.Equal(t, 2, w.Attempts("load"))
	require.Equal(t, 3, w.Attempts("sorted"))

	// Publishing the same again, also many times at once, is acknowledged and changes nothing.
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			again, err := publish(control.PublishRequest{Partition: "a", IdempotencyKey: "k1"})
			if err == nil && (!again.Duplicate || again.ID != first.ID || again.Revision != 2) {
				err = fault.New(fault.Internal, "answered %+v", again)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	w.Settle()
	require.Equal(t, 3, w.Attempts("sorted"))
	require.Equal(t, 1, w.Count(`SELECT FROM events WHERE idempotency_key = 'k1'`))
	_, err = publish(control.PublishRequest{Partition: "b", IdempotencyKey: "k1"})
	require.True(t, fault.Is(err, fault.Conflict), err)

	// Without a key, each call is an event of its own. The event may be lost, because the revision records it.
	_, err = publish(control.PublishRequest{Partition: "b"})
	require.NoError(t, err)
	w.Exec(`DELETE FROM outbox`)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, map[string]int64{"a": 2, "b": 2}, w.Published("sorted"))
}

func TestEventsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(loadedByHand)
	for name, c := range map[string]struct {
		dataset, partition string
		kind               fault.Kind
		says               string
	}{
		"not there":      {"loaded", "a", fault.NotFound, `has no partition "a"`},
		"of no source":   {"sorted", "a", fault.Invalid, "neither a manual nor a webhook source"},
		"no such name":   {"lost", "a", fault.NotFound, "there is no dataset"},
		"left out":       {"loaded", "", fault.NotFound, `has no partition "all"`},
		"of nobody else": {"mail/load/7", "a", fault.NotFound, "there is no dataset"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.D.Control.PublishEvent(t.Context(), w.Caller, c.dataset,
				control.PublishRequest{Partition: c.partition}, time.Now())
			require.True(t, fault.Is(err, c.kind), err)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := w.D.Control.PublishEvent(t.Context(), w.Org("other").Caller, "loaded",
		control.PublishRequest{Partition: "a"}, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), err)
}
