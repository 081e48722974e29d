package dispatcher_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
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

// A server whose config gives an org no folder leaves it to the others to list what is in theirs, for builds and later,
// and to export to theirs.
func TestAServerLeavesFoldersToOthers(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Dispatcher("two", func(c *service.Config) {
		c.Only = map[string][]string{"file_source": {"umbrella"}, dag.FolderExport: {}}
		c.Roots = func(string, string) []string { return nil }
	})
	other.Stepped = true
	fire := func() {
		t.Helper()
		w.Exec(`UPDATE sources SET next_fire_at = now() WHERE next_fire_at IS NOT NULL`)
		_, err := other.Sources.Fire(t.Context(), time.Now())
		require.NoError(t, err)
		other.Sources.EndReading()
	}

	folder := t.TempDir()
	w.Drop("a.csv", "id,v\n1,x\n")
	version := w.Deploy(exporting(folder)).Version.ID
	_, err := other.Builds.AdvanceBuilds(t.Context(), time.Now())
	require.NoError(t, err)
	status, _ := w.Status(version)
	require.Equal(t, registry.Building, status)
	require.Zero(t, w.Count(`SELECT FROM enumerations`))
	w.Settle()

	w.Drop("b.csv", "id,v\n2,x\n")
	fire()
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE next_fire_at <= now() AND error IS NULL`))
	w.Fire()
	for range 2 { // raw, all
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
	}
	require.Empty(t, w.Claim(other))
	require.Equal(t, []string{"1,x", "2,x"}, w.Read("log")["all"])

	// Nobody who may lives.
	w.Exec(`UPDATE workers SET last_heartbeat = to_timestamp(0) WHERE id = 'one'`)
	reason := w.WhyTask(w.Caller, w.TaskOf("export", "all")).Reasons[0]
	require.Equal(t, why.WhyNotAllowed, reason.Because[0].Code)
	require.Contains(t, reason.Because[0].Text, "parquet_export (`export_roots`)")
	fire()
	source := w.WhyJob("log", "raw")
	require.Contains(t, source.Reasons[0].Text, "may not read any folder on this server")
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE error LIKE '%file_roots%'`))

	// It comes back.
	_, err = w.D.HeartbeatWorker(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, w.Work())
	require.FileExists(t, filepath.Join(folder, "log", "data.parquet"))
}

// exporting returns log with a job that exports it to a folder.
func exporting(folder string) string {
	return dispatchertest.Edit(log, "publish:", `  - name: export
    operator: parquet_export
    inputs: [{ from: { job: all } }]
    outputs: 0
    config: { folder: "`+folder+`", path: log }
publish:`)
}
