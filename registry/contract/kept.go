package contract

import (
	"fmt"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Recast returns the columns of a dataset, with their new types, for which a value that it has now may be none of their
// types: those with other types than before, unless these are wider.
func Recast(was, now Dataset) []dag.Column {
	next := now.Columns
	if next == nil {
		next = now.Declared
	}
	var list []dag.Column
	for _, n := range next {
		at := slices.IndexFunc(was.Columns, func(w dag.Column) bool { return sqltext.Same(w.Name, n.Name) })
		if at < 0 || n.Type == "" {
			continue
		}
		if old := was.Columns[at].Type; old != "" && old != n.Type && !widens(old, n.Type) {
			list = append(list, n)
		}
	}
	return list
}

// kept compares what a forward-only version keeps of a dataset with its new columns.
func (c *comparison) kept(was, now *Dataset) {
	kept, ok := c.facts.Kept[was.ID]
	if !ok || kept.Partitions == 0 {
		return
	}
	f := Finding{Kind: KeptValues, Dataset: was.Name, Breaking: true, Partitions: kept.Partitions}
	recast := Recast(*was, *now)
	for _, column := range recast {
		f.Columns = append(f.Columns, column.Name)
	}

	switch {
	case now.Storage == "postgres":
		d := diffColumns(was.Columns, now.Columns)
		retyped, _ := split(append(d.widened, d.narrowed...))
		f.Columns = slices.Concat(d.removed, d.added, retyped)
		if now.Columns == nil || len(f.Columns) == 0 {
			return
		}
		f.Level = Refuses
		f.Text = fmt.Sprintf("dataset %s would have another %s, and its table in PostgreSQL, with the partitions "+
			"that are kept, cannot change", was.Name, listed("column", f.Columns))
		f.Hint = "keep the columns, or deploy without --forward-only"
	case len(recast) == 0:
		return
	case kept.Misfit != nil:
		m := kept.Misfit
		f.Level, f.Columns = Refuses, []string{m.Column}
		f.Text = fmt.Sprintf("dataset %s: its kept partition %s has %q in column %s, which is no %s", was.Name,
			m.Partition, m.Value, m.Column, m.Type)
		f.Hint = "keep the column's type, or deploy without --forward-only, which computes the partitions anew"
	case kept.Looked < kept.Partitions:
		f.Level, f.Consent = Asks, AllowBreaking
		f.Text = fmt.Sprintf("dataset %s keeps %d partitions that would be read with other types of %s, and only %d "+
			"of them could be looked at in time: the others may have values that do not fit", was.Name,
			kept.Partitions, listed("column", f.Columns), kept.Looked)
		f.Hint = "what reads such a value fails; without --forward-only, the partitions are computed anew"
	default:
		return
	}
	c.add(f)
}
