package duck

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// What a statement is derived from.
type (
	Derivation  = relations.Derivation
	Part        = relations.Part
	DerivedPart = relations.DerivedPart
	ColumnOf    = relations.ColumnOf
)

// Derive follows a statement over relations to what decides its rows and its columns. It takes the relations' columns
// by the relations' names; nil stands for columns that are not known. It follows only plain SELECTs with joins, WHERE,
// GROUP BY, HAVING, QUALIFY, DISTINCT and WITH, whose functions always return the same for the same rows in any order.
// For all other statements it returns false.
//
// A name that could mean several things (a column of either side of a join, an alias of the SELECT list) reads all of
// them. So the rules of precedence do not matter, and a new column that changes what a name means changes what is read.
func (q *Select) Derive(relations map[string][]string) (Derivation, bool) {
	d := deriver{relations: map[string]*derivedSource{}, reads: map[ColumnOf]bool{}}
	for name, columns := range relations {
		d.relations[sqltext.Lower(name)] = sourceOf(sqltext.Lower(name), columns)
	}

	node, _ := q.tree["node"].(map[string]any)
	for key := range q.tree {
		d.require(key == "node")
	}
	result := d.selectNode(node, nil)
	if d.unsure {
		return Derivation{}, false
	}

	derived := Derivation{Rows: result.rows.part(), Reads: sortedReads(d.reads)}
	derived.Reads = slices.DeleteFunc(derived.Reads, func(c ColumnOf) bool { return c.Column == "" })
	seen := map[string]bool{"": true}
	for _, c := range result.columns {
		if seen[c.name] {
			return Derivation{Rows: derived.Rows, Reads: derived.Reads}, true
		}
		seen[c.name] = true
		derived.Columns = append(derived.Columns, DerivedPart{Name: c.name, Part: c.part()})
	}
	return derived, true
}

// deriver walks a statement. It becomes unsure at the first thing that it does not follow.
type deriver struct {
	relations map[string]*derivedSource
	reads     map[ColumnOf]bool
	unsure    bool
}

func (d *deriver) require(ok bool) { d.unsure = d.unsure || !ok }

// formed is a part in the making.
type formed struct {
	name  string // of a column; empty where DuckDB makes one up
	form  any    // JSON
	reads map[ColumnOf]bool
}

func (f formed) part() Part {
	text, err := json.Marshal(f.form) // map keys are sorted
	if err != nil {
		panic("duck: a parsed statement is not JSON: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return Part{Form: hex.EncodeToString(sum[:]), Reads: sortedReads(f.reads)}
}

func sortedReads(reads map[ColumnOf]bool) []ColumnOf {
	return slices.SortedFunc(maps.Keys(reads), func(a, b ColumnOf) int {
		return cmp.Or(cmp.Compare(a.Relation, b.Relation), cmp.Compare(a.Column, b.Column))
	})
}

// derivedSource is what a name in FROM stands for.
type derivedSource struct {
	rows    formed
	columns map[string]formed // nil: not known; rows stands for them
}

func sourceOf(relation string, columns []string) *derivedSource {
	at := func(column string) formed {
		c := ColumnOf{Relation: relation, Column: column}
		return formed{name: column, form: []string{c.Relation, c.Column}, reads: map[ColumnOf]bool{c: true}}
	}
	s := &derivedSource{rows: at("")}
	if columns != nil {
		s.columns = map[string]formed{}
		for _, c := range columns {
			s.columns[sqltext.Lower(c)] = at(sqltext.Lower(c))
		}
	}
	return s
}

// derivedSelect is a SELECT: its rows and its columns.
type derivedSelect struct {
	rows    formed
	columns []formed
}

// deriveScope is what names can mean in a SELECT.
type deriveScope struct {
	aliases []string // in FROM, in lower case
	sources []*derivedSource
	items   []formed // of the SELECT list, as far as they can be named
	reads   map[ColumnOf]bool
	// aggregates is set by an aggregate function, also in the arguments of a window function.
	aggregates bool
}

// The keys of a SELECT that are followed.
var followedKeys = []string{"type", "aggregate_handling", "cte_map", "from_table", "select_list", "where_clause",
	"group_expressions", "group_sets", "having", "qualify", "modifiers"}

func (d *deriver) selectNode(n map[string]any, outer map[string]*derivedSource) derivedSelect {
	d.require(text(n, "type") == "SELECT_NODE" && text(n, "aggregate_handling") == "STANDARD_HANDLING")
	for key := range n {
		d.require(slices.Contains(followedKeys, key))
	}
	ctes := d.withClause(n, outer)
	if d.unsure {
		return derivedSelect{}
	}

	in := &deriveScope{reads: map[ColumnOf]bool{}}
	from, _ := n["from_table"].(map[string]any)
	rows := map[string]any{"from": d.from(from, in, ctes)}
	list, _ := n["select_list"].([]any)
	for _, item := range list {
		d.item(item, in)
	}
	items := in.items

	// What follows reads for the rows, and what came before, in FROM, too.
	for _, key := range []string{"where_clause", "having", "qualify"} {
		if n[key] != nil {
			rows[key] = d.expression(n[key], in, in.reads)
		}
	}
	rows["groups"] = d.groups(n, in)
	distinct := d.modifiers(n, in)
	if n["group_expressions"] == nil && in.aggregates {
		rows["aggregated"] = true // into a single row
	}
	if distinct {
		rows["distinct"] = hashes(items)
		for _, item := range items {
			maps.Copy(in.reads, item.reads)
		}
	}
	return derivedSelect{rows: formed{form: rows, reads: in.reads}, columns: items}
}

func hashes(parts []formed) []string {
	list := make([]string, len(parts))
	for i, p := range parts {
		list[i] = p.part().Form
	}
	return list
}

// withClause returns what the names of a WITH clause stand for, and those of the outer ones. Each sees those before it.
func (d *deriver) withClause(n map[string]any, outer map[string]*derivedSource) map[string]*derivedSource {
	visible := maps.Clone(outer)
	cteMap, _ := n["cte_map"].(map[string]any)
	entries, _ := cteMap["map"].([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		value, _ := entry["value"].(map[string]any)
		for key := range value {
			d.require(key == "query" || key == "materialized")
		}

		query, _ := value["query"].(map[string]any)
		if visible == nil {
			visible = map[string]*derivedSource{}
		}
		visible[sqltext.Lower(text(entry, "key"))] = d.nested(query, visible)
	}
	return visible
}

// nested returns a SELECT as something that can stand in FROM.
func (d *deriver) nested(query map[string]any, ctes map[string]*derivedSource) *derivedSource {
	node, _ := query["node"].(map[string]any)
	for key := range query {
		d.require(key == "node")
	}
	result := d.selectNode(node, ctes)
	if d.unsure {
		return nil
	}

	s := &derivedSource{columns: map[string]formed{},
		rows: formed{form: result.rows.part().Form, reads: result.rows.reads}}
	for _, c := range result.columns {
		_, twice := s.columns[c.name]
		d.require(c.name != "" && !twice)
		s.columns[c.name] = formed{form: c.part().Form, reads: c.reads}
	}
	return s
}

// from follows a FROM clause and adds its sources to the scope.
func (d *deriver) from(n map[string]any, in *deriveScope, ctes map[string]*derivedSource) any {
	alias := sqltext.Lower(text(n, "alias"))
	var source *derivedSource
	switch text(n, "type") {
	case "BASE_TABLE":
		d.only(n, "type", "table_name", "alias")
		name := sqltext.Lower(text(n, "table_name"))
		if source = ctes[name]; source == nil {
			source = d.relations[name]
		}
		alias = cmp.Or(alias, name)
	case "SUBQUERY":
		// A subquery beside others may read their columns; by itself it sees only its own.
		d.only(n, "type", "subquery", "alias")
		d.require(len(in.sources) == 0)
		query, _ := n["subquery"].(map[string]any)
		source = d.nested(query, ctes)
	case "JOIN":
		return d.join(n, in, ctes)
	}

	d.require(source != nil && !slices.Contains(in.aliases, alias))
	if d.unsure {
		return nil
	}
	in.aliases, in.sources = append(in.aliases, alias), append(in.sources, source)
	maps.Copy(in.reads, source.rows.reads)
	return source.rows.part().Form
}

func (d *deriver) join(n map[string]any, in *deriveScope, ctes map[string]*derivedSource) any {
	d.only(n, "type", "left", "right", "condition", "join_type", "ref_type", "using_columns")
	d.require(slices.Contains([]string{"INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"}, text(n, "join_type")))
	d.require(slices.Contains([]string{"REGULAR", "CROSS"}, text(n, "ref_type")))
	left, _ := n["left"].(map[string]any)
	right, _ := n["right"].(map[string]any)
	d.require(text(left, "type") != "SUBQUERY" && text(right, "type") != "SUBQUERY")

	form := map[string]any{"join": text(n, "join_type"), "ref": text(n, "ref_type")}
	form["left"] = d.from(left, in, ctes)
	form["right"] = d.from(right, in, ctes)
	if d.unsure {
		return nil
	}
	if n["condition"] != nil {
		form["on"] = d.expression(n["condition"], in, in.reads)
	}
	using, _ := n["using_columns"].([]any)
	var columns []any
	for _, u := range using {
		name, _ := u.(string)
		columns = append(columns, d.named(sqltext.Lower(name), in, in.reads))
	}
	form["using"] = columns
	return form
}

// item adds an expression of the SELECT list to the scope. The items after it can name it by its alias.
func (d *deriver) item(node any, in *deriveScope) {
	n, _ := node.(map[string]any)
	name := text(n, "alias")
	if names, _ := n["column_names"].([]any); name == "" && len(names) > 0 {
		name, _ = names[len(names)-1].(string)
	}
	// The name is part of it as it is written, because conditions heed case.
	item := formed{name: sqltext.Lower(name), reads: map[ColumnOf]bool{}}
	item.form = map[string]any{"as": name, "is": d.expression(n, in, item.reads)}
	in.items = append(in.items, item)
}

// groups follows GROUP BY, where a number is the place of an item in the SELECT list.
func (d *deriver) groups(n map[string]any, in *deriveScope) any {
	list, _ := n["group_expressions"].([]any)
	sets, _ := n["group_sets"].([]any)
	var forms []any
	for _, g := range list {
		forms = append(forms, d.ordinal(g, in, in.reads))
	}

	// Several sets of groups make other rows than one, and no set other rows than an empty one.
	d.require(len(sets) == min(len(list), 1))
	if len(sets) == 1 {
		set, _ := sets[0].([]any)
		d.require(len(set) == len(list))
	}
	return forms
}

// ordinal follows an expression that may be the place of an item in the SELECT list.
func (d *deriver) ordinal(node any, in *deriveScope, reads map[ColumnOf]bool) any {
	n, _ := node.(map[string]any)
	if text(n, "class") != "CONSTANT" {
		return d.expression(node, in, reads)
	}
	value, _ := n["value"].(map[string]any)
	place, err := number(value["value"])
	d.require(err == nil && place >= 1 && place <= int64(len(in.items)))
	if d.unsure {
		return nil
	}
	item := in.items[place-1]
	maps.Copy(reads, item.reads)
	return item.part().Form
}

func number(v any) (int64, error) {
	n, _ := v.(json.Number)
	return n.Int64()
}

// modifiers follows what comes after the SELECT, and reports whether it is DISTINCT. The order of rows is no part of
// the result, so LIMIT and DISTINCT ON, which depend on it, are not followed.
func (d *deriver) modifiers(n map[string]any, in *deriveScope) (distinct bool) {
	list, _ := n["modifiers"].([]any)
	for _, m := range list {
		modifier, _ := m.(map[string]any)
		switch text(modifier, "type") {
		case "DISTINCT_MODIFIER":
			d.only(modifier, "type")
			distinct = true
		case "ORDER_MODIFIER":
			orders, _ := modifier["orders"].([]any)
			for _, o := range orders {
				order, _ := o.(map[string]any)
				d.ordinal(order["expression"], in, map[ColumnOf]bool{})
			}
		default:
			d.unsure = true
		}
	}
	return distinct
}

// only requires that a node has no other keys.
func (d *deriver) only(n map[string]any, keys ...string) {
	for key := range n {
		d.require(slices.Contains(keys, key))
	}
}

// expression returns the form of an expression, and adds what it reads. Parts of it that are no expressions themselves
// (types, constants, the ends of windows) are in the form as they are.
func (d *deriver) expression(node any, in *deriveScope, reads map[ColumnOf]bool) any {
	switch n := node.(type) {
	case []any:
		forms := make([]any, len(n))
		for i, child := range n {
			forms[i] = d.expression(child, in, reads)
		}
		return forms
	case map[string]any:
		class := text(n, "class")
		if class == "COLUMN_REF" {
			return d.column(n, in, reads)
		}
		d.follow(n, in)
		form := make(map[string]any, len(n))
		for key, child := range n {
			if key != "alias" || class == "" {
				form[key] = d.expression(child, in, reads)
			}
		}
		return form
	}
	return node
}

// follow requires that a node of an expression is one that is followed.
func (d *deriver) follow(n map[string]any, in *deriveScope) {
	switch name := text(n, "function_name"); text(n, "class") {
	case "", "CONSTANT", "COMPARISON", "CONJUNCTION", "BETWEEN", "CASE", "CAST":
	case "OPERATOR":
		d.require(slices.Contains(followedOperators, text(n, "type")))
	case "FUNCTION":
		order, _ := n["order_bys"].(map[string]any)
		d.require(order["orders"] == nil && (text(n, "schema") == "" || text(n, "schema") == "main"))
		if followedAggregates[name] {
			children, _ := n["children"].([]any)
			d.require(len(children) <= 1)
			in.aggregates = true
			return
		}
		d.require(followedFunctions[name] && n["filter"] == nil && n["distinct"] == nil)
	case "WINDOW":
		d.only(n, "class", "type", "alias", "function_name", "children", "partitions", "orders", "start", "end")
		d.require(text(n, "start") == "UNBOUNDED_PRECEDING")
		d.require(text(n, "end") == "CURRENT_ROW_RANGE" || text(n, "end") == "UNBOUNDED_FOLLOWING")
		ranks := []string{"WINDOW_RANK", "WINDOW_RANK_DENSE", "WINDOW_PERCENT_RANK", "WINDOW_CUME_DIST"}
		d.require(slices.Contains(ranks, text(n, "type")) ||
			text(n, "type") == "WINDOW_AGGREGATE" && followedAggregates[name])
	default:
		d.unsure = true // subqueries, lambdas, stars, parameters
	}
}

// column follows a reference: column, or source.column.
func (d *deriver) column(n map[string]any, in *deriveScope, reads map[ColumnOf]bool) any {
	list, _ := n["column_names"].([]any)
	var path []string
	for _, part := range list {
		name, _ := part.(string)
		path = append(path, sqltext.Lower(name))
	}

	switch len(path) {
	case 1:
		return d.named(path[0], in, reads)
	case 2:
		i := slices.Index(in.aliases, path[0])
		d.require(i >= 0 && !in.holds(path[0]))
		if d.unsure {
			return nil
		}
		return d.means(path, in.sources[i:i+1], nil, reads)
	}
	d.unsure = true // a field of a struct
	return nil
}

// holds reports whether something in the scope is known to have a column of a name.
func (in *deriveScope) holds(name string) bool {
	return slices.ContainsFunc(in.sources, func(s *derivedSource) bool {
		_, ok := s.columns[name]
		return ok
	})
}

// named follows a name without a source. It may be the name of a source, and then mean a whole row.
func (d *deriver) named(name string, in *deriveScope, reads map[ColumnOf]bool) any {
	d.require(!slices.Contains(in.aliases, name) || in.holds(name))
	return d.means([]string{name}, in.sources, in.items, reads)
}

// means returns the form of a name, which is everything that it can mean.
func (d *deriver) means(path []string, sources []*derivedSource, items []formed, reads map[ColumnOf]bool) any {
	name := path[len(path)-1]
	var meant []any
	for _, s := range sources {
		if s.columns == nil {
			meant = append(meant, s.rows.form) // the relation's rows are read anyway
			maps.Copy(reads, s.rows.reads)
			maps.Copy(d.reads, s.rows.reads)
		} else if c, ok := s.columns[name]; ok {
			meant = append(meant, c.form)
			maps.Copy(reads, c.reads)
			maps.Copy(d.reads, c.reads)
		}
	}
	for _, item := range items {
		if item.name == name {
			meant = append(meant, item.part().Form)
			maps.Copy(reads, item.reads)
		}
	}

	d.require(len(meant) > 0)
	return map[string]any{"name": path, "means": meant}
}
