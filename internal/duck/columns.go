package duck

import (
	"maps"
	"slices"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// Columns returns the columns of the relations that a statement may read, in their order: never fewer than it reads. It
// compares only names, so a column counts if any name in the statement equals its own. All columns of all relations
// count if the statement reads some without naming them (*, COLUMNS, a whole row, PIVOT, NATURAL).
func (q *Select) Columns(relations map[string][]Column) map[string][]string {
	return q.columnNames().among(relations)
}

// NamedColumns returns the columns that a statement names: those without which it fails.
func (q *Select) NamedColumns(relations map[string][]Column) map[string][]string {
	n := q.columnNames()
	n.all = false
	return n.among(relations)
}

// CountedColumns returns the columns that decide whether a statement returns any row, of the relations that it reads.
// It returns false where that may be all of them. Of the stars in its own SELECT list, only the rows count.
func (q *Select) CountedColumns(relations map[string][]Column) (map[string][]string, bool) {
	tree := maps.Clone(q.tree)
	if node, ok := tree["node"].(map[string]any); ok && text(node, "type") == "SELECT_NODE" {
		node = maps.Clone(node)
		list, _ := node["select_list"].([]any)
		node["select_list"], tree["node"] = slices.Clone(list), node
		for i, item := range list {
			if star, ok := item.(map[string]any); ok && text(star, "class") == "STAR" {
				star = maps.Clone(star)
				star["class"] = "COUNTED"
				node["select_list"].([]any)[i] = star
			}
		}
	}

	n := namesIn(tree)
	read := n.among(relations)
	maps.DeleteFunc(read, func(relation string, _ []string) bool { return !q.Reads(relation) })
	return read, !n.all
}

// Reads reports whether a statement reads a relation.
func (q *Select) Reads(relation string) bool {
	return slices.ContainsFunc(q.Relations, func(name string) bool { return sqltext.Same(name, relation) })
}

func (n columnNames) among(relations map[string][]Column) map[string][]string {
	read := make(map[string][]string, len(relations))
	for relation, columns := range relations {
		read[relation] = []string{}
		for _, c := range columns {
			if n.all || n.names[sqltext.Lower(c.Name)] {
				read[relation] = append(read[relation], c.Name)
			}
		}
	}
	return read
}

// NamesColumns reports whether a statement reads columns by their names only, so that it reads no others than Columns
// returns, whatever is added to its relations.
func (q *Select) NamesColumns() bool { return !q.columnNames().all }

func (q *Select) columnNames() columnNames {
	return namesIn(q.tree)
}

func namesIn(tree map[string]any) columnNames {
	n := columnNames{names: map[string]bool{}, whole: map[string]bool{}, rows: map[string]bool{}}
	n.walk(tree)
	for row := range n.rows {
		n.all = n.all || n.whole[row]
	}
	return n
}

// columnNames collects, in lower case, what a statement's names may stand for.
type columnNames struct {
	names map[string]bool // parts of references: each may be a column
	whole map[string]bool // last parts of references: each may be a whole row, if something in a FROM has that name
	rows  map[string]bool // names of what is in a FROM
	all   bool
}

func (c *columnNames) walk(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			c.walk(child)
		}
	case map[string]any:
		switch text(n, "class") {
		case "STAR":
			c.all = true
		case "COLUMN_REF":
			// t.a may be column a of t or field a of column t; t alone may be a row of t, and s.t one of schema s.
			parts, _ := n["column_names"].([]any)
			for i, part := range parts {
				name, _ := part.(string)
				c.names[sqltext.Lower(name)] = true
				if i == len(parts)-1 {
					c.whole[sqltext.Lower(name)] = true
				}
			}
		}

		switch text(n, "type") {
		case "BASE_TABLE":
			c.rows[sqltext.Lower(text(n, "table_name"))] = true
		case "PIVOT", "SHOW_REF":
			c.all = true
		}
		// expressions have a class, what is in a FROM has none
		if alias := text(n, "alias"); alias != "" && text(n, "class") == "" {
			c.rows[sqltext.Lower(alias)] = true
		}

		c.all = c.all || text(n, "ref_type") == "NATURAL"
		using, _ := n["using_columns"].([]any)
		for _, name := range using {
			name, _ := name.(string)
			c.names[sqltext.Lower(name)] = true
		}
		for _, child := range n {
			c.walk(child)
		}
	}
}
