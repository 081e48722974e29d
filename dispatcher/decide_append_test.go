package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const logged = `
name: logged
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: log
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    update_strategy: append
    unique_key: [content]
    config: { query: "SELECT content FROM raw" }
    checks:
      - { name: short, sql: "SELECT * FROM output WHERE length(content) > 3" }
publish:
  log: { from: { job: log } }
`

// What a person accepts is appended to what was there, and what comes next to that.
func TestAPersonAcceptsAnAppend(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"parquet":  logged,
		"postgres": edit(logged, "    checks:\n", "    storage: { postgres: {} }\n    checks:\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", "2024-01-01", "a")
			w.serve(yaml)
			w.probe.put("raw", "2024-01-01", "toolong")
			w.poll()
			w.settle()
			require.Equal(t, []string{"a"}, w.read("log")["2024-01-01"])
			_, err := w.d.Accept(t.Context(), w.caller, "log", DecideRequest{Partition: "2024-01-01", Reason: "fine"})
			require.NoError(t, err)
			require.Equal(t, []string{"a", "toolong"}, w.read("log")["2024-01-01"])
			w.probe.put("raw", "2024-01-01", "b")
			w.poll()
			w.settle()
			state := texts(t, w.pool, `SELECT state FROM partition_versions ORDER BY materialized_at DESC LIMIT 1`)[0]
			if state == "Rejected" { // the check sees the whole output, of which a part was let pass
				_, err = w.d.Accept(t.Context(), w.caller, "log", DecideRequest{Partition: "2024-01-01", Reason: "still fine"})
				require.NoError(t, err)
			}
			require.Equal(t, []string{"a", "b", "toolong"}, w.read("log")["2024-01-01"])
		})
	}
}
