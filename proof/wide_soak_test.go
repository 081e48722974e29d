//go:build soak

package proof_test

import "testing"

// TestSoakRollbackOf500Jobs is the same with a job for each dataset.
func TestSoakRollbackOf500Jobs(t *testing.T) { wide(t, 500, 1, 20) }
