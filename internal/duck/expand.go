package duck

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// A macro is written out as DuckDB does it: the arguments take the places of the parameters in the parsed body, which
// takes the place of the call. What comes of it is plain SQL, so that whoever follows statements need not know macros.

// mostWritten is how many parts the macros of a statement may come to, so that macros that call macros stay finite.
const mostWritten = 50_000

// Expand returns a statement with the macros that it calls written out. Without calls, it is the text as it was. The
// statement is checked as by Parse, with the places that its parts have in it.
func (s *Session) Expand(ctx context.Context, query string, all Macros) (string, error) {
	tree, err := s.tree(ctx, query)
	if err != nil {
		return "", err
	}
	scan := relationScan{query: query, seen: map[string]string{}, places: map[string]string{}, macros: all}
	if scan.walk(tree, nil); scan.err != nil {
		return "", scan.err
	}

	x := expansion{all: all, text: query, reads: map[string]string{}, ctes: map[string]bool{}}
	if err := s.nameItems(ctx, tree, x.calls); err != nil {
		return "", err
	}
	tree, _ = x.expand(tree).(map[string]any)
	if x.err == nil {
		x.err = x.captured()
	}
	if x.err != nil || !x.called {
		return query, x.err
	}
	tree, _ = settled(tree).(map[string]any)
	return s.plain(ctx, tree)
}

// negated has the comparisons that DuckDB's parser makes of those behind NOT.
var negated = map[string]string{
	"COMPARE_EQUAL": "COMPARE_NOTEQUAL", "COMPARE_NOTEQUAL": "COMPARE_EQUAL",
	"COMPARE_LESSTHAN": "COMPARE_GREATERTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHAN",
	"COMPARE_GREATERTHAN": "COMPARE_LESSTHANOREQUALTO", "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHAN",
	"COMPARE_DISTINCT_FROM": "COMPARE_NOT_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM": "COMPARE_DISTINCT_FROM",
	"COMPARE_IN": "COMPARE_NOT_IN", "COMPARE_NOT_IN": "COMPARE_IN",
}

// settled returns a tree as DuckDB's parser would have made it at once: with conjunctions in one, and with NOT and
// minus in what they stand before.
func settled(node any) any {
	switch n := node.(type) {
	case []any:
		for i, child := range n {
			n[i] = settled(child)
		}
	case map[string]any:
		for _, key := range sortedKeys(n) {
			n[key] = settled(n[key])
		}
		return settledNode(n)
	}
	return node
}

func settledNode(n map[string]any) map[string]any {
	children, _ := n["children"].([]any)
	var only map[string]any
	if len(children) == 1 {
		only, _ = children[0].(map[string]any)
	}
	value, _ := only["value"].(map[string]any)
	number, isNumber := value["value"].(json.Number)

	switch {
	case text(n, "class") == "CONJUNCTION":
		var flat []any
		for _, child := range children {
			c, _ := child.(map[string]any)
			if inner, _ := c["children"].([]any); text(c, "type") == text(n, "type") {
				flat = append(flat, inner...)
			} else {
				flat = append(flat, child)
			}
		}
		n["children"] = flat
		return n
	case text(n, "type") == "OPERATOR_NOT" && negated[text(only, "type")] != "":
		only["type"] = negated[text(only, "type")]
	case text(n, "function_name") == "-" && text(only, "type") == "VALUE_CONSTANT" && isNumber:
		minus, is := strings.CutPrefix(string(number), "-")
		if !is {
			minus = "-" + minus
		}
		value["value"] = json.Number(minus)
	default:
		return n
	}

	delete(only, "alias")
	if alias := text(n, "alias"); alias != "" {
		only["alias"] = alias
	}
	return only
}

// plain returns a tree as SQL that has the same tree, and nothing else.
func (s *Session) plain(ctx context.Context, tree map[string]any) (string, error) {
	written, err := s.written(ctx, tree)
	if err != nil {
		return "", err
	}
	again, err := s.tree(ctx, written)
	if err != nil {
		return "", err
	}

	sortExcluded(tree)
	sortExcluded(again)
	meant, err := canonicalOf(tree)
	if err != nil {
		return "", err
	}
	if is, err := canonicalOf(again); err != nil || !bytes.Equal(is, meant) {
		return "", fault.New(fault.Invalid, "DuckDB cannot write the statement out with its macros").
			WithHint("write the SQL of the macro in place of its call")
	}
	return written, nil
}

// sortExcluded sorts what stars exclude by the names of relations, which DuckDB writes in any order.
func sortExcluded(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			sortExcluded(child)
		}
	case map[string]any:
		list, _ := n["qualified_exclude_list"].([]any)
		slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, child := range n {
			sortExcluded(child)
		}
	}
}

// written returns a tree as SQL.
func (s *Session) written(ctx context.Context, tree map[string]any) (query string, err error) {
	text, err := json.Marshal(map[string]any{"error": false, "statements": []any{tree}})
	if err != nil {
		return "", fmt.Errorf("write SQL: %w", err)
	}
	err = s.Value(ctx, &query, "SELECT json_deserialize_sql(?::JSON)", string(text))
	return query, err
}

// writeOut writes the macros out that a macro calls. A macro that calls one of no use is of no use either, and only the
// other has a fault.
func (s *Session) writeOut(ctx context.Context, m *Macro, all Macros) {
	switch m.state {
	case writtenOut, unusable:
		return
	case opened:
		m.state = unusable
		m.fault = fault.New(fault.Invalid, "macro %q calls itself%s", m.Name, placeAt(m.text, m.at))
		return
	}
	m.state = opened

	find := expansion{all: all}
	each([]any{m.body, defaults(m)}, func(n map[string]any) {
		name := find.callee(n)
		if name == "" || m.state == unusable {
			return
		}
		if s.writeOut(ctx, all[name], all); all[name].state == unusable {
			m.state = unusable
		}
	})
	if m.state == unusable {
		return
	}

	m.state = writtenOut
	if m.fault = s.writeBody(ctx, m, all); m.fault != nil {
		m.state = unusable
	}
}

// writeBody writes out what the body and the defaults of a macro call, which is written out itself.
func (s *Session) writeBody(ctx context.Context, m *Macro, all Macros) error {
	x := expansion{all: all, text: m.text, reads: map[string]string{}, ctes: map[string]bool{}}
	names := func(n map[string]any) bool {
		name, plain := plainColumn(n)
		return x.calls(n) || plain && m.parameter(name) >= 0
	}
	if err := s.nameItems(ctx, m.body, names); err != nil {
		return err
	}

	m.body, _ = x.expand(m.body).(map[string]any)
	for i, p := range m.params {
		if p.byDefault != nil {
			m.params[i].byDefault, _ = x.expand(p.byDefault).(map[string]any)
		}
	}
	if x.err == nil {
		x.err = x.captured()
	}
	m.reads = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.reads, slices.Collect(maps.Keys(x.reads))))))
	return x.err
}

func defaults(m *Macro) (list []any) {
	for _, p := range m.params {
		list = append(list, p.byDefault)
	}
	return list
}

// nameItems gives the items of SELECT lists in which something of a kind is the names that they have now: written out
// they would have others.
func (s *Session) nameItems(ctx context.Context, tree any, is func(n map[string]any) bool) (err error) {
	each(tree, func(n map[string]any) {
		list, _ := n["select_list"].([]any)
		for _, entry := range list {
			item, _ := entry.(map[string]any)
			has, star := false, false
			each(item, func(n map[string]any) {
				has, star = has || is(n), star || text(n, "class") == "STAR"
			})
			if !has || star || text(item, "alias") != "" || err != nil {
				continue
			}

			var written string
			written, err = s.written(ctx, map[string]any{"node": map[string]any{"type": "SELECT_NODE",
				"cte_map": map[string]any{}, "select_list": []any{item}, "from_table": map[string]any{"type": "EMPTY"},
				"aggregate_handling": "STANDARD_HANDLING"}})
			item["alias"] = strings.TrimPrefix(written, "SELECT ")
		}
	})
	return err
}

// expansion writes macros out in one tree.
type expansion struct {
	all    Macros
	text   string // that the tree is of
	called bool
	size   int
	reads  map[string]string // relations that macros read, in lower case, with the macro
	ctes   map[string]bool   // that the tree defines
	err    error
}

// callee returns the macro that a node calls, in lower case; empty: none.
func (x *expansion) callee(n map[string]any) string {
	switch text(n, "type") {
	case "FUNCTION", "WINDOW_AGGREGATE":
		if name := sqltext.Lower(text(n, "function_name")); x.all[name] != nil {
			return name
		}
	}
	return ""
}

func (x *expansion) calls(n map[string]any) bool { return x.callee(n) != "" }

// captured refuses a WITH that defines what a macro reads: the macro means a relation outside.
func (x *expansion) captured() error {
	for _, name := range sortedKeys(x.reads) {
		if x.ctes[name] {
			return fault.New(fault.Invalid, "macro %q reads %q, and a WITH beside its call defines another %q",
				x.reads[name], name, name).WithHint("give that of the WITH another name")
		}
	}
	return nil
}

func (x *expansion) fail(n map[string]any, format string, args ...any) any {
	if x.err == nil {
		x.err = fault.New(fault.Invalid, "%s%s", fmt.Sprintf(format, args...), placeOf(x.text, n))
	}
	return n
}

// expand returns a tree without calls of macros.
func (x *expansion) expand(node any) any {
	if x.err != nil {
		return node
	}
	switch n := node.(type) {
	case []any:
		for i, child := range n {
			n[i] = x.expand(child)
		}
	case map[string]any:
		ctes, _ := n["cte_map"].(map[string]any)
		entries, _ := ctes["map"].([]any)
		for _, e := range entries {
			entry, _ := e.(map[string]any)
			x.ctes[sqltext.Lower(text(entry, "key"))] = true
		}

		if function, _ := n["function"].(map[string]any); text(n, "type") == "TABLE_FUNCTION" && x.calls(function) {
			return x.inFrom(n, function)
		}
		for _, key := range sortedKeys(n) {
			n[key] = x.expand(n[key])
		}
		if x.calls(n) && x.err == nil {
			return x.call(n, x.all[x.callee(n)])
		}
	}
	return node
}

// inFrom returns what stands in FROM in place of a call.
func (x *expansion) inFrom(n, function map[string]any) any {
	m := x.all[x.callee(function)]
	if !m.table {
		return x.fail(n, "macro %q is an expression and no table", m.Name)
	}
	function["children"] = x.expand(function["children"])
	body := x.body(function, m)
	delete(n, "function")
	n["type"], n["subquery"] = "SUBQUERY", map[string]any{"node": body}
	if text(n, "alias") == "" {
		n["alias"] = m.Name
	}
	return n
}

// call returns the expression in place of a call.
func (x *expansion) call(n map[string]any, m *Macro) any {
	order, _ := n["order_bys"].(map[string]any)
	switch {
	case m.table:
		return x.fail(n, "macro %q is a table: it stands in FROM", m.Name)
	case text(n, "type") != "FUNCTION" || n["distinct"] != nil || n["filter"] != nil || order["orders"] != nil:
		return x.fail(n, "macro %q takes no OVER, FILTER, DISTINCT or ORDER BY", m.Name)
	case text(n, "schema")+text(n, "catalog") != "":
		return x.fail(n, "macro %q is called by its name alone, as %s(...)", m.Name, m.Name)
	}

	body, _ := x.body(n, m).(map[string]any)
	if body == nil || x.err != nil {
		return n
	}
	if alias := text(n, "alias"); alias != "" {
		body["alias"] = alias
	}
	return body
}

// body returns a macro's body with the arguments of a call.
func (x *expansion) body(call map[string]any, m *Macro) any {
	x.called = true
	for _, name := range m.reads {
		x.reads[name] = m.Name
	}
	values := map[string]map[string]any{}
	children, _ := call["children"].([]any)
	for i, child := range children {
		arg, _ := child.(map[string]any)
		name := sqltext.Lower(text(arg, "alias"))
		switch {
		case name != "" && m.parameter(name) < 0:
			return x.fail(call, "macro %q has no parameter %q: it is %s", m.Name, name, m.signature())
		case name == "" && i >= len(m.params):
			return x.fail(call, "macro %q gets %d arguments: it is %s", m.Name, len(children), m.signature())
		case name == "":
			name = m.params[i].name
		}
		if values[name] != nil {
			return x.fail(call, "macro %q gets its parameter %q twice", m.Name, name)
		}
		values[name] = arg
	}

	for _, p := range m.params {
		if values[p.name] == nil {
			values[p.name] = p.byDefault
		}
		if values[p.name] == nil {
			return x.fail(call, "macro %q needs its parameter %q: it is %s", m.Name, p.name, m.signature())
		}
	}
	body := x.copied(m.body, values)
	if x.size > mostWritten {
		return x.fail(call, "the macros of the statement come to more than %d parts", mostWritten)
	}
	return body
}

func (m *Macro) signature() string {
	names := make([]string, len(m.params))
	for i, p := range m.params {
		names[i] = p.name
		if p.byDefault != nil {
			names[i] += " := ..."
		}
	}
	return m.Name + "(" + strings.Join(names, ", ") + ")"
}

// copied returns a copy of a tree, with values in place of columns of those names.
func (x *expansion) copied(node any, values map[string]map[string]any) any {
	if x.size++; x.size > mostWritten {
		return node
	}
	switch n := node.(type) {
	case []any:
		list := make([]any, len(n))
		for i, child := range n {
			list[i] = x.copied(child, values)
		}
		return list
	case map[string]any:
		if name, ok := plainColumn(n); ok && values[name] != nil {
			value, _ := x.copied(values[name], nil).(map[string]any)
			value = maps.Clone(value)
			delete(value, "alias")
			if alias := text(n, "alias"); alias != "" {
				value["alias"] = alias
			}
			return value
		}
		m := make(map[string]any, len(n))
		for key, child := range n {
			m[key] = x.copied(child, values)
		}
		return m
	}
	return node
}
