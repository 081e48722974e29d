package dispatcher

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// Two orgs with the same DAG, the same job names and the same keys share nothing.
func TestOrgsAreApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.org("other")
	w.drop("2024-01-01.csv", "n\n1\n")
	other.drop("2024-01-01.csv", "n\n100\n")
	w.serve(landed)
	theirs := other.serve(landed)
	require.Equal(t, map[string][]string{"2024-01-01": {"1"}}, w.read("landed_sums"))
	require.Equal(t, map[string][]string{"2024-01-01": {"100"}}, other.read("landed_sums"))
	require.Equal(t, 1, theirs.Version.Number)
	other.drop("2024-01-02.csv", "n\n5\n")
	w.poll()
	w.settle()
	require.Len(t, w.read("landed_sums"), 1)
	require.Len(t, other.read("landed_sums"), 2)

	w.serve(mail)
	other.serve(mail)
	a := w.enqueue("send", EnqueueItem{IdempotencyKey: "k", Payload: payload(map[string]any{"to": "a"})})[0]
	b := other.enqueue("send", EnqueueItem{IdempotencyKey: "k", Payload: payload(map[string]any{"to": "b"})})[0]
	require.True(t, a.Created && b.Created && a.ID != b.ID)

	// What one knows of the other by name or id is of no use.
	for name, try := range map[string]func() error{
		"cancel": func() error { _, err := w.d.Cancel(t.Context(), other.caller, a.ID); return err },
		"retry":  func() error { _, err := w.d.Retry(t.Context(), other.caller, a.ID); return err },
		"look":   func() error { _, err := w.d.Task(t.Context(), other.caller, a.ID); return err },
	} {
		require.True(t, fault.Is(try(), fault.NotFound), name)
	}
	require.Equal(t, "Queued ready", w.task(a.ID))
	w.serve(pair)
	_, err := w.d.Enqueue(t.Context(), other.caller, "pair", "made", []EnqueueItem{{}})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = other.tryRead("pair_made")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = other.tryDeploy(edit(consumer, "letters_upper", "pair_made"))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Zero(t, w.count(`SELECT FROM datasets d JOIN dag_versions v ON v.dag_name = d.producer_dag_name WHERE d.org_id <> v.org_id AND d.producer_dag_name = 'pair'`))

	nobody := other.caller
	nobody.OrgID = uuid.New()
	_, err = w.d.Enqueue(t.Context(), nobody, "mail", "send", []EnqueueItem{{Payload: payload(map[string]any{"to": "a"})}})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	w.check()
}
