package duck

import (
	"maps"
	"slices"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// A statement may read a relation whose columns nobody knows beside others that are known. Guess returns columns with
// which the unknown one takes every name that the others do not explain, so that what is wrong with those still shows.

// Guess returns columns without types for a relation of which nothing is known. known are the relations that are.
func (q *Select) Guess(relation string, known map[string][]Column) []Column {
	refs := q.references()
	guessed := map[string]string{}
	add := func(name string) { guessed[sqltext.Lower(name)] = name }
	explained := func(name string) bool {
		for of, columns := range known {
			if q.Reads(of) && Known(columns, name) {
				return true
			}
		}
		return false
	}

	for _, parts := range refs.columns {
		of, qualified := refs.rows[sqltext.Lower(parts[0])]
		switch {
		case len(parts) > 1 && qualified:
			if slices.ContainsFunc(of, func(base string) bool { return sqltext.Same(base, relation) }) {
				add(parts[1])
			}
		case !explained(parts[0]):
			add(parts[0])
		}
	}
	for _, name := range refs.joined {
		add(name)
	}

	columns := []Column{{Name: "dagctl unknown"}}
	for _, name := range slices.Sorted(maps.Keys(guessed)) {
		columns = append(columns, Column{Name: guessed[name]})
	}
	return columns
}

// Only reports whether a name in the statement stands for nothing but these relations, wherever it is given to rows.
func (q *Select) Only(row string, relations map[string][]Column) bool {
	bases, there := q.references().rows[sqltext.Lower(row)]
	if !there {
		return false
	}
	for _, base := range bases {
		known := func(name string) bool { return base != "" && sqltext.Same(name, base) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(relations)), known) {
			return false
		}
	}
	return true
}

// ResultNames returns the names of the result's columns as far as the text alone says them; nil: it does not.
func (q *Select) ResultNames() []string {
	node, _ := q.tree["node"].(map[string]any)
	for text(node, "type") == "SET_OPERATION_NODE" && text(node, "setop_type") != "UNION_BY_NAME" {
		left, _ := node["left"].(map[string]any)
		if left == nil {
			return nil
		}
		node = left
	}
	if text(node, "type") != "SELECT_NODE" {
		return nil
	}

	var names []string
	list, _ := node["select_list"].([]any)
	for _, item := range list {
		expression, _ := item.(map[string]any)
		name := text(expression, "alias")
		if parts, _ := expression["column_names"].([]any); name == "" && text(expression, "class") == "COLUMN_REF" &&
			len(parts) > 0 {
			name, _ = parts[len(parts)-1].(string)
		}
		if name == "" || spreads(expression) {
			return nil
		}
		names = append(names, name)
	}
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	if repeats(columns) {
		return nil
	}
	return names
}

// spreads reports whether an expression may stand for several columns: a star, COLUMNS, or unnest of a struct.
func spreads(node any) bool {
	switch n := node.(type) {
	case []any:
		return slices.ContainsFunc(n, spreads)
	case map[string]any:
		if text(n, "class") == "STAR" || sqltext.Same(text(n, "function_name"), "unnest") {
			return true
		}
		for _, child := range n {
			if spreads(child) {
				return true
			}
		}
	}
	return false
}

// references are the names in a statement.
type references struct {
	columns [][]string          // parts of each column's name
	joined  []string            // columns in USING
	rows    map[string][]string // by lower-case name of rows in a FROM: the relations, "" for anything else
	defined map[string]bool     // names that a WITH defines anywhere, in lower case
}

func (q *Select) references() references {
	r := references{rows: map[string][]string{}, defined: map[string]bool{}}
	r.define(q.tree)
	r.walk(q.tree)
	return r
}

// define collects the names that WITH gives.
func (r *references) define(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			r.define(child)
		}
	case map[string]any:
		with, _ := n["cte_map"].(map[string]any)
		entries, _ := with["map"].([]any)
		for _, e := range entries {
			if entry, ok := e.(map[string]any); ok {
				r.defined[sqltext.Lower(text(entry, "key"))] = true
			}
		}
		if name := text(n, "cte_name"); name != "" {
			r.defined[sqltext.Lower(name)] = true
		}
		for _, child := range n {
			r.define(child)
		}
	}
}

func (r *references) walk(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			r.walk(child)
		}
	case map[string]any:
		r.look(n)
		for _, key := range sortedKeys(n) {
			r.walk(n[key])
		}
	}
}

func (r *references) look(n map[string]any) {
	if text(n, "class") == "COLUMN_REF" {
		var parts []string
		names, _ := n["column_names"].([]any)
		for _, part := range names {
			name, _ := part.(string)
			parts = append(parts, name)
		}
		if len(parts) > 0 {
			r.columns = append(r.columns, parts)
		}
	}
	using, _ := n["using_columns"].([]any)
	for _, name := range using {
		if name, ok := name.(string); ok {
			r.joined = append(r.joined, name)
		}
	}

	alias := sqltext.Lower(text(n, "alias"))
	base := ""
	if text(n, "type") == "BASE_TABLE" {
		name := text(n, "table_name")
		if alias == "" {
			alias = sqltext.Lower(name)
		}
		if !r.defined[sqltext.Lower(name)] {
			base = name
		}
	}
	if alias != "" && text(n, "class") == "" { // expressions have a class, what is in a FROM has none
		r.rows[alias] = append(r.rows[alias], base)
	}
}
