package dispatcher_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
)

// Two orgs with the same DAG, the same job names and the same keys share nothing.
func TestOrgsAreApart(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Org("other")
	w.Drop("2024-01-01.csv", "n\n1\n")
	other.Drop("2024-01-01.csv", "n\n100\n")
	w.Serve(dispatchertest.Landed)
	theirs := other.Serve(dispatchertest.Landed)
	require.Equal(t, map[string][]string{"2024-01-01": {"1"}}, w.Read("landed_sums"))
	require.Equal(t, map[string][]string{"2024-01-01": {"100"}}, other.Read("landed_sums"))
	require.Equal(t, 1, theirs.Version.Number)
	other.Drop("2024-01-02.csv", "n\n5\n")
	w.Poll()
	w.Settle()
	require.Len(t, w.Read("landed_sums"), 1)
	require.Len(t, other.Read("landed_sums"), 2)

	w.Serve(dispatchertest.Mail)
	other.Serve(dispatchertest.Mail)
	a := w.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "k",
		Payload: dispatchertest.Payload(map[string]any{"to": "a"})})[0]
	b := other.Enqueue("send", dispatcher.EnqueueItem{IdempotencyKey: "k",
		Payload: dispatchertest.Payload(map[string]any{"to": "b"})})[0]
	require.True(t, a.Created && b.Created && a.ID != b.ID)

	// Names and ids of the other org's objects are of no use to an org.
	for name, try := range map[string]func() error{
		"cancel": func() error { _, err := w.D.Control.Cancel(t.Context(), other.Caller, a.ID); return err },
		"retry":  func() error { _, err := w.D.Control.Retry(t.Context(), other.Caller, a.ID); return err },
		"look":   func() error { _, err := w.D.Views.Task(t.Context(), other.Caller, a.ID); return err },
	} {
		require.True(t, fault.Is(try(), fault.NotFound), name)
	}
	require.Equal(t, "Queued ready", w.Task(a.ID))
	w.Serve(dispatchertest.Pair)
	_, err := w.D.Enqueue(t.Context(), other.Caller, "pair", "made", []dispatcher.EnqueueItem{{}})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = other.TryRead("pair_made")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = other.TryDeploy(dispatchertest.Edit(dispatchertest.Consumer, "letters_upper", "pair_made"))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Zero(t, w.Count(`SELECT FROM datasets d JOIN dag_versions v ON v.dag_name = d.producer_dag_name
		WHERE d.org_id <> v.org_id AND d.producer_dag_name = 'pair'`))

	nobody := other.Caller
	nobody.OrgID = uuid.New()
	_, err = w.D.Enqueue(t.Context(), nobody, "mail", "send",
		[]dispatcher.EnqueueItem{{Payload: dispatchertest.Payload(map[string]any{"to": "a"})}})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	w.Check()
}
