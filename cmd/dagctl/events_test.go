package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/registry"
)

// handDAG has a manual output that is late as soon as it exists.
const handDAG = `name: hand
jobs:
  - name: note
    operator: command
    source: { kind: manual }
    partition_by: key
    config:
      argv:
        - /bin/sh
        - -c
        - |
          printf 'n\n1\n' >"$(sed 's/.*"dir": *"\([^"]*\)".*/\1/')/rows.csv"
  - name: counted
    operator: sql
    inputs: [{ from: { job: note } }]
    config: { query: "SELECT count(*) AS n FROM note" }
publish:
  notes: { from: { job: note }, due: { within: 1s } }
  counted: { from: { job: counted }, due: { within: 1000h } }
`

func TestEventsAndLatenessOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "x", handDAG))
	must(t, env, "run", "hand/note", "--partition", "a")
	eventually(t, "both are there", func() (bool, error) {
		d := decode[registry.Dataset](t, env, "datasets", "get", "counted")
		return d.Partitions == 1, nil
	})
	publish := []string{"events", "publish", "notes", "--partition", "a", "--idempotency-key", "k"}
	first := decode[control.PublishedEvent](t, env, publish...)
	require.Equal(t, int64(2), first.Revision)
	again := decode[control.PublishedEvent](t, env, publish...)
	require.True(t, again.Duplicate)
	require.Equal(t, first.ID, again.ID)
	require.Contains(t, must(t, env, publish...), "published before, as revision 2")
	require.Contains(t, must(t, env, "events", "publish", "notes", "--partition", "a"), "revision 3")
	require.Contains(t, dagctl(t, env, "events", "publish", "notes", "--partition", "b").err, `no partition "b"`)
	require.Contains(t, dagctl(t, env, "events", "publish", "counted").err, "neither a manual nor a webhook source")
	require.Equal(t, cli.ExitFailed, dagctl(t, w.env(t, reader), publish...).code)
	for body, want := range map[string]int{`{"partition_key": "a"}`: http.StatusCreated,
		`{"partition_key": "a", "idempotency_key": "k"}`: http.StatusOK,
		`{"partition_key": "a", "data": [1]}`:            http.StatusUnprocessableEntity} {
		status, answer := w.send(t, writer, http.MethodPost, "/v1/datasets/notes/events", "application/json",
			strings.NewReader(body))
		require.Equal(t, want, status, answer)
	}

	eventually(t, "it is late", func() (bool, error) {
		late := decode[[]registry.Dataset](t, env, "datasets", "list", "--late")
		return len(late) == 1 && late[0].Name == "notes", nil
	})
	require.Contains(t, must(t, env, "datasets", "list"), "was due")
	for _, args := range [][]string{{"status"}, {"status", "hand"}} {
		out := must(t, env, args...)
		require.Contains(t, out, "LATE DATASET")
		require.NotContains(t, out[strings.Index(out, "LATE DATASET"):], "counted")
	}
	require.Equal(t, []string{"notes"}, rows(w.page(t, reader, "/late"), 0)[0][:1])
	require.Contains(t, text(w.page(t, reader, "/late?dag=other")), "Nothing is late.")

	// A caller who may not see a dataset does not learn that it is late.
	w.exec(t, `UPDATE datasets SET read_roles = '{auditors}' WHERE name = 'notes'`)
	require.Contains(t, text(w.page(t, reader, "/late")), "Nothing is late.")
	require.NotContains(t, must(t, w.env(t, reader), "status"), "LATE DATASET")
}
