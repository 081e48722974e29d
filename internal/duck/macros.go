package duck

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Macro is a name for an expression, or for a SELECT in FROM, with parameters.
type Macro struct {
	Name string

	table  bool
	params []parameter
	body   map[string]any // an expression or the node of a SELECT; without calls of macros once it is written out
	reads  []string       // relations that the body names, in lower case
	text   string         // of its file
	at     int            // where in it the macro begins
	state  int            // of its body: as it was read, being written out, written out, or none of use
	fault  error          // what is wrong with it itself
}

// The states of a macro's body.
const (
	asRead = iota
	opened
	writtenOut
	unusable
)

// parameter is a parameter of a macro, in lower case.
type parameter struct {
	name      string
	byDefault map[string]any // nil: it must be given
}

// Macros has macros by their names in lower case.
type Macros map[string]*Macro

// mostMacros is how many macros a DAG may have.
const mostMacros = 1000

// ReadMacros reads files of CREATE MACRO statements, and returns the macros that can be used and what is wrong with
// each file. It creates nothing: macros are written out where they are called.
func (s *Session) ReadMacros(ctx context.Context, files []string) (Macros, [][]*fault.Error, error) {
	all, inFile, faults := Macros{}, map[string]int{}, make([][]*fault.Error, len(files))
	refuse := func(file int, err error) error {
		refused, ok := errors.AsType[*fault.Error](err)
		if ok {
			faults[file] = append(faults[file], refused)
			return nil
		}
		return err
	}

	for i, text := range files {
		definitions, err := definitionsIn(text)
		if err := refuse(i, err); err != nil {
			return nil, nil, err
		}
		for _, d := range definitions {
			m, err := s.readMacro(ctx, text, d)
			name := sqltext.Lower(d.name)
			switch {
			case err != nil:
			case all[name] != nil:
				err = fault.New(fault.Invalid, "there are two macros %q%s", d.name, placeAt(text, d.at))
			case len(all) == mostMacros:
				err = fault.New(fault.TooLarge, "there are more than %d macros", mostMacros)
			default:
				all[name], inFile[name] = m, i
			}
			if err := refuse(i, err); err != nil {
				return nil, nil, err
			}
		}
	}

	names := sortedKeys(all)
	for _, name := range names {
		if err := s.checkMacro(ctx, all[name], all); err != nil {
			all[name].state, all[name].fault = unusable, err
		}
	}
	for _, name := range names {
		s.writeOut(ctx, all[name], all)
	}
	for _, name := range names {
		m := all[name]
		if err := refuse(inFile[name], m.fault); err != nil {
			return nil, nil, err
		}
		if m.state == unusable {
			delete(all, name)
		}
	}
	return all, faults, nil
}

// readMacro parses the body and the parameters of a definition.
func (s *Session) readMacro(ctx context.Context, text string, d definition) (m *Macro, err error) {
	m = &Macro{Name: d.name, table: d.table, at: d.at, text: text}
	if m.body, err = s.bodyAt(ctx, text, d, d.body, d.table); err != nil {
		return nil, err
	}

	for _, p := range d.params {
		param := parameter{name: sqltext.Lower(p.name)}
		if m.parameter(param.name) >= 0 {
			return nil, fault.New(fault.Invalid, "macro %q has two parameters %q%s", m.Name, p.name,
				placeAt(text, p.at))
		}
		switch {
		case p.byDefault.to > 0:
			if param.byDefault, err = s.bodyAt(ctx, text, d, p.byDefault, false); err != nil {
				return nil, err
			}
		case len(m.params) > 0 && m.params[len(m.params)-1].byDefault != nil:
			return nil, fault.New(fault.Invalid, "parameter %q of macro %q needs a default, as the one before it has%s",
				p.name, m.Name, placeAt(text, p.at))
		}
		m.params = append(m.params, param)
	}
	return m, nil
}

// parameter returns the index of a parameter, -1 if there is none.
func (m *Macro) parameter(name string) int {
	return slices.IndexFunc(m.params, func(p parameter) bool { return p.name == name })
}

// bodyAt parses a part of a definition as an expression or as a SELECT. Positions are those in the file.
func (s *Session) bodyAt(ctx context.Context, file string, d definition, p part, table bool) (map[string]any, error) {
	query := []byte(file[:p.to])
	for i := range query[:p.from] {
		if query[i] != '\n' {
			query[i] = ' '
		}
	}
	if !table {
		copy(query[d.begin:], "SELECT") // where CREATE stood
	}
	tree, err := s.tree(ctx, string(query))
	if err != nil {
		return nil, err
	}

	node, _ := tree["node"].(map[string]any)
	if table {
		return node, nil
	}
	list, _ := node["select_list"].([]any)
	alone := text(node, "type") == "SELECT_NODE" && len(list) == 1
	for key := range node {
		alone = alone && slices.Contains([]string{"type", "cte_map", "select_list", "from_table", "aggregate_handling"},
			key)
	}
	if alone {
		item, _ := list[0].(map[string]any)
		from, _ := node["from_table"].(map[string]any)
		if text(from, "type") == "EMPTY" && text(item, "alias") == "" {
			return item, nil
		}
	}
	return nil, fault.New(fault.Invalid, "a macro is one expression%s", placeAt(file, p.from)).
		WithHint("write a SELECT in it in parentheses, and a macro for FROM with AS TABLE")
}

// checkMacro checks a macro as all statements of users are, and its name.
func (s *Session) checkMacro(ctx context.Context, m *Macro, all Macros) error {
	var functions int64
	err := s.Value(ctx, &functions, "SELECT count(*) FROM duckdb_functions() WHERE lower(function_name) = ?",
		sqltext.Lower(m.Name))
	if err != nil {
		return err
	}
	if functions > 0 {
		return fault.New(fault.Invalid, "macro %q has the name of a function of DuckDB%s", m.Name,
			placeAt(m.text, m.at)).WithHint("give it another name")
	}

	scan := relationScan{query: m.text, seen: map[string]string{}, places: map[string]string{}, macros: all}
	scan.walk(m.body, nil)
	for _, p := range m.params {
		scan.walk(p.byDefault, nil)
	}
	m.reads = slices.Sorted(maps.Keys(scan.seen))
	if scan.err != nil {
		return scan.err
	}
	return m.shadowed()
}

// shadowed refuses lambdas with a parameter that has the name of one of the macro's: nobody could tell which is meant.
func (m *Macro) shadowed() (err error) {
	each(m.body, func(n map[string]any) {
		if text(n, "type") != "LAMBDA" {
			return
		}
		each(n["lhs"], func(n map[string]any) {
			if name, ok := plainColumn(n); ok && m.parameter(name) >= 0 {
				err = fault.New(fault.Invalid, "a lambda of macro %q has the macro's parameter %q%s", m.Name, name,
					placeAt(m.text, m.at)).WithHint("give one of them another name")
			}
		})
	})
	return err
}

// each calls visit with every object of a tree.
func each(node any, visit func(n map[string]any)) {
	switch n := node.(type) {
	case map[string]any:
		visit(n)
		for _, key := range sortedKeys(n) {
			each(n[key], visit)
		}
	case []any:
		for _, child := range n {
			each(child, visit)
		}
	}
}

// plainColumn returns the name of a reference to a column, in lower case, if it is one without a table.
func plainColumn(n map[string]any) (string, bool) {
	list, _ := n["column_names"].([]any)
	if text(n, "class") != "COLUMN_REF" || len(list) != 1 {
		return "", false
	}
	name, _ := list[0].(string)
	return sqltext.Lower(name), true
}

// placeOf returns where a node stands in a text, for people.
func placeOf(text string, n map[string]any) string {
	position, _ := n["query_location"].(json.Number)
	return lineOf(text, position)
}
