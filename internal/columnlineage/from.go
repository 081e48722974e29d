package columnlineage

import (
	"cmp"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// scope is a FROM clause: what names in its SELECT can mean.
type scope struct {
	sources []source
	star    relation         // what a plain * stands for
	merged  map[string]value // columns of USING and NATURAL, by name in lower case
	aliases []value          // of the items to the left in the SELECT list
	outer   *scope           // of the query around, or of what is to the left in FROM
}

// source is something in FROM, by its name there in lower case.
type source struct {
	alias string
	relation
}

func lostScope(outer *scope, format string, args ...any) *scope {
	lost := lostFor(format, args...)
	return &scope{sources: []source{{"", lost}}, star: lost, outer: outer}
}

// from reads a FROM clause.
func (w *walker) from(n map[string]any, outer *scope, ctes with) *scope {
	if !w.step(0) {
		return lostScope(outer, tooLarge)
	}
	name := text(n, "alias")
	var r relation
	switch kind := text(n, "type"); kind {
	case "EMPTY", "":
		return &scope{outer: outer}
	case "JOIN":
		return w.join(n, outer, ctes)
	case "BASE_TABLE":
		table := text(n, "table_name")
		name = cmp.Or(name, table)
		r = w.named(table, ctes)
	case "SUBQUERY":
		r = w.query(object(object(n, "subquery"), "node"), outer, ctes, 0)
	case "EXPRESSION_LIST":
		r = w.values(n, outer, ctes)
	case "TABLE_FUNCTION":
		name = cmp.Or(name, text(object(n, "function"), "function_name"))
		r = w.tableFunction(n, outer, ctes)
	case "PIVOT":
		r = w.pivot(n, outer, ctes)
	default:
		return lostScope(outer, "%s in FROM is not followed", kind)
	}

	r = r.renamed(list(n, "column_name_alias")).apart()
	w.step(len(r.columns))
	return &scope{sources: []source{{sqltext.Lower(name), r}}, star: r, outer: outer}
}

// named returns the relation of a name: a WITH, or one that the statement does not define.
func (w *walker) named(table string, ctes with) relation {
	if r, ok := ctes[sqltext.Lower(table)]; ok {
		return r
	}
	if r, ok := w.relations[sqltext.Lower(table)]; ok {
		return r
	}
	return lostFor("the columns of %q are not known", table)
}

// values returns the columns of VALUES, each of which comes from the expressions in its place of all rows.
func (w *walker) values(n map[string]any, outer *scope, ctes with) relation {
	var r relation
	for i, row := range list(n, "values") {
		expressions, _ := row.([]any)
		var values relation
		for _, expression := range expressions {
			values.columns = append(values.columns, w.value(expression, &scope{outer: outer}, ctes))
		}
		if i == 0 {
			r = values
			continue
		}
		r, _ = r.joined(values)
	}

	var names []any
	for i := range r.columns {
		names = append(names, "col"+itoa(i))
	}
	return r.renamed(names)
}

// tableFunction returns the columns of those functions that statements may call in FROM.
func (w *walker) tableFunction(n map[string]any, outer *scope, ctes with) relation {
	function := object(n, "function")
	name := sqltext.Lower(text(function, "function_name"))
	f := flow{transform: Expression}
	var first value
	for i, argument := range list(function, "children") {
		node, _ := argument.(map[string]any)
		if alias := text(node, "alias"); name == "unnest" && alias != "" {
			return lostFor("unnest(…, %s := …) is not followed", alias)
		}
		v := w.value(node, &scope{outer: outer}, ctes)
		f.add(v, Expression)
		if i == 0 {
			first = v
		}
	}

	of := f.value()
	var names []string
	switch name {
	case "unnest":
		of.kind, _ = elementOf(first.kind)
		names = []string{name}
	case "range", "generate_series":
		names = []string{name}
	case "json_each", "json_tree":
		names = []string{"key", "value", "type", "atom", "id", "parent", "fullkey", "path"}
	default:
		return lostFor("the table function %s is not followed", name)
	}
	var r relation
	for _, column := range names {
		of.name = column
		r.columns = append(r.columns, of)
	}
	if text(n, "with_ordinality") == "WITH_ORDINALITY" {
		r.columns = append(r.columns, value{name: "ordinality", transform: Expression})
	}
	return r
}

// join joins two scopes. What is on the right may name what is on the left: LATERAL.
func (w *walker) join(n map[string]any, outer *scope, ctes with) *scope {
	left := w.from(object(n, "left"), outer, ctes)
	right := w.from(object(n, "right"), left, ctes)
	kind, how := text(n, "join_type"), text(n, "ref_type")
	if kind == "SEMI" || kind == "ANTI" {
		return left
	}

	both := &scope{sources: slices.Concat(left.sources, right.sources), outer: outer,
		merged: map[string]value{}, star: relation{columns: slices.Clone(left.star.columns),
			lost: cmp.Or(left.star.lost, right.star.lost)}}
	maps.Copy(both.merged, left.merged)
	maps.Copy(both.merged, right.merged)

	shared := map[string]bool{}
	for _, u := range list(n, "using_columns") {
		name, _ := u.(string)
		shared[sqltext.Lower(name)] = true
	}
	for _, c := range right.star.columns {
		name := sqltext.Lower(c.name)
		at := columnsNamed(left.star.columns, name)
		if !shared[name] && (how != "NATURAL" || len(at) == 0 || name == "") {
			both.star.columns = append(both.star.columns, c)
			continue
		}
		if len(at) != 1 {
			both.star.lost = cmp.Or(both.star.lost,
				"the column "+c.name+" of USING is there several times, or not at all")
			continue
		}
		merged := mergedColumn(left.star.columns[at[0]], c, kind, how)
		both.star.columns[at[0]], both.merged[name] = merged, merged
	}
	w.step(len(both.star.columns))
	return both
}

// mergedColumn is a column that both sides of a join have in common: the value of the side whose rows are all there,
// of both where they are equal or either.
func mergedColumn(left, right value, kind, how string) value {
	switch {
	case kind == "LEFT", how == "ASOF" && kind == "INNER":
		return left
	case kind == "RIGHT":
		return right
	}
	return blend(left, right)
}

// columnsNamed returns the places of the columns of a name in lower case.
func columnsNamed(columns []value, name string) (at []int) {
	for i, c := range columns {
		if c.name != "" && sqltext.Lower(c.name) == name {
			at = append(at, i)
		}
	}
	return at
}
