package columnlineage

import (
	"slices"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// The parts of expressions, by class: those whose values flow into theirs, and those that are known not to. Any other
// part makes the value unsure.
var parts = map[string]struct{ flow, still []string }{
	"CONSTANT":    {still: []string{"value"}},
	"COMPARISON":  {flow: []string{"left", "right"}},
	"CONJUNCTION": {flow: []string{"children"}},
	"OPERATOR":    {flow: []string{"children"}},
	"BETWEEN":     {flow: []string{"input", "lower", "upper"}},
	"CAST":        {flow: []string{"child"}, still: []string{"cast_type", "try_cast"}},
	"COLLATE":     {flow: []string{"child"}, still: []string{"collation"}},
	"CASE":        {flow: []string{"case_checks", "else_expr"}},
	"FUNCTION": {flow: []string{"children"}, still: []string{"function_name", "schema", "catalog", "distinct", "filter",
		"order_bys", "is_operator", "export_state"}},
	"WINDOW": {flow: []string{"children", "offset_expr", "default_expr"}, still: []string{"function_name", "schema",
		"catalog", "partitions", "orders", "arg_orders", "filter_expr", "ignore_nulls", "distinct", "start", "end",
		"start_expr", "end_expr", "exclude_clause"}},
	"LAMBDA": {flow: []string{"lhs", "expr"}, still: []string{"syntax_type"}},
	"":       {flow: []string{"when_expr", "then_expr"}}, // a branch of CASE
}

// withLambdas are the functions whose arguments may be lambdas. Elsewhere, x -> y extracts y from x as JSON.
var withLambdas = []string{"apply", "array_apply", "array_filter", "array_reduce", "array_transform", "filter",
	"list_apply", "list_filter", "list_reduce", "list_transform", "reduce"}

// ranks are the window functions that compute a value from nothing but the places of rows in the order, so that the
// ordering columns are what flows into it.
var ranks = []string{"row_number", "rank", "rank_dense", "dense_rank", "percent_rank", "cume_dist", "ntile"}

// value returns where the values of an expression come from.
func (w *walker) value(node any, in *scope, ctes with) value {
	e := evaluation{walker: w, in: in, ctes: ctes}
	e.walk(node, Identity)
	v := e.flow.value()
	if n, _ := node.(map[string]any); text(n, "class") == "COLUMN_REF" {
		v.kind = e.kind
	}
	return v
}

// evaluation follows one expression.
type evaluation struct {
	*walker
	flow

	in         *scope
	ctes       with
	parameters []string // of lambdas around
	kind       string   // of the last column
	turn       int      // which column each COLUMNS(…) stands for
}

func (e *evaluation) walk(node any, transform string) {
	if !e.step(len(e.sources) / 8) {
		e.lose(tooLarge)
		return
	}
	if all, ok := node.([]any); ok {
		for _, child := range all {
			e.walk(child, transform)
		}
		return
	}
	n, ok := node.(map[string]any)
	if !ok {
		return
	}

	switch class := text(n, "class"); class {
	case "COLUMN_REF":
		e.column(names(n, "column_names"), transform)
	case "POSITIONAL_REFERENCE":
		e.positional(n, transform)
	case "SUBQUERY":
		e.subquery(n, transform)
	case "STAR":
		e.star(n, transform)
	case "LAMBDA":
		e.extraction(n)
	case "WINDOW":
		e.window(n, transform)
	case "FUNCTION":
		e.function(n, transform)
	case "OPERATOR":
		if text(n, "type") == "OPERATOR_UNPACK" { // its columns are arguments, all at once
			turn := e.turn
			e.turn = -1
			e.parts(n, transform)
			e.turn = turn
			return
		}
		if text(n, "type") == "GROUPING_FUNCTION" {
			e.through(Aggregate) // it tells a group's set of columns, not their values
			return
		}
		e.parts(n, further(transform, Expression))
	default:
		e.parts(n, further(transform, Expression))
	}
}

// parts follows the parts of an expression.
func (e *evaluation) parts(n map[string]any, transform string) {
	class := text(n, "class")
	known, ok := parts[class]
	if !ok {
		e.lose("an expression of kind %s is not followed", class)
		return
	}
	for key := range n {
		if !slices.Contains([]string{"class", "type", "alias"}, key) && !slices.Contains(known.flow, key) &&
			!slices.Contains(known.still, key) {
			e.lose("%s of an expression of kind %s is not followed", key, class)
		}
	}

	e.through(transform)
	for _, key := range known.flow {
		e.walk(n[key], transform)
	}
}

func (e *evaluation) column(path []string, transform string) {
	if len(path) == 0 {
		e.lose("a column without a name is not followed")
		return
	}
	if slices.Contains(e.parameters, path[0]) {
		e.through(further(transform, Expression)) // its values are those of the list, which is an argument itself
		return
	}
	v := e.in.resolve(path)
	e.kind = v.kind
	e.step(len(v.sources))
	e.add(v, transform)
}

// positional is #1: a column of FROM by its place.
func (e *evaluation) positional(n map[string]any, transform string) {
	index := number(n["index"])
	if e.in.star.lost != "" || index < 1 || index > len(e.in.star.columns) {
		e.lose("what #%d means was not found", index)
		return
	}
	e.add(e.in.star.columns[index-1], transform)
}

// subquery follows a scalar subquery as the one column that it has. Of EXISTS nothing but the existence of rows flows.
func (e *evaluation) subquery(n map[string]any, transform string) {
	kind := text(n, "subquery_type")
	if kind == "EXISTS" || kind == "NOT_EXISTS" {
		e.through(further(transform, Expression))
		return
	}
	if kind == "ANY" {
		transform = further(transform, Expression)
		e.walk(n["child"], transform)
	} else if kind != "SCALAR" {
		e.lose("a subquery of kind %s is not followed", kind)
	}

	r := e.query(object(object(n, "subquery"), "node"), e.in, e.ctes, 0)
	if r.lost != "" {
		e.lose("%s", r.lost)
	}
	for _, c := range r.columns {
		e.add(c, transform)
	}
}

func (e *evaluation) function(n map[string]any, transform string) {
	name := sqltext.Lower(text(n, "function_name"))
	transform = further(transform, Expression)
	if e.aggregates(name) {
		transform = Aggregate
	}
	var receiver []string // column.function(): DuckDB's parser takes the column for a schema
	for _, key := range []string{"catalog", "schema"} {
		if part := sqltext.Lower(text(n, key)); part != "" && part != "main" && part != "system" {
			receiver = append(receiver, part)
		}
	}
	if len(receiver) > 0 {
		e.column(receiver, transform)
	}

	if !slices.Contains(withLambdas, name) {
		e.parts(n, transform)
		return
	}
	e.through(transform)
	for _, child := range list(n, "children") {
		argument, _ := child.(map[string]any)
		if text(argument, "class") != "LAMBDA" {
			e.walk(child, transform)
			continue
		}
		before := len(e.parameters)
		e.parameters = append(e.parameters, parametersOf(object(argument, "lhs"))...)
		e.walk(argument["expr"], transform)
		e.parameters = e.parameters[:before]
	}
}

// parametersOf returns the parameters of a lambda: one name, or a row of them.
func parametersOf(lhs map[string]any) []string {
	if text(lhs, "class") == "COLUMN_REF" {
		return names(lhs, "column_names")
	}
	var all []string
	for _, child := range list(lhs, "children") {
		parameter, _ := child.(map[string]any)
		all = append(all, names(parameter, "column_names")...)
	}
	return all
}

// extraction is x -> y outside of functions that take lambdas.
func (e *evaluation) extraction(n map[string]any) { e.parts(n, Expression) }

// window follows a window function. Aggregate functions combine the values of many rows; the others find a place or
// another row's value for each row.
func (e *evaluation) window(n map[string]any, transform string) {
	name := sqltext.Lower(text(n, "function_name"))
	transform = further(transform, Expression)
	if text(n, "type") == "WINDOW_AGGREGATE" {
		transform = Aggregate
	}
	e.parts(n, transform)

	if !slices.Contains(ranks, name) {
		return
	}
	orders := list(n, "arg_orders")
	if len(orders) == 0 {
		orders = list(n, "orders")
	}
	for _, o := range orders {
		order, _ := o.(map[string]any)
		e.walk(order["expression"], transform)
	}
}

func names(n map[string]any, key string) (path []string) {
	for _, part := range list(n, key) {
		name, _ := part.(string)
		path = append(path, sqltext.Lower(name))
	}
	return path
}

// number returns a whole number of the tree; 0 if it is none.
func number(v any) int {
	if n, ok := v.(interface{ Int64() (int64, error) }); ok {
		whole, _ := n.Int64()
		return int(whole)
	}
	return 0
}
