package dispatcher_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
)

const mailing = `
name: shop
jobs:
  - name: mail
    operator: command
    source: { kind: manual }
    outputs: 0
    config: { argv: ["true"] }
`

// A server whose config does not let an org run an operator leaves the org's tasks of it to the others, and why says so
// if there is none.
func TestAServerLeavesWhatItMayNotRunToOthers(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Dispatcher("two", func(c *service.Config) {
		c.Only = map[string][]string{"command": {"umbrella"}}
		refuses, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(),
			Command: operators.CommandOptions{Orgs: []string{"umbrella"}}})
		require.NoError(t, err)
		runner := *c.Runner
		runner.Registry = refuses
		c.Runner = &runner
	})
	w.Serve(mailing)
	w.Settle()

	out, err := w.D.Enqueue(t.Context(), w.Caller, "shop", "mail", []dispatcher.EnqueueItem{
		{Payload: json.RawMessage(`{"n": 1}`)}, {Payload: json.RawMessage(`{"n": 2}`)}})
	require.NoError(t, err)
	var reason why.Reason
	for range 2 {
		for _, c := range w.Claim(other) {
			dispatchertest.Execute(t.Context(), other, c)
		}
		reason = w.WhyTask(w.Caller, out[0].ID).Reasons[0]
		require.Equal(t, why.WhyQueued, reason.Code)
	}
	require.Empty(t, reason.Because, "the first server may run it")
	require.Equal(t, []string{"Queued ready", "Queued ready"}, []string{w.Task(out[0].ID), w.Task(out[1].ID)})

	// Nobody else lives.
	w.Exec(`UPDATE workers SET last_heartbeat = to_timestamp(0) WHERE id = 'one'`)
	reason = w.WhyTask(w.Caller, out[0].ID).Reasons[0]
	require.Equal(t, why.WhyNotAllowed, reason.Because[0].Code)
	require.Equal(t, 1, reason.Because[0].Count)
	require.Contains(t, reason.Because[0].Text, "no live server may run it")
	told, err := w.D.Desk.Of(t.Context(), w.Caller)
	require.NoError(t, err)
	require.Equal(t, attention.NoWorker, told.Items[0].Kind)
	require.Equal(t, int64(2), told.Items[0].Count)

	// It comes back.
	_, err = w.D.HeartbeatWorker(t.Context(), time.Now())
	require.NoError(t, err)
	for _, c := range w.Claim(w.D) {
		require.Equal(t, 1, c.Attempt)
		dispatchertest.Execute(t.Context(), w.D, c)
	}
	require.Equal(t, 2, w.Count(`SELECT FROM tasks WHERE status = 'Completed'`))
}
