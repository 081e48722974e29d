package duck

import (
	"slices"

	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Origin states where a column of a result comes from.
type Origin = relations.Origin

// The transforms, from the weakest to the strongest. A column built with several has the strongest of them.
const (
	Identity   = "identity"
	Expression = "expression"
	Aggregate  = "aggregate"
)

// Lineage returns the columns of the relations that each output column is computed from, according to the parsed
// statement. It returns only what is certain: a statement with parts that it does not follow (set operations, PIVOT,
// table functions, NATURAL joins) has no lineage, nor does a column with such parts (a subquery, a lambda). Columns
// that only filter, group, join or order are not origins.
func (q *Select) Lineage(relations map[string][]Column, output []Column) []Origin {
	l := lineage{relations: map[string]source{}}
	for name, columns := range relations {
		from := source{}
		for _, c := range columns {
			from = append(from, derived{name: c.Name,
				origins: []origin{{relation: name, column: c.Name, transform: Identity}}, certain: true})
		}
		l.relations[sqltext.Lower(name)] = from
	}

	node, _ := q.tree["node"].(map[string]any)
	columns, ok := l.selectNode(node, nil)
	if !ok || len(columns) != len(output) {
		return nil
	}
	var found []Origin
	for i, c := range columns {
		if c.name != "" && !sqltext.Same(c.name, output[i].Name) {
			return nil // a star was not expanded as DuckDB does: return no lineage
		}
		for _, o := range c.origins {
			if c.certain {
				found = append(found, Origin{OutputColumn: output[i].Name, Relation: o.relation, Column: o.column,
					Transform: o.transform})
			}
		}
	}
	return found
}

type origin struct{ relation, column, transform string }

// derived is a column of something that can stand in FROM.
type derived struct {
	name    string // empty: DuckDB derives one from the expression
	origins []origin
	certain bool
}

// source is the columns of something that can stand in FROM, in their order.
type source []derived

// named is a source by the name it has in one FROM clause.
type named struct {
	alias   string
	columns source
}

// scope is a FROM clause: its sources by name, and what an unqualified star expands to.
type scope struct {
	sources []named
	star    source
	merged  map[string][]origin // USING columns: they come from both sides
}

type lineage struct {
	relations map[string]source // by lower-case name
}

// with is the WITH clauses in sight.
type with map[string]source

func (l lineage) selectNode(n map[string]any, outer with) (source, bool) {
	if text(n, "type") != "SELECT_NODE" {
		return nil, false
	}
	ctes, ok := l.withClause(n, outer)
	if !ok {
		return nil, false
	}
	from, _ := n["from_table"].(map[string]any)
	in, ok := l.from(from, ctes)
	if !ok {
		return nil, false
	}

	var out source
	list, _ := n["select_list"].([]any)
	for _, item := range list {
		expression, _ := item.(map[string]any)
		if text(expression, "class") == "STAR" {
			columns, ok := in.expand(expression)
			if !ok {
				return nil, false
			}
			out = append(out, columns...)
			continue
		}
		out = append(out, l.item(expression, in, out))
	}
	return out, true
}

func (l lineage) withClause(n map[string]any, outer with) (with, bool) {
	visible := with{}
	for name, columns := range outer {
		visible[name] = columns
	}

	cteMap, _ := n["cte_map"].(map[string]any)
	entries, _ := cteMap["map"].([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		value, _ := entry["value"].(map[string]any)
		query, _ := value["query"].(map[string]any)
		node, _ := query["node"].(map[string]any)
		columns, ok := l.selectNode(node, visible)
		if !ok {
			return nil, false
		}
		aliases, _ := value["aliases"].([]any)
		if columns, ok = columns.renamed(aliases); !ok {
			return nil, false
		}
		visible[sqltext.Lower(text(entry, "key"))] = columns
	}
	return visible, true
}

// renamed gives the first columns other names: t(a, b).
func (s source) renamed(aliases []any) (source, bool) {
	out := slices.Clone(s)
	for i, alias := range aliases {
		name, ok := alias.(string)
		if !ok || i >= len(out) {
			return nil, false
		}
		out[i].name = name
	}
	return out, true
}

// from reads a FROM clause.
func (l lineage) from(n map[string]any, ctes with) (scope, bool) {
	name := text(n, "alias")
	var columns source
	switch text(n, "type") {
	case "EMPTY":
		return scope{}, true
	case "BASE_TABLE":
		table := sqltext.Lower(text(n, "table_name"))
		var ok bool
		if columns, ok = ctes[table]; !ok {
			if columns, ok = l.relations[table]; !ok {
				return scope{}, false
			}
		}

		if name == "" {
			name = text(n, "table_name")
		}
	case "SUBQUERY":
		subquery, _ := n["subquery"].(map[string]any)
		node, _ := subquery["node"].(map[string]any)
		var ok bool
		if columns, ok = l.selectNode(node, ctes); !ok {
			return scope{}, false
		}
	case "JOIN":
		return l.join(n, ctes)
	default:
		return scope{}, false
	}

	aliases, _ := n["column_name_alias"].([]any)
	columns, ok := columns.renamed(aliases)
	// A column whose name DuckDB makes up could be meant by any reference that seems to mean another.
	if !ok || slices.ContainsFunc(columns, func(c derived) bool { return c.name == "" }) {
		return scope{}, false
	}
	return scope{sources: []named{{sqltext.Lower(name), columns}}, star: columns}, true
}

func (l lineage) join(n map[string]any, ctes with) (scope, bool) {
	leftNode, _ := n["left"].(map[string]any)
	rightNode, _ := n["right"].(map[string]any)
	left, ok := l.from(leftNode, ctes)
	if !ok {
		return scope{}, false
	}
	right, ok := l.from(rightNode, ctes)
	if !ok {
		return scope{}, false
	}

	using, _ := n["using_columns"].([]any)
	switch {
	case text(n, "ref_type") == "NATURAL", len(using) > 0 && (len(left.sources) > 1 || len(right.sources) > 1):
		return scope{}, false
	case text(n, "join_type") == "SEMI", text(n, "join_type") == "ANTI":
		return left, true
	}
	joined := scope{sources: slices.Concat(left.sources, right.sources), star: slices.Clone(left.star),
		merged: map[string][]origin{}}
	for name, origins := range left.merged {
		joined.merged[name] = origins
	}

	for _, c := range right.star {
		shared := slices.ContainsFunc(using, func(u any) bool {
			name, _ := u.(string)
			return sqltext.Same(name, c.name)
		})
		i := slices.IndexFunc(joined.star, func(have derived) bool { return sqltext.Same(have.name, c.name) })
		switch {
		case !shared:
			joined.star = append(joined.star, c)
		case i < 0:
			return scope{}, false
		default:
			joined.star[i].origins = slices.Concat(joined.star[i].origins, c.origins)
			joined.star[i].certain = joined.star[i].certain && c.certain
			joined.merged[sqltext.Lower(c.name)] = joined.star[i].origins
		}
	}
	return joined, true
}

// expand is what a plain star stands for.
func (in scope) expand(star map[string]any) (source, bool) {
	for key := range star {
		if !slices.Contains([]string{"class", "type", "relation_name", "exclude_list", "alias"}, key) {
			return nil, false
		}
	}

	columns := in.star
	if relation := sqltext.Lower(text(star, "relation_name")); relation != "" {
		i := slices.IndexFunc(in.sources, func(s named) bool { return s.alias == relation })
		if i < 0 {
			return nil, false
		}
		columns = in.sources[i].columns
	}
	excluded, _ := star["exclude_list"].([]any)
	return slices.DeleteFunc(slices.Clone(columns), func(c derived) bool {
		return slices.ContainsFunc(excluded, func(e any) bool {
			name, _ := e.(string)
			return sqltext.Same(name, c.name)
		})
	}), true
}

// item is one expression of a SELECT list; before are the items to its left, which it may name by their aliases.
func (l lineage) item(expression map[string]any, in scope, before source) derived {
	c := derived{name: text(expression, "alias"), certain: true}
	if text(expression, "class") == "COLUMN_REF" {
		names, _ := expression["column_names"].([]any)
		if c.name == "" && len(names) > 0 {
			c.name, _ = names[len(names)-1].(string)
		}
	}
	walk := referenced{lineage: l, in: in, before: before}
	walk.expression(expression, Identity)
	c.origins, c.certain = walk.origins, !walk.lost
	return c
}

// referenced collects the columns that an expression names.
type referenced struct {
	lineage
	in      scope
	before  source
	origins []origin
	lost    bool // something was met that is not followed
}

func (r *referenced) expression(node any, transform string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			r.expression(child, transform)
		}
	case map[string]any:
		switch text(n, "class") {
		case "COLUMN_REF":
			r.column(n, transform)
			return
		case "SUBQUERY", "LAMBDA", "LAMBDA_REF", "STAR", "POSITIONAL_REFERENCE":
			r.lost = true
			return
		case "WINDOW":
			transform = further(transform, Expression)
		case "FUNCTION":
			transform = further(transform, Expression)
			if aggregates[sqltext.Lower(text(n, "function_name"))] {
				transform = Aggregate
			}
		case "":
		default:
			transform = further(transform, Expression)
		}

		for _, key := range sortedKeys(n) {
			r.expression(n[key], transform)
		}
	}
}

// column resolves a reference: [column], [source, column], and with fields of structs behind either.
func (r *referenced) column(n map[string]any, transform string) {
	list, _ := n["column_names"].([]any)
	var path []string
	for _, part := range list {
		name, _ := part.(string)
		path = append(path, sqltext.Lower(name))
	}
	if len(path) > 1 {
		for _, s := range r.in.sources {
			if s.alias == path[0] {
				if len(path) > 2 {
					transform = further(transform, Expression)
				}
				r.add(s.columns, path[1], transform)
				return
			}
		}
		transform = further(transform, Expression)
	}

	if origins, ok := r.in.merged[path[0]]; ok {
		r.append(origins, transform)
		return
	}
	var holding []source
	for _, s := range r.in.sources {
		if slices.ContainsFunc(s.columns, func(c derived) bool { return sqltext.Lower(c.name) == path[0] }) {
			holding = append(holding, s.columns)
		}
	}

	switch {
	case len(holding) == 1:
		r.add(holding[0], path[0], transform)
	case len(holding) == 0:
		r.add(r.before, path[0], transform)
	default:
		r.lost = true
	}
}

func (r *referenced) add(columns source, name, transform string) {
	i := slices.IndexFunc(columns, func(c derived) bool { return sqltext.Lower(c.name) == name })
	if i < 0 || !columns[i].certain {
		r.lost = true
		return
	}
	r.append(columns[i].origins, transform)
}

func (r *referenced) append(origins []origin, transform string) {
	for _, o := range origins {
		o.transform = further(o.transform, transform)
		i := slices.IndexFunc(r.origins, func(have origin) bool {
			return have.relation == o.relation && have.column == o.column
		})
		if i < 0 {
			r.origins = append(r.origins, o)
			continue
		}
		r.origins[i].transform = further(r.origins[i].transform, o.transform)
	}
}

func further(a, b string) string {
	order := []string{Identity, Expression, Aggregate}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}
