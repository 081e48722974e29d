//go:build soak

package proof_test

import (
	"flag"
	"testing"
)

var exactSeeds = flag.Uint64("exact-seeds", 500, "random schemas that the test of exact values takes through storage")

// TestSoakExactValues continues where TestExactValues ends.
func TestSoakExactValues(t *testing.T) { exactValues(t, 6, *exactSeeds) }
