package duck

import (
	"github.com/dagctl/dagctl/internal/columnlineage"
	"github.com/dagctl/dagctl/internal/relations"
)

// Origin states where a column of a result comes from.
type Origin = relations.Origin

// Explain returns where the values of each column of output come from, which are the columns that DuckDB finds for the
// statement over relations of these columns; see package columnlineage.
func (q *Select) Explain(known map[string][]Column, output []Column) []relations.ColumnLineage {
	return columnlineage.Of(q.tree, known, output, isAggregate)
}

// Lineage returns the columns of the relations that each output column is computed from, each with the strongest
// transform on its way. It returns only what is certain: of a column that Explain is unsure of it returns none.
func (q *Select) Lineage(known map[string][]Column, output []Column) []Origin {
	var found []Origin
	for _, c := range q.Explain(known, output) {
		if c.Unsure != "" {
			continue
		}
		for _, s := range c.Sources {
			found = append(found, Origin{OutputColumn: c.Column, Relation: s.Table, Column: s.Column,
				Transform: s.Transform})
		}
	}
	return found
}
