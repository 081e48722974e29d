package examples_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
)

// TestOnce does what `make demo ONCE=1` does: it runs the example unattended, on its own PostgreSQL, and prints the
// rows.
func TestOnce(t *testing.T) {
	t.Parallel()
	for example, want := range map[string][]string{
		"us-flights": {
			"airport_ranking: 124 rows in 1 partition",
			"SJU   Luis Munoz Marin International    San Juan",
			"flights: 508239 rows in 31 partitions",
			"us-flights v1 is Active",
		},
		"earthquakes": {
			"earthquakes: 1679 rows in 1 partition",
			"earthquakes_daily: 297 rows in 1 partition",
		},
	} {
		t.Run(example, func(t *testing.T) {
			t.Parallel()
			dir := copyOf(t, example)
			out := processtest.Must(t, dir, "dev", dir, "--once", "--addr", "127.0.0.1:0", "--data",
				processtest.DataFolder(t))
			for _, text := range want {
				require.Contains(t, out, text)
			}
			require.NotContains(t, strings.ToLower(out), "fail")
		})
	}
}
