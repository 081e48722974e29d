package dispatcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// Editing a job loses no mail of its queue: queued tasks keep their ids and keys, and run with the definition that
// serves at that time.
func TestDirectTasksSurviveEdits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][]string{
		"config":    {"config: { tag: l }", "config: { tag: edited }"},
		"attempts":  {"config: { tag: l }", "config: { tag: l }\n    max_attempts: 7"},
		"a limit":   {"config: { tag: l }", "config: { tag: l }\n    scaling: { max_concurrency: 1 }"},
		"a payload": {"config: { tag: l }", "config: { tag: l }\n    payload_schema: { type: object }"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(dispatchertest.Mail)
			soon := time.Now().Add(time.Hour)
			item := dispatcher.EnqueueItem{IdempotencyKey: "one", Partition: "p",
				Payload: dispatchertest.Payload(map[string]any{"n": 1})}
			later := dispatcher.EnqueueItem{IdempotencyKey: "two", Partition: "q",
				Payload: dispatchertest.Payload(map[string]any{"n": 2}), RunAt: &soon}
			made := w.Enqueue("load", item, later)
			_, err := w.TryDeploy(dispatchertest.Edit(dispatchertest.Mail, change...))
			require.NoError(t, err)
			w.Advance()
			require.Equal(t, dispatcher.Enqueued{ID: made[0].ID}, w.Enqueue("load", item)[0])
			w.Settle()
			require.Equal(t, "Completed", w.Task(made[0].ID))
			require.Equal(t, "Queued waiting:run_at", w.Task(made[1].ID))
			w.Promote(soon.Add(time.Second))
			w.Settle()
			require.Equal(t, "Completed", w.Task(made[1].ID))
			require.Len(t, w.Published("load"), 2)
		})
	}
}
