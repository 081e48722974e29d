package columnlineage

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// item is what one item of a SELECT list becomes.
type item struct {
	relation

	elastic bool // one column stands for a struct's fields, of which nobody knows how many there are
}

func one(v value) item { return item{relation: relation{columns: []value{v}}} }

func lostItem(format string, args ...any) item { return item{relation: lostFor(format, args...)} }

// item follows one item of a SELECT list, which may become several columns.
func (w *walker) item(n map[string]any, in *scope, ctes with) item {
	if text(n, "class") == "STAR" && n["columns"] != true {
		return w.plainStar(n, in, ctes)
	}
	if filtered, ok := w.filteredStar(n, in, ctes); ok {
		return filtered
	}
	if text(n, "class") == "FUNCTION" && sqltext.Lower(text(n, "function_name")) == "unnest" {
		return w.unnested(n, in, ctes)
	}
	if columns := starsIn(n); len(columns) > 0 {
		return w.perColumn(n, columns, in, ctes)
	}

	v := w.value(n, in, ctes)
	v.name = ownName(n)
	if v.name == "" {
		v.made = made(n)
	}
	return one(v)
}

// ownName is the name of an item that DuckDB need not make up.
func ownName(n map[string]any) string {
	alias, class := text(n, "alias"), text(n, "class")
	if path := list(n, "column_names"); alias == "" && class == "COLUMN_REF" && len(path) > 0 {
		alias, _ = path[len(path)-1].(string)
	}
	return alias
}

// plainStar is * or source.*, or the fields of a struct: column.*.
func (w *walker) plainStar(n map[string]any, in *scope, ctes with) item {
	r := in.star
	if name := sqltext.Lower(text(n, "relation_name")); name != "" {
		found := slices.IndexFunc(in.sources, func(s source) bool { return s.alias == name })
		if found < 0 {
			return spread(in.resolve([]string{name}))
		}
		r = in.sources[found].relation
	}
	return item{relation: w.changed(r, n, in, ctes)}
}

// spread makes a struct's fields columns.
func spread(of value) item {
	fields := fieldsOf(of.kind)
	if len(fields) == 0 {
		return item{relation: relation{columns: []value{of}}, elastic: true}
	}
	var r relation
	for _, f := range fields {
		v := of.field([]string{sqltext.Lower(f.name)})
		v.name, v.kind = f.name, f.kind
		r.columns = append(r.columns, v)
	}
	return item{relation: r}
}

// changed returns a star's columns after EXCLUDE, REPLACE and RENAME.
func (w *walker) changed(r relation, star map[string]any, in *scope, ctes with) relation {
	if r.lost != "" {
		return r
	}
	for key := range star {
		if !slices.Contains([]string{"class", "type", "alias", "relation_name", "exclude_list",
			"qualified_exclude_list", "replace_list", "rename_list", "columns", "expr"}, key) {
			return lostFor("%s of a star is not followed", key)
		}
	}

	excluded := map[string]bool{}
	for _, e := range list(star, "exclude_list") {
		name, _ := e.(string)
		excluded[sqltext.Lower(name)] = true
	}
	for _, e := range list(star, "qualified_exclude_list") {
		name, _ := e.(map[string]any)
		column := sqltext.Lower(text(name, "column"))
		if len(columnsNamed(r.columns, column)) > 1 {
			return lostFor("EXCLUDE of one of several columns %s is not followed", column)
		}
		excluded[column] = true
	}
	replaced, renamed := map[string]any{}, map[string]string{}
	for _, e := range list(star, "replace_list") {
		entry, _ := e.(map[string]any)
		replaced[sqltext.Lower(text(entry, "key"))] = entry["value"]
	}
	for _, e := range list(star, "rename_list") {
		entry, _ := e.(map[string]any)
		renamed[sqltext.Lower(text(object(entry, "key"), "column"))] = text(entry, "value")
	}

	var out relation
	for _, c := range r.columns {
		name := sqltext.Lower(c.called())
		if excluded[name] {
			continue
		}
		if expression, ok := replaced[name]; ok {
			v := w.value(expression, in, ctes)
			v.name, v.made = c.name, c.made
			c = v
		}
		if to := renamed[name]; to != "" {
			c.name = to
		}
		out.columns = append(out.columns, c)
	}
	w.step(len(out.columns))
	return out
}

// filteredStar is * LIKE 'pattern' and its kin.
func (w *walker) filteredStar(n map[string]any, in *scope, ctes with) (item, bool) {
	children := list(n, "children")
	if text(n, "class") != "FUNCTION" || len(children) != 2 {
		return item{}, false
	}
	star, _ := children[0].(map[string]any)
	if text(star, "class") != "STAR" || star["columns"] == true {
		return item{}, false
	}

	found := w.plainStar(star, in, ctes)
	if found.lost != "" || found.elastic {
		return found, true
	}
	var kept []value
	for _, c := range found.columns {
		keep, ok := holds(n, c.called(), func(node map[string]any) bool { return text(node, "class") == "STAR" })
		if !ok || c.called() == "" {
			return lostItem("the condition on the names of a star's columns is not followed"), true
		}
		if keep {
			kept = append(kept, c)
		}
	}
	return item{relation: relation{columns: kept}}, true
}

// unnested is unnest(…) in a SELECT list: of a list one column, of a struct one for each field.
func (w *walker) unnested(n map[string]any, in *scope, ctes with) item {
	v := w.value(n, in, ctes)
	v.name, v.made = text(n, "alias"), made(n)
	children := list(n, "children")
	if len(children) == 0 {
		return one(v)
	}

	argument, _ := children[0].(map[string]any)
	of := w.value(argument, in, ctes)
	element, isList := elementOf(of.kind)
	deep := len(children) > 1
	switch {
	case strings.HasPrefix(of.kind, "STRUCT(") && !deep:
		return spread(of)
	case isList && (!deep || !strings.Contains(element, "STRUCT(")):
		v.kind = element
		if deep {
			v.kind = ""
		}
		return one(v)
	case of.kind == "" && !deep && makesLists(argument):
		return one(v)
	}
	return item{relation: relation{columns: []value{v}}, elastic: true}
}

// makesLists reports whether an expression is a list for certain.
func makesLists(n map[string]any) bool {
	name := sqltext.Lower(text(n, "function_name"))
	return text(n, "class") == "FUNCTION" && slices.Contains([]string{"list_value", "list_transform", "list_filter",
		"list_apply", "list_sort", "list_distinct", "list_concat", "string_split", "split", "str_split",
		"string_to_array", "regexp_split_to_array", "string_split_regex", "range", "generate_series", "array_agg",
		"list", "map_keys", "map_values", "regexp_extract_all"}, name)
}

// starsIn returns the COLUMNS(…) of an expression that make it several columns: not those of subqueries, and not those
// that are unpacked into arguments.
func starsIn(node any) (found []map[string]any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			found = append(found, starsIn(child)...)
		}
	case map[string]any:
		switch {
		case text(n, "class") == "SUBQUERY", text(n, "type") == "OPERATOR_UNPACK":
			return nil
		case text(n, "class") == "STAR" && n["columns"] == true:
			return []map[string]any{n}
		}
		for _, child := range n {
			found = append(found, starsIn(child)...)
		}
	}
	return found
}

// perColumn follows an expression once for each column that its COLUMNS(…) stand for.
func (w *walker) perColumn(n map[string]any, stars []map[string]any, in *scope, ctes with) item {
	r := w.columns(stars[0], in, ctes)
	if r.lost != "" {
		return item{relation: r}
	}

	out := item{}
	for turn, c := range r.columns {
		e := evaluation{walker: w, in: in, ctes: ctes, turn: turn}
		e.walk(n, Identity)
		v := e.flow.value()
		alias := text(n, "alias")
		switch {
		case alias != "":
			v.name = w.template(alias, stars[0], c.called())
		case text(n, "class") == "STAR":
			v.name, v.made, v.kind = c.name, c.made, c.kind
		}
		out.columns = append(out.columns, v)
	}
	return out
}

// template fills \0, \1 … in the alias of COLUMNS('a regular expression') with its groups.
func (w *walker) template(alias string, star map[string]any, column string) string {
	if !strings.Contains(alias, `\`) {
		return alias
	}
	pattern, err := regexp.Compile(constant(object(star, "expr")))
	if err != nil {
		return ""
	}
	groups := pattern.FindStringSubmatch(column)
	for i := range groups {
		alias = strings.ReplaceAll(alias, `\`+strconv.Itoa(i), groups[i])
	}
	return alias
}

// columns returns what COLUMNS(…) stands for.
func (w *walker) columns(star map[string]any, in *scope, ctes with) relation {
	bare := map[string]any{}
	for key, part := range star {
		if key != "expr" {
			bare[key] = part
		}
	}
	all := w.plainStar(bare, in, ctes)
	if all.lost != "" || all.elastic {
		return lostFor("the columns of COLUMNS(…) are not known")
	}
	choice := object(star, "expr")
	if choice == nil {
		return all.relation
	}

	switch text(choice, "class") {
	case "CONSTANT":
		return matching(all.relation, constant(choice))
	case "FUNCTION":
		switch text(choice, "function_name") {
		case "list_value":
			return chosen(all.relation, list(choice, "children"))
		case "list_filter":
			return filtered(all.relation, list(choice, "children"))
		}
	}
	return lostFor("this choice of columns in COLUMNS(…) is not followed")
}

// matching keeps the columns whose names match a regular expression somewhere.
func matching(r relation, expression string) relation {
	pattern, err := regexp.Compile(expression)
	if err != nil {
		return lostFor("the regular expression of COLUMNS(…) is not followed")
	}
	var out relation
	for _, c := range r.columns {
		if c.called() == "" {
			return lostFor("COLUMNS(…) over a column without an alias is not followed")
		}
		if pattern.MatchString(c.called()) {
			out.columns = append(out.columns, c)
		}
	}
	return out
}

// chosen keeps the columns of a list, in the order that they have without it.
func chosen(r relation, names []any) (out relation) {
	wanted := map[string]bool{}
	for _, entry := range names {
		n, _ := entry.(map[string]any)
		name := constant(n)
		if path := list(n, "column_names"); len(path) == 1 {
			name, _ = path[0].(string)
		}
		if len(columnsNamed(r.columns, sqltext.Lower(name))) != 1 {
			return lostFor("the column %q of COLUMNS(…) was not found", name)
		}
		wanted[sqltext.Lower(name)] = true
	}

	for _, c := range r.columns {
		if wanted[sqltext.Lower(c.name)] {
			out.columns = append(out.columns, c)
		}
	}
	return out
}

// filtered keeps the columns for whose names a lambda holds.
func filtered(r relation, arguments []any) (out relation) {
	if len(arguments) != 2 {
		return lostFor("this choice of columns in COLUMNS(…) is not followed")
	}
	lambda, _ := arguments[1].(map[string]any)
	parameters := parametersOf(object(lambda, "lhs"))
	isName := func(n map[string]any) bool {
		return text(n, "class") == "COLUMN_REF" && slices.Equal(names(n, "column_names"), parameters)
	}

	for _, c := range r.columns {
		keep, ok := holds(object(lambda, "expr"), c.called(), isName)
		if !ok || c.called() == "" {
			return lostFor("the lambda of COLUMNS(…) is not followed")
		}
		if keep {
			out.columns = append(out.columns, c)
		}
	}
	return out
}

func constant(n map[string]any) string {
	if text(n, "class") != "CONSTANT" {
		return ""
	}
	return text(object(n, "value"), "value")
}

// star follows a star inside an expression: COLUMNS(…) in its turn, or all columns as arguments.
func (e *evaluation) star(n map[string]any, transform string) {
	if n["columns"] != true {
		e.addAll(e.plainStar(n, e.in, e.ctes), transform)
		return
	}
	r := e.columns(n, e.in, e.ctes)
	switch {
	case r.lost != "":
		e.lose("%s", r.lost)
	case e.turn < 0:
		e.addAll(item{relation: r}, transform)
	case e.turn >= len(r.columns):
		e.lose("the COLUMNS(…) of one expression are not alike")
	default:
		e.add(r.columns[e.turn], transform)
	}
}

func (e *evaluation) addAll(all item, transform string) {
	if all.lost != "" {
		e.lose("%s", all.lost)
	}
	for _, c := range all.columns {
		e.add(c, transform)
	}
}
