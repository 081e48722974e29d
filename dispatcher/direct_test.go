package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A queue's mail is not lost because its job was edited: queued tasks stay, under their ids and keys, and run by the
// definition that serves then.
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
			w := newWorld(t)
			w.serve(mail)
			soon := time.Now().Add(time.Hour)
			item := EnqueueItem{IdempotencyKey: "one", Partition: "p", Payload: payload(map[string]any{"n": 1})}
			later := EnqueueItem{IdempotencyKey: "two", Partition: "q", Payload: payload(map[string]any{"n": 2}), RunAt: &soon}
			made := w.enqueue("load", item, later)
			_, err := w.tryDeploy(edit(mail, change...))
			require.NoError(t, err)
			w.advance()
			require.Equal(t, Enqueued{ID: made[0].ID}, w.enqueue("load", item)[0])
			w.settle()
			require.Equal(t, "Completed", w.task(made[0].ID))
			require.Equal(t, "Queued waiting:run_at", w.task(made[1].ID))
			w.promote(soon.Add(time.Second))
			w.settle()
			require.Equal(t, "Completed", w.task(made[1].ID))
			require.Len(t, w.published("load"), 2)
		})
	}
}
