//go:build soak

package proof_test

import (
	"flag"
	"fmt"
	"testing"
)

var soakWorlds = flag.Int("worlds", 200, "how many worlds the soak test of the model lives through")

// TestSoakWhateverHappens runs many seeds, and longer. A seed that finds a fault goes to testdata/seeds.
func TestSoakWhateverHappens(t *testing.T) {
	for i := range *soakWorlds {
		seed := *soakSeed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { property(t, seed, 60) })
	}
}
