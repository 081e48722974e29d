package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// Who may not read what a job makes does not learn its partitions by acting on them.
func TestPartitionsOfHiddenJobsCannotBeGuessed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01") // one task alone: the first that is dead ends the build, and so the others
	admins, writers := w.env(t, admin), w.env(t, writer)
	failed := dagctl(t, writers, "deploy", writeDAG(t, t.TempDir(), "doubles", strings.Replace(doublesDAG,
		"2 * highest AS doubled", "error('unlucky ' || highest)::DOUBLE AS doubled", 1)))
	require.Equal(t, cli.ExitFailed, failed.code)
	eventually(t, "the task is dead", func() (bool, error) {
		return strings.Count(must(t, admins, "tasks", "list", "--dead"), "doubles/doubled") == 1, nil
	})

	matched := func(verb string, filter map[string]any) int64 {
		t.Helper()
		filter["dag"] = "doubles"
		body, err := json.Marshal(map[string]any{"filter": filter, "dry_run": true, "reason": reasonOf(verb)})
		require.NoError(t, err)
		status, text := w.send(t, writer, "POST", "/v1/tasks:"+verb, "application/json",
			strings.NewReader(string(body)))
		require.Equal(t, 202, status, text)
		var b control.BulkAction
		require.NoError(t, json.Unmarshal([]byte(text), &b))
		return b.Matched
	}
	keys := []string{"2026-01-01", "2026-01-01..2026-01-02", "2025-01-01..2027-01-01"}
	require.EqualValues(t, 1, matched("skip", map[string]any{"partition": keys[0]}))
	must(t, admins, "roles", "create", "role:finance")
	must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance")
	for _, verb := range []string{"retry", "cancel", "skip"} {
		for _, key := range keys {
			require.Zero(t, matched(verb, map[string]any{"partition": key}), "%s %s", verb, key)
		}
		require.Zero(t, matched(verb, map[string]any{"error": "unlucky"}), verb)
	}
	for _, key := range []string{"2026-01-01", "2025-05-05"} {
		r := dagctl(t, writers, "backfill", "readings/daily", "--from", key, "--to", key, "--existing", "all")
		require.Equal(t, cli.ExitFailed, r.code)
		require.Contains(t, r.err, "there is no job readings/daily\n")
	}
}

// reasonOf returns the reason that a verb needs.
func reasonOf(verb string) string {
	if verb == control.VerbSkip {
		return "a guess"
	}
	return ""
}

// Only who may read all datasets of a DAG deletes it, or learns what that would remove.
func TestDeletionTellsNothingOfHiddenDatasets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins, writers := w.env(t, admin), w.env(t, writer)
	must(t, admins, "roles", "create", "role:finance")
	must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance")

	for _, method := range []string{"GET", "DELETE"} {
		path := map[string]string{"GET": "/v1/dags/readings/deletion", "DELETE": "/v1/dags/readings"}[method]
		status, text := w.send(t, writer, method, path, "", nil)
		require.Equal(t, 403, status, text)
		require.NotContains(t, text, "daily_highest")
	}
	require.Contains(t, dagctl(t, writers, "delete", "readings", "--yes").err,
		"has datasets that token:writer may not read")
	must(t, admins, "delete", "readings", "--yes")
}

// Only who may read a dataset makes a version serve that does not have it any more, or learns of it by planning one.
func TestNobodyRemovesWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins, writers := w.env(t, admin), w.env(t, writer)
	must(t, admins, "roles", "create", "role:finance")
	must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance")
	file := writeDAG(t, t.TempDir(), "without", `
name: readings
jobs:
  - { name: send, operator: command, source: { kind: manual }, outputs: 0, config: { argv: [/bin/true] } }
`)

	const why = "the version removes a dataset of readings that token:writer may not read"
	for _, command := range [][]string{{"plan", file}, {"deploy", file, "--yes"}} {
		refused := dagctl(t, writers, command...)
		require.NotZero(t, refused.code, command)
		require.Contains(t, refused.err, why, command)
		require.NotContains(t, refused.out+refused.err, "daily_highest", command)
	}
	must(t, admins, "deploy", file, "--no-activate", "--yes")
	require.Contains(t, dagctl(t, writers, "promote", "readings", "--yes").err, why)
	must(t, admins, "query", "SELECT * FROM daily_highest")

	must(t, admins, "promote", "readings", "--yes")
	require.NotZero(t, dagctl(t, admins, "query", "SELECT * FROM daily_highest").code)
}

// copyingDAG reads a dataset and passes it on by tasks: reads enqueues passes, which enqueues writes, which publishes.
const copyingDAG = `name: copies
jobs:
  - name: reads
    operator: command
    inputs: [{ from: { dataset: daily_highest }, as: highest }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    outputs: 0
    enqueues: [passes]
    config: { argv: [/bin/echo, '{"tasks":[{"job":"passes","payload":{"seen":"leaked"}}]}'] }
  - name: passes
    operator: command
    source: { kind: manual }
    outputs: 0
    enqueues: [writes]
    config: { argv: [/bin/echo, '{"tasks":[{"job":"writes","payload":{"seen":"leaked"}}]}'] }
  - name: writes
    operator: command
    source: { kind: manual }
    outputs: [out]
    config:
      argv:
        - /bin/sh
        - -c
        - |
          dir=$(sed 's/.*"dir": *"\([^"]*\)".*/\1/')
          echo '{"seen":"leaked"}' > "$dir/a.ndjson"
publish:
  copied: { from: { job: writes } }
`

// What a job enqueues is computed from what the job reads: the outputs of the jobs that it may enqueue are as closed,
// also where they enqueue others, and so are their tasks with their payloads.
func TestWhatAJobEnqueuesIsAsClosedAsItsInputs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins := w.env(t, admin)
	finance := w.withOrgRole(t, "finance", "writer", "role:finance")
	must(t, finance, "deploy", writeDAG(t, t.TempDir(), "copies", copyingDAG))
	w.land(t, "2026-01-02")
	eventually(t, "it is copied", func() (bool, error) {
		return strings.Contains(dagctl(t, w.env(t, reader), "query", "FROM copied").out, "leaked"), nil
	})

	must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance")
	guards := decode[registry.DatasetVisibility](t, admins, "datasets", "visibility", "copied").Guards
	require.Equal(t, []registry.Guard{{Dataset: "daily_highest", ReadRoles: []string{"role:finance"}}}, guards)
	require.Contains(t, must(t, finance, "query", "FROM copied"), "leaked")
	for _, who := range []string{reader, writer} {
		env := w.env(t, who)
		require.Contains(t, dagctl(t, env, "query", "FROM copied").err, "there is no dataset")
		for _, task := range decode[[]views.Task](t, env, "tasks", "list") {
			got := dagctl(t, env, "tasks", "get", task.ID.String(), "-o", "json")
			require.NotContains(t, got.out, "leaked", "%s: a task of %s/%s", who, task.DAG, task.Job)
		}
	}
}
