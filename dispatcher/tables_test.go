package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"

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

// Rows in Postgres are seen through the stable view once they are published, never before, and are replaced as a whole.
func TestRowsInPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	view := func() []string {
		return texts(t, w.pool, `SELECT content FROM data_acme.`+storage.ViewName("kept")+` ORDER BY content`)
	}
	w.probe.put("raw", "k", "a")
	w.serve(tables)
	require.Equal(t, []string{"a"}, view())
	require.Equal(t, map[string][]string{"k": {"a"}}, w.read("kept"))

	w.probe.put("raw", "k", "b")
	w.probe.put("raw", "l", "c")
	w.poll()
	for range 2 {
		for _, task := range w.claim(w.d) {
			w.d.execute(t.Context(), task)
		}
		w.route()
	}
	require.Equal(t, 2, w.count(`SELECT FROM partition_versions WHERE state = 'Held'`))
	require.Equal(t, []string{"a"}, view(), "held rows are not seen")
	w.settle()
	require.Equal(t, []string{"b", "c"}, view())

	w.probe.put("raw", "k", "poor")
	w.poll()
	w.settle()
	require.Equal(t, []string{"b", "c"}, view(), "nor are rejected ones")

	// A second version is seen when it serves, and not before.
	w.probe.put("raw", "k", "b2")
	w.poll()
	w.settle()
	w.deploy(edit(tables, "SELECT content FROM raw", "SELECT content || '!' AS content FROM raw"))
	for range 2 {
		w.advance()
		require.Equal(t, []string{"b2", "c"}, view())
		for _, task := range w.claim(w.d) {
			w.d.execute(t.Context(), task)
		}
		w.route()
	}
	w.settle()
	require.Equal(t, []string{"b2!", "c!"}, view())
	w.serve(tables)
	require.Equal(t, []string{"b2", "c"}, view())
}
