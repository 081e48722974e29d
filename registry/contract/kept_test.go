package contract_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry/contract"
)

func TestCompareWhatIsKept(t *testing.T) {
	t.Parallel()
	text := columns(dag.Column{Name: "n", Type: "VARCHAR"})
	number := columns(dag.Column{Name: "n", Type: "BIGINT"})
	wider := columns(dag.Column{Name: "n", Type: "HUGEINT"})
	declared := func(d *contract.Dataset) {
		d.Columns, d.Declared = nil, []dag.Column{{Name: "N", Type: "BIGINT"}}
	}
	table := func(d *contract.Dataset) { d.Storage = "postgres" }
	misfit := &contract.Misfit{Partition: "2024-01-01", Column: "n", Type: "BIGINT", Value: "n/a"}
	const has = `dataset x: its kept partition 2024-01-01 has "n/a" in column n, which is no BIGINT`

	was, now := of(dataset(one, "x", text)), of(dataset(one, "x", number))
	for name, test := range map[string]struct {
		was, now contract.Contract
		kept     contract.Kept
		want     string
	}{
		"all fit":      {was, now, contract.Kept{Partitions: 2, Looked: 2}, ""},
		"nothing kept": {was, now, contract.Kept{}, ""},
		"wider":        {now, of(dataset(one, "x", wider)), contract.Kept{Partitions: 2}, ""},
		"one does not": {was, now,
			contract.Kept{Partitions: 2, Looked: 1, Misfit: misfit}, "refuses " + has},
		"declared": {was, of(dataset(one, "x", declared)),
			contract.Kept{Partitions: 2, Misfit: misfit}, "refuses " + has},
		"too many to look at": {was, now,
			contract.Kept{Partitions: 9, Looked: 4}, "asks allow-breaking dataset x keeps 9 partitions that would be " +
				"read with other types of column n, and only 4 of them could be looked at in time: the others may " +
				"have values that do not fit"},
		"a table": {of(dataset(one, "x", number, table)), of(dataset(one, "x", wider, table)),
			contract.Kept{Partitions: 2}, "refuses dataset x would have another column n, and its table in " +
				"PostgreSQL, with the partitions that are kept, cannot change"},
		"a table that stays": {of(dataset(one, "x", number, table)), of(dataset(one, "x", number, table)),
			contract.Kept{Partitions: 2}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			facts := contract.Facts{Kept: map[uuid.UUID]contract.Kept{one: test.kept}}
			for _, f := range contract.Compare(test.was, test.now, facts) {
				if f.Kind != contract.KeptValues {
					continue
				}
				got = string(f.Level) + " "
				if f.Consent != "" {
					got += string(f.Consent) + " "
				}
				got += f.Text
				require.True(t, f.Breaking)
				require.NotEmpty(t, f.Hint)
			}
			require.Equal(t, test.want, got)
		})
	}
}
