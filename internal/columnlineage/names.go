package columnlineage

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/sqltext"
)

func itoa(n int) string { return strconv.Itoa(n) }

// withoutParentheses are the functions that look like columns. Columns of their names go before them.
var withoutParentheses = []string{"current_catalog", "current_database", "current_date", "current_role",
	"current_schema", "current_time", "current_timestamp", "current_user", "localtime", "localtimestamp",
	"session_user", "user"}

// resolve returns what a name means: [column], [source, column], and with fields of structs behind either. The
// statement was bound, so each name means something, and no name means two things.
func (in *scope) resolve(path []string) value {
	for s := in; s != nil; s = s.outer {
		if v, ok := s.here(path); ok {
			return v
		}
	}
	for s := in; s != nil; s = s.outer {
		if v, ok := s.madeUp(path); ok {
			return v
		}
	}

	switch {
	case len(path) > 2:
		return in.resolve(path[1:]) // a schema
	case len(path) == 1 && slices.Contains(withoutParentheses, path[0]), path[len(path)-1] == "rowid":
		return value{transform: Expression}
	}
	return value{unsure: fmt.Sprintf("what %q means was not found", strings.Join(path, ".")), transform: Expression}
}

// here looks in one FROM clause.
func (in *scope) here(path []string) (value, bool) {
	if len(path) > 1 {
		for _, s := range in.sources {
			if s.alias != path[0] {
				continue
			}
			if at := columnsNamed(s.columns, path[1]); len(at) > 0 {
				return s.columns[at[0]].field(path[2:]), true
			}
			if s.lost != "" {
				return value{unsure: s.lost, transform: Expression}, true
			}
		}
	}
	if v, ok := in.merged[path[0]]; ok {
		return v.field(path[1:]), true
	}

	var holding []value
	lost := ""
	for _, s := range in.sources {
		for _, at := range columnsNamed(s.columns, path[0]) {
			holding = append(holding, s.columns[at])
		}
		if s.lost != "" {
			lost = s.lost
		}
	}
	switch {
	case len(holding) == 1:
		return holding[0].field(path[1:]), true
	case len(holding) > 1:
		return value{unsure: fmt.Sprintf("%q may be several columns", path[0]), transform: Expression}, true
	case lost != "":
		return value{unsure: lost, transform: Expression}, true
	}
	return in.alias(path)
}

// alias looks among the items to the left, and takes the name of a source alone for its whole row.
func (in *scope) alias(path []string) (value, bool) {
	if path[0] == "alias" && len(path) > 1 {
		if at := columnsNamed(in.aliases, path[1]); len(at) > 0 {
			return in.aliases[at[0]].field(path[2:]), true
		}
	}
	if at := columnsNamed(in.aliases, path[0]); len(at) > 0 {
		return in.aliases[at[0]].field(path[1:]), true
	}

	for _, s := range in.sources {
		if len(path) == 1 && s.alias == path[0] {
			f := flow{transform: Expression}
			for _, c := range s.columns {
				f.add(c, Expression)
			}
			return f.value(), true
		}
	}
	return value{}, false
}

// madeUp looks for a name among those that DuckDB makes up for columns without an alias.
func (in *scope) madeUp(path []string) (value, bool) {
	var matching, nameless []value
	for _, s := range in.sources {
		name := path[0]
		if len(path) > 1 && s.alias == path[0] {
			name = path[1]
		}
		for _, c := range s.columns {
			switch {
			case c.name != "":
			case c.made != "" && sqltext.Lower(c.made) == strings.ReplaceAll(name, `"`, ""): // keywords are quoted
				matching = append(matching, c)
			default:
				nameless = append(nameless, c)
			}
		}
	}

	switch {
	case len(matching) > 0:
		return matching[0], true
	case len(nameless) == 1:
		return nameless[0], true
	case len(nameless) > 1:
		return value{unsure: fmt.Sprintf("%q may be one of several columns without an alias", strings.Join(path, ".")),
			transform: Expression}, true
	}
	return value{}, false
}

// field returns a field of a struct, at any depth.
func (v value) field(path []string) value {
	for _, name := range path {
		f := flow{}
		f.add(v, Expression)
		kind := ""
		for _, field := range fieldsOf(v.kind) {
			if sqltext.Lower(field.name) == name {
				kind = field.kind
			}
		}
		v = f.value()
		v.name, v.kind = name, kind
	}
	return v
}

// made returns the name that DuckDB makes up for an expression, or an empty text where that takes more than is known
// here.
func made(n map[string]any) string {
	switch text(n, "class") {
	case "COLUMN_REF":
		var path []string
		for _, part := range list(n, "column_names") {
			name, _ := part.(string)
			path = append(path, name)
		}

		if joined := strings.Join(path, "."); plainName(joined) {
			return joined
		}
	case "CONSTANT":
		if number, ok := object(n, "value")["value"].(fmt.Stringer); ok { // a json.Number
			return number.String()
		}
	case "CAST":
		if inner := made(object(n, "child")); inner != "" && text(object(n, "cast_type"), "id") == "INTEGER" {
			return "CAST(" + inner + " AS INTEGER)"
		}
	case "FUNCTION":
		return madeOfFunction(n)
	}
	return ""
}

func madeOfFunction(n map[string]any) string {
	name := text(n, "function_name")
	var arguments []string
	for _, child := range list(n, "children") {
		node, _ := child.(map[string]any)
		argument := made(node)
		if argument == "" || text(node, "alias") != "" {
			return ""
		}
		arguments = append(arguments, argument)
	}

	_, filtered := n["filter"]
	operator, _ := n["is_operator"].(bool)
	distinct, _ := n["distinct"].(bool)
	ordered := len(list(object(n, "order_bys"), "orders")) > 0
	switch {
	case filtered, distinct, ordered:
		return ""
	case operator && len(arguments) == 2:
		return "(" + arguments[0] + " " + name + " " + arguments[1] + ")"
	case operator, !plainName(name):
		return ""
	}
	return name + "(" + strings.Join(arguments, ", ") + ")"
}

// plainName reports whether DuckDB writes a name without quotation marks, except where it is a keyword.
func plainName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_.") == ""
}
