package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

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
	w := newWorld(t)
	w.serve(loadedByHand)
	w.enqueue("load", EnqueueItem{Partition: "a", Payload: payload(1)}, EnqueueItem{Partition: "b", Payload: payload(2)})
	w.settle()
	before := w.read("sorted")
	require.Equal(t, map[string]int64{"a": 1, "b": 1}, w.published("sorted"))

	publish := func(req PublishRequest) (PublishedEvent, error) {
		return w.d.PublishEvent(t.Context(), w.caller, "loaded", req, time.Now())
	}
	first, err := publish(PublishRequest{Partition: "a", IdempotencyKey: "k1"})
	require.NoError(t, err)
	require.Equal(t, PublishedEvent{ID: first.ID, Partition: "a", Revision: 2}, first)
	w.settle()
	require.Equal(t, map[string]int64{"a": 2, "b": 1}, w.published("sorted"))
	require.Equal(t, before, w.read("sorted"), "no data came with it")
	require.Equal(t, 2, w.attempts("load"))
	require.Equal(t, 3, w.attempts("sorted"))

	// The same again, also many at once, is acknowledged and changes nothing.
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			again, err := publish(PublishRequest{Partition: "a", IdempotencyKey: "k1"})
			if err == nil && (!again.Duplicate || again.ID != first.ID || again.Revision != 2) {
				err = fault.New(fault.Internal, "answered %+v", again)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	w.settle()
	require.Equal(t, 3, w.attempts("sorted"))
	require.Equal(t, 1, w.count(`SELECT FROM events WHERE idempotency_key = 'k1'`))
	_, err = publish(PublishRequest{Partition: "b", IdempotencyKey: "k1"})
	require.True(t, fault.Is(err, fault.Conflict), err)

	// Without a key each is an event; and it may be lost, for the revision tells.
	_, err = publish(PublishRequest{Partition: "b"})
	require.NoError(t, err)
	w.exec(`DELETE FROM outbox`)
	require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
	w.settle()
	require.Equal(t, map[string]int64{"a": 2, "b": 2}, w.published("sorted"))
}

func TestEventsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(loadedByHand)
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
			_, err := w.d.PublishEvent(t.Context(), w.caller, c.dataset, PublishRequest{Partition: c.partition}, time.Now())
			require.True(t, fault.Is(err, c.kind), err)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := w.d.PublishEvent(t.Context(), w.org("other").caller, "loaded", PublishRequest{Partition: "a"}, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), err)
}
