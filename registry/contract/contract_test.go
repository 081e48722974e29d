package contract_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry/contract"
)

// Columns are one where DuckDB takes them for one: it folds ASCII, and leaves the Kelvin sign alone.
func TestColumnsAreFoldedAsInQueries(t *testing.T) {
	t.Parallel()
	of := func(column string) contract.Contract {
		return contract.Contract{Datasets: []contract.Dataset{{ID: uuid.UUID{1}, Name: "d", Generation: uuid.New(),
			Columns: []dag.Column{{Name: column, Type: "INTEGER"}}}}}
	}
	compare := func(was, now string) (says []string) {
		for _, f := range contract.Compare(of(was), of(now), contract.Facts{}) {
			says = append(says, f.Text)
		}
		return says
	}
	require.NotContains(t, compare("Kind", "kind"), "dataset d would lose column Kind")
	require.Contains(t, compare("\u212aind", "kind"), "dataset d would lose column \u212aind")
}
