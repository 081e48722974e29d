// Package columnlineage follows a parsed statement from its output columns to the columns of relations whose values
// flow into them. It reads the tree that DuckDB's parser makes, and needs no DuckDB.
//
// A value flows where it is shown, or is an argument of what is computed: also in the condition of a CASE. What only
// decides which rows there are, how they are matched, grouped or ordered (WHERE, ON, GROUP BY, HAVING, QUALIFY, ORDER
// BY, PARTITION BY, FILTER, frames, the right side of EXCEPT) is no source. Whatever it does not know makes the
// columns that it touches unsure, with the reason; it never guesses.
package columnlineage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// The transforms, from the weakest to the strongest.
const (
	Identity   = "identity"
	Expression = "expression"
	Aggregate  = "aggregate"
)

// mostSteps bounds the work for one statement. TPC-DS takes thousands at most; a * over 10,000 columns as many.
const mostSteps = 300_000

const tooLarge = "the statement is too large to be followed"

// Of returns the lineage of each column of output, which are the columns that DuckDB finds for the statement. The tree
// is the statement without positions and defaults; relations are its relations' columns by name, and aggregates says
// which functions are aggregate functions.
func Of(
	tree map[string]any, known map[string][]relations.Column, output []relations.Column, aggregates func(string) bool,
) []relations.ColumnLineage {
	w := &walker{relations: map[string]relation{}, aggregates: aggregates}
	for name, columns := range known {
		var r relation
		for _, c := range columns {
			r.columns = append(r.columns, value{name: c.Name, kind: c.Type, transform: Identity,
				sources: []relations.SourceColumn{{Table: name, Column: c.Name, Transform: Identity}}})
		}
		w.relations[sqltext.Lower(name)] = r
	}

	result := w.query(object(tree, "node"), nil, nil, len(output))
	if result.lost == "" && len(result.columns) != len(output) {
		result.lost = fmt.Sprintf("%d columns were found, and the statement has %d", len(result.columns), len(output))
	}
	if w.steps > mostSteps {
		result.lost = tooLarge
	}

	found := make([]relations.ColumnLineage, len(output))
	for i, c := range output {
		found[i] = relations.ColumnLineage{Column: c.Name, Sources: []relations.SourceColumn{}, Transform: Expression,
			Unsure: result.lost}
		if result.lost == "" {
			found[i] = result.columns[i].lineage(c.Name)
		}
	}
	return found
}

// lineage returns a value as the output column that DuckDB calls name.
func (v value) lineage(name string) relations.ColumnLineage {
	l := relations.ColumnLineage{Column: name, Sources: v.sources, Transform: v.transform, Unsure: v.unsure}
	if v.name != "" && !sqltext.Same(v.name, name) && !numbered(name, v.name) {
		l.Sources, l.Unsure = nil, fmt.Sprintf("a column %q was found in its place", v.name)
	}
	l.Sources = append([]relations.SourceColumn{}, l.Sources...) // as JSON an empty list, and never null
	slices.SortFunc(l.Sources, func(a, b relations.SourceColumn) int {
		return cmp.Or(strings.Compare(a.Table, b.Table), strings.Compare(a.Column, b.Column))
	})

	return l
}

// numbered reports whether have is what DuckDB makes of a name that is there twice: name_1.
func numbered(have, name string) bool {
	suffix, ok := strings.CutPrefix(sqltext.Lower(have), sqltext.Lower(name)+"_")
	return ok && strings.Trim(suffix, "0123456789") == ""
}

// value is one column of something: where its values come from.
type value struct {
	name      string // empty: DuckDB makes one up
	made      string // that name, if it is known
	kind      string // DuckDB's type, if it is known
	sources   []relations.SourceColumn
	transform string // the strongest on the way, also of what has no sources
	unsure    string // why there may be more sources
}

// called returns the value's name, or the one that DuckDB makes up; empty if that is not known.
func (v value) called() string { return cmp.Or(v.name, v.made) }

// relation is what can stand in FROM: its columns in order. If lost says why, they are not known.
type relation struct {
	columns []value
	lost    string
}

// size returns how many sources its columns have.
func (r relation) size() (n int) {
	for _, c := range r.columns {
		n += 1 + len(c.sources)
	}
	return n
}

func lostFor(format string, args ...any) relation {
	return relation{lost: fmt.Sprintf(format, args...)}
}

// with is the WITH clauses in sight, by name in lower case.
type with map[string]relation

type walker struct {
	relations  map[string]relation // by name in lower case
	aggregates func(name string) bool
	steps      int
}

// step counts work; it returns false once there was too much.
func (w *walker) step(n int) bool {
	w.steps += 1 + n
	return w.steps <= mostSteps
}

// query returns the columns of a query: a SELECT, a set operation or a recursive WITH. Names may be those of outer. If
// want is not 0, the query has so many columns.
func (w *walker) query(n map[string]any, outer *scope, ctes with, want int) relation {
	if !w.step(0) {
		return relation{lost: tooLarge}
	}
	ctes = w.withClause(n, outer, ctes)
	switch kind := text(n, "type"); kind {
	case "SELECT_NODE":
		return w.selected(n, outer, ctes, want)
	case "SET_OPERATION_NODE":
		return w.setOperation(n, outer, ctes)
	case "RECURSIVE_CTE_NODE":
		return w.recursive(n, outer, ctes)
	default:
		return lostFor("a query of kind %s is not followed", kind)
	}
}

func (w *walker) selected(n map[string]any, outer *scope, ctes with, want int) relation {
	in := w.from(object(n, "from_table"), outer, ctes)
	var out relation
	elastic := -1 // where a struct's fields stand, whose number is not known
	for _, item := range list(n, "select_list") {
		expression, _ := item.(map[string]any)
		here := *in
		here.aliases = out.columns
		found := w.item(expression, &here, ctes)
		switch {
		case found.lost != "":
			return relation{lost: found.lost}
		case found.elastic && (elastic >= 0 || want == 0):
			return lostFor("the fields of a struct are not known where it becomes columns")
		case found.elastic:
			elastic = len(out.columns)
		}
		out.columns = append(out.columns, found.columns...)
	}

	if elastic >= 0 {
		fields := want - len(out.columns) + 1
		if fields < 0 {
			return lostFor("the fields of a struct are not known where it becomes columns")
		}
		of := out.columns[elastic]
		of.name, of.made, of.kind = "", "", ""
		out.columns = slices.Replace(out.columns, elastic, elastic+1, slices.Repeat([]value{of}, fields)...)
	}
	return out
}

// withClause returns ctes with those that a query defines, each of which sees the ones before it.
func (w *walker) withClause(n map[string]any, outer *scope, ctes with) with {
	entries := list(object(n, "cte_map"), "map")
	if len(entries) == 0 {
		return ctes
	}
	visible := with{}
	for name, r := range ctes {
		visible[name] = r
	}

	for _, e := range entries {
		entry, _ := e.(map[string]any)
		defined := object(entry, "value")
		r := w.query(object(object(defined, "query"), "node"), outer, visible, 0)
		if len(list(defined, "key_targets")) > 0 {
			r = lostFor("USING KEY is not followed")
		}
		visible[sqltext.Lower(text(entry, "key"))] = r.renamed(list(defined, "aliases")).apart()
	}
	return visible
}

// recursive adds what each turn adds until nothing is new.
func (w *walker) recursive(n map[string]any, outer *scope, ctes with) relation {
	for key := range n {
		if !slices.Contains([]string{"type", "cte_name", "aliases", "left", "right", "union_all", "cte_map",
			"modifiers"}, key) {
			return lostFor("%s of a recursive WITH is not followed", key)
		}
	}
	name, aliases := sqltext.Lower(text(n, "cte_name")), list(n, "aliases")
	all := w.query(object(n, "left"), outer, ctes, 0)
	visible := with{}
	for known, r := range ctes {
		visible[known] = r
	}

	for {
		visible[name] = all.renamed(aliases).apart()
		more, changed := all.joined(w.query(object(n, "right"), outer, visible, 0))
		if !changed || !w.step(more.size()) {
			return more
		}
		all = more
	}
}

func (w *walker) setOperation(n map[string]any, outer *scope, ctes with) relation {
	left := w.query(object(n, "left"), outer, ctes, 0)
	right := w.query(object(n, "right"), outer, ctes, 0)
	switch kind := text(n, "setop_type"); kind {
	case "EXCEPT": // the right side only takes rows away
		return left
	case "UNION", "INTERSECT":
		both, _ := left.joined(right)
		return both
	case "UNION_BY_NAME":
		return left.joinedByName(right)
	default:
		return lostFor("a set operation %s is not followed", kind)
	}
}

// joined returns the columns of both, by their places, and whether that changes the receiver.
func (r relation) joined(other relation) (both relation, changed bool) {
	switch {
	case r.lost != "" || other.lost != "":
		return relation{lost: cmp.Or(r.lost, other.lost)}, r.lost == ""
	case len(r.columns) != len(other.columns):
		return lostFor("both sides of a set operation have other columns"), true
	}
	both.columns = slices.Clone(r.columns)
	for i, c := range other.columns {
		before := r.columns[i]
		both.columns[i] = blend(before, c)
		now := both.columns[i]
		changed = changed || now.transform != before.transform || now.unsure != before.unsure ||
			!slices.Equal(now.sources, before.sources)
	}
	return both, changed
}

func (r relation) joinedByName(other relation) relation {
	if r.lost != "" || other.lost != "" {
		return relation{lost: cmp.Or(r.lost, other.lost)}
	}

	out := slices.Clone(r.columns)
	for _, c := range other.columns {
		name := c.called()
		i := slices.IndexFunc(out, func(have value) bool { return sqltext.Same(have.called(), name) })
		switch {
		case name == "" || slices.ContainsFunc(r.columns, func(have value) bool { return have.called() == "" }):
			return lostFor("UNION BY NAME of columns without an alias is not followed")
		case i < 0:
			out = append(out, c)
		default:
			out[i] = blend(out[i], c)
		}
	}
	return relation{columns: out}
}

// blend returns a column whose values come from either of two, under the name of the first.
func blend(a, b value) value {
	f := flow{}
	f.add(a, Identity)
	f.add(b, Identity)
	both := f.value()
	both.name, both.made = a.name, a.made
	if a.kind == b.kind {
		both.kind = a.kind
	}
	return both
}

// renamed gives the first columns other names: t(a, b).
func (r relation) renamed(aliases []any) relation {
	if r.lost != "" || len(aliases) == 0 {
		return r
	}
	out := relation{columns: slices.Clone(r.columns)}
	for i, alias := range aliases {
		name, ok := alias.(string)
		if !ok || i >= len(out.columns) {
			return lostFor("there are more names than columns")
		}
		out.columns[i].name = name
	}
	return out
}

// apart tells names that are there twice apart, as DuckDB does: a, a_1, a_2.
func (r relation) apart() relation {
	seen := map[string]int{}
	out := relation{columns: slices.Clone(r.columns), lost: r.lost}
	for i, c := range out.columns {
		name := sqltext.Lower(c.name)
		if name == "" {
			continue
		}
		if n := seen[name]; n > 0 {
			out.columns[i].name = fmt.Sprintf("%s_%d", c.name, n)
		}
		seen[name]++
	}
	return out
}

// flow collects what flows into one column.
type flow struct {
	sources   []relations.SourceColumn
	at        map[[2]string]int
	transform string
	unsure    string
}

// add adds what flows into a value that is used in a transform.
func (f *flow) add(v value, transform string) {
	f.through(further(v.transform, transform))
	f.unsure = cmp.Or(f.unsure, v.unsure)
	for _, s := range v.sources {
		s.Transform = further(s.Transform, transform)
		key := [2]string{s.Table, s.Column}
		i, have := f.at[key]
		if have {
			f.sources[i].Transform = further(f.sources[i].Transform, s.Transform)
			continue
		}
		if f.at == nil {
			f.at = map[[2]string]int{}
		}
		f.at[key] = len(f.sources)
		f.sources = append(f.sources, s)
	}
}

func (f *flow) through(transform string) { f.transform = further(f.transform, transform) }

func (f *flow) lose(format string, args ...any) {
	f.unsure = cmp.Or(f.unsure, fmt.Sprintf(format, args...))
}

func (f *flow) value() value {
	return value{sources: f.sources, transform: cmp.Or(f.transform, Expression), unsure: f.unsure}
}

// further returns the stronger of two transforms.
func further(a, b string) string {
	order := []string{"", Identity, Expression, Aggregate}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

func text(n map[string]any, key string) string {
	s, _ := n[key].(string)
	return s
}

func object(n map[string]any, key string) map[string]any {
	m, _ := n[key].(map[string]any)
	return m
}

func list(n map[string]any, key string) []any {
	l, _ := n[key].([]any)
	return l
}
