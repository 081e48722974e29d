package dispatcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/storage"
)

const tables = `
name: tables
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { list: raw }
  - name: kept
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    storage: { postgres: { indexes: [content] } }
    config: { query: "SELECT content FROM raw" }
    checks: [{ name: good, sql: "SELECT * FROM output WHERE content = 'poor'" }]
publish:
  kept: { from: { job: kept } }
`

// The stable view shows rows in Postgres storage once they are published, never before, and replaces them as a whole.
func TestRowsInPostgres(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	view := func() []string {
		return dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.`+storage.ViewName("kept")+
			` ORDER BY content`)
	}
	w.Probe.Put("raw", "k", "a")
	w.Serve(tables)
	require.Equal(t, []string{"a"}, view())
	require.Equal(t, map[string][]string{"k": {"a"}}, w.Read("kept"))

	w.Probe.Put("raw", "k", "b")
	w.Probe.Put("raw", "l", "c")
	w.Poll()
	for range 2 {
		for _, task := range w.Claim(w.D) {
			w.Unchecked(task)
		}
		w.Route()
	}
	require.Equal(t, 2, w.Count(`SELECT FROM partition_versions WHERE state = 'Held'`))
	require.Equal(t, []string{"a"}, view(), "held rows are not seen")
	w.Settle()
	require.Equal(t, []string{"b", "c"}, view())

	w.Probe.Put("raw", "k", "poor")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"b", "c"}, view(), "nor are rejected ones")

	// A second version is visible when it serves, and not before.
	w.Probe.Put("raw", "k", "b2")
	w.Poll()
	w.Settle()
	w.Deploy(dispatchertest.Edit(tables, "SELECT content FROM raw", "SELECT content || '!' AS content FROM raw"))
	w.Advance()
	require.Equal(t, []string{"b2", "c"}, view())
	for _, task := range w.Claim(w.D) {
		dispatchertest.Execute(t.Context(), w.D, task)
	}
	require.Equal(t, []string{"b2", "c"}, view())
	w.Settle()
	require.Equal(t, []string{"b2!", "c!"}, view())
	w.Serve(tables)
	require.Equal(t, []string{"b2", "c"}, view())
}
