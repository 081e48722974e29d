package columnlineage

import (
	"fmt"
	"slices"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// pivot returns the columns of PIVOT and UNPIVOT. Both first have the columns of what they read that they do not use.
func (w *walker) pivot(n map[string]any, outer *scope, ctes with) relation {
	in := w.from(object(n, "source"), outer, ctes)
	for key := range n {
		if !slices.Contains([]string{"type", "alias", "column_name_alias", "source", "pivots", "aggregates", "groups",
			"unpivot_names", "include_nulls"}, key) {
			return lostFor("%s of PIVOT is not followed", key)
		}
	}
	if in.star.lost != "" {
		return in.star
	}
	if len(list(n, "unpivot_names")) > 0 {
		return w.unpivoted(n, in, ctes)
	}
	return w.pivoted(n, in, ctes)
}

// pivoted has a column for each aggregate and combination of values. The pivoted columns only choose rows for it.
func (w *walker) pivoted(n map[string]any, in *scope, ctes with) relation {
	used := map[string]bool{}
	mentioned(n["aggregates"], used)
	combinations := []string{""}
	for _, p := range list(n, "pivots") {
		pivot, _ := p.(map[string]any)
		mentioned(pivot["pivot_expressions"], used)
		entries, ok := entryNames(pivot)
		if !ok || !w.step(len(combinations)*len(entries)) {
			return lostFor("the values of PIVOT are not known")
		}
		var more []string
		for _, before := range combinations {
			for _, entry := range entries {
				more = append(more, joinedName(before, entry))
			}
		}
		combinations = more
	}

	out := grouped(n, in, used)
	aggregates := list(n, "aggregates")
	for _, combination := range combinations {
		for _, a := range aggregates {
			node, _ := a.(map[string]any)
			v := w.value(node, in, ctes)
			switch alias := text(node, "alias"); {
			case alias != "":
				v.name = joinedName(combination, alias)
			case len(aggregates) == 1:
				v.name = combination
			default:
				v.made = ""
				if of := made(node); of != "" {
					v.made = joinedName(combination, of)
				}
			}
			out.columns = append(out.columns, v)
		}
	}
	return out
}

func joinedName(before, after string) string {
	if before == "" {
		return after
	}
	return before + "_" + after
}

// grouped returns the columns that a PIVOT groups by: those of its GROUP BY, or all that it does not use.
func grouped(n map[string]any, in *scope, used map[string]bool) (out relation) {
	groups := list(n, "groups")
	for _, c := range in.star.columns {
		isGroup := slices.ContainsFunc(groups, func(g any) bool {
			name, _ := g.(string)
			return sqltext.Same(name, c.called())
		})
		if isGroup || len(groups) == 0 && !used[sqltext.Lower(c.called())] {
			out.columns = append(out.columns, c)
		}
	}
	return out
}

// entryNames returns the names of a pivot's columns: an entry's alias, or its values.
func entryNames(pivot map[string]any) (entries []string, ok bool) {
	for _, e := range list(pivot, "entries") {
		entry, _ := e.(map[string]any)
		name := text(entry, "alias")
		if name == "" {
			for _, v := range list(entry, "values") {
				constant, _ := v.(map[string]any)
				name = joinedName(name, fmt.Sprint(constant["value"]))
			}
		}
		if name == "" {
			return nil, false
		}
		entries = append(entries, name)
	}
	return entries, len(entries) > 0
}

// mentioned collects the names of the columns in an expression.
func mentioned(node any, into map[string]bool) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			mentioned(child, into)
		}
	case map[string]any:
		if path := names(n, "column_names"); text(n, "class") == "COLUMN_REF" && len(path) > 0 {
			into[path[len(path)-1]] = true
		}
		for _, child := range n {
			mentioned(child, into)
		}
	}
}

// unpivoted has a column of names, which come from no column's values, and those of the values, each of which comes
// from the columns in its place.
func (w *walker) unpivoted(n map[string]any, in *scope, ctes with) relation {
	into := list(n, "unpivot_names")
	flows := make([]flow, len(into))
	used := map[string]bool{}
	var out, labels relation
	for _, p := range list(n, "pivots") {
		pivot, _ := p.(map[string]any)
		for _, name := range list(pivot, "unpivot_names") {
			label, _ := name.(string)
			labels.columns = append(labels.columns, value{name: label, transform: Expression})
		}
		for _, e := range list(pivot, "entries") {
			entry, _ := e.(map[string]any)
			columns := w.entryColumns(entry, in, ctes)
			if columns.lost != "" {
				return columns
			}
			mentioned(entry["star_expr"], used)
			for i, c := range columns.columns {
				used[sqltext.Lower(c.name)] = true
				flows[i%len(into)].add(c, Identity)
			}
		}
	}

	for _, c := range in.star.columns {
		if !used[sqltext.Lower(c.called())] {
			out.columns = append(out.columns, c)
		}
	}
	out.columns = append(out.columns, labels.columns...)
	for i, name := range into {
		v := flows[i].value()
		v.name, _ = name.(string)
		out.columns = append(out.columns, v)
	}
	return out
}

// entryColumns returns the columns that an entry of UNPIVOT names.
func (w *walker) entryColumns(entry map[string]any, in *scope, ctes with) (out relation) {
	if star := object(entry, "star_expr"); star != nil {
		if text(star, "class") == "STAR" {
			return w.columns(star, in, ctes)
		}
		if len(starsIn(star)) > 0 {
			return lostFor("an expression over several columns in UNPIVOT is not followed")
		}
		return relation{columns: []value{w.value(star, in, ctes)}}
	}
	for _, v := range list(entry, "values") {
		named, _ := v.(map[string]any)
		at := columnsNamed(in.star.columns, sqltext.Lower(text(named, "value")))
		if len(at) != 1 {
			return lostFor("the column %q of UNPIVOT was not found", text(named, "value"))
		}
		out.columns = append(out.columns, in.star.columns[at[0]])
	}
	return out
}
