//go:build soak

package plain_test

import (
	"flag"
	"fmt"
	"testing"
)

var (
	soakSeed      = flag.Uint64("soak-seed", 1, "the first seed")
	soakPipelines = flag.Int("soak-pipelines", 200, "how many pipelines the soak test compares")
)

// TestSoakPipelines compares many pipelines, for longer.
func TestSoakPipelines(t *testing.T) {
	for i := range *soakPipelines {
		seed := *soakSeed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			compare(t, seed, 5)
		})
	}
}
