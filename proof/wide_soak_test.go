//go:build soak

package proof_test

import "testing"

// TestSoakRollbackOf500Jobs is the same with a job for each dataset, while many read.
func TestSoakRollbackOf500Jobs(t *testing.T) { wide(t, 500, 1, 20, *soakReaders) }

// TestSoakRollbackOf500Datasets is the same with few jobs that have many datasets each.
func TestSoakRollbackOf500Datasets(t *testing.T) { wide(t, 32, 16, 20, *soakReaders) }
