package control_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

const logged = `
name: logged
jobs:
` + dispatchertest.Raw + `  - name: log
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

// A revision that a person accepts is appended to the existing data, and the next revision is appended to it.
func TestAPersonAcceptsAnAppend(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"parquet":  logged,
		"postgres": dispatchertest.Edit(logged, "    checks:\n", "    storage: { postgres: {} }\n    checks:\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(yaml)
			w.Probe.Put("raw", "2024-01-01", "toolong")
			w.Poll()
			w.Settle()
			require.Equal(t, []string{"a"}, w.Read("log")["2024-01-01"])
			_, err := w.D.Control.Accept(t.Context(), w.Caller, "log", control.DecideRequest{Partition: "2024-01-01",
				Reason: "fine"})
			require.NoError(t, err)
			require.Equal(t, []string{"a", "toolong"}, w.Read("log")["2024-01-01"])
			w.Probe.Put("raw", "2024-01-01", "b")
			w.Poll()
			w.Settle()
			state := dispatchertest.Texts(t, w.Pool, `SELECT state FROM partition_versions ORDER BY materialized_at DESC
				LIMIT 1`)[0]
			if state == "Rejected" { // the check reads the whole output, with the accepted part
				_, err = w.D.Control.Accept(t.Context(), w.Caller, "log", control.DecideRequest{Partition: "2024-01-01",
					Reason: "still fine"})
				require.NoError(t, err)
			}
			require.Equal(t, []string{"a", "b", "toolong"}, w.Read("log")["2024-01-01"])
		})
	}
}
