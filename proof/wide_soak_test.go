//go:build soak

package proof_test

import "testing"

// TestSoakRollbackOf500Jobs has a job for each dataset and many readers.
func TestSoakRollbackOf500Jobs(t *testing.T) { wide(t, 500, 1, 20, *soakReaders) }

// TestSoakRollbackOf500Datasets has few jobs with many datasets each.
func TestSoakRollbackOf500Datasets(t *testing.T) { wide(t, 32, 16, 20, *soakReaders) }
