package duck

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Select is one parsed SELECT statement that reads only named relations.
type Select struct {
	SQL string
	// Canonical is the parsed form, which does not depend on layout, comments and keyword case. It depends on DuckDB's
	// parser: fields with their default value are left out, so that new ones in a later version change nothing.
	Canonical json.RawMessage
	// Relations are the names it reads that it does not define itself, sorted, in the case they were first written.
	Relations []string

	tree   map[string]any
	places map[string]string // of relations, by lower-case name
}

// tableFunctions lists those that read no file, no catalogue and no other database, and run no text as SQL.
var tableFunctions = []string{"range", "generate_series", "unnest", "json_each", "json_tree"}

// refusedFunctions lists the scalar functions that reveal the server (DuckDB's settings have its paths), run text as
// SQL, or write. No statement of a user may call them: in a job, a check, a query or anywhere else.
var refusedFunctions = []string{"current_setting", "json_serialize_plan", "write_log", "getenv"}

// Parse parses a statement without running it. It returns a fault.Invalid for everything that is not exactly one
// SELECT, for every relation that is not a plain name (files, other schemas and catalogues, table functions that read
// them), and for refused functions.
func (s *Session) Parse(ctx context.Context, query string) (*Select, error) {
	tree, err := s.tree(ctx, query)
	if err != nil {
		return nil, err
	}
	relations := relationScan{query: query, seen: map[string]string{}, places: map[string]string{}}
	relations.walk(tree, nil)
	if relations.err != nil {
		return nil, relations.err
	}
	canonical, err := canonicalOf(tree)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Values(relations.seen))
	return &Select{SQL: query, Canonical: canonical, Relations: names, tree: tree, places: relations.places}, nil
}

// canonicalOf returns the canonical form of a parsed statement, which it changes.
func canonicalOf(tree map[string]any) (json.RawMessage, error) {
	strip(tree)
	prune(tree)
	canonical, err := json.Marshal(tree) // map keys are sorted
	if err != nil {
		return nil, fmt.Errorf("parse SQL: %w", err)
	}
	return canonical, nil
}

// tree returns a statement as DuckDB parses it: exactly one SELECT, or a fault.Invalid.
func (s *Session) tree(ctx context.Context, query string) (map[string]any, error) {
	var text string
	err := s.Value(ctx, &text, "SELECT json_serialize_sql(?::VARCHAR, skip_default := true, skip_null := true)"+
		"::VARCHAR", query)
	if err != nil {
		return nil, fmt.Errorf("parse SQL: %w", err)
	}
	var parsed struct {
		Error      bool
		Message    string `json:"error_message"`
		Type       string `json:"error_type"`
		Position   json.Number
		Statements []map[string]any
	}

	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // a literal may be larger than a float64 holds
	if err := decoder.Decode(&parsed); err != nil {
		return nil, unreadable(text, err)
	}
	switch {
	case parsed.Error && parsed.Type == "not implemented":
		return nil, fault.New(fault.Invalid, "%s", refusal(parsed.Message))
	case parsed.Error:
		message, deep, _ := strings.Cut(parsed.Message, tooDeep)
		err := fault.New(fault.Invalid, "%s%s", message, lineOf(query, parsed.Position))
		if deep != "" {
			return nil, err.WithHint("split it into subqueries, or put what repeats into rows of a table")
		}
		if word := keywordAsName(query, parsed.Position); word != "" {
			return nil, err.WithHint("%s is a keyword of SQL: where it is a name, write %s", word, sqltext.Quote(word))
		}
		return nil, err
	case len(parsed.Statements) != 1:
		return nil, fault.New(fault.Invalid, "there are %d statements; there must be exactly one SELECT",
			len(parsed.Statements))
	}

	return parsed.Statements[0], nil
}

// Place returns where a relation is first named, such as " (line 1, column 15)", or an empty text if that is unknown.
func (q *Select) Place(relation string) string { return q.places[sqltext.Lower(relation)] }

// Check returns an error for relations that are not known. It ignores case in names, like DuckDB.
func (q *Select) Check(known []string) error {
	for _, name := range q.Relations {
		if !slices.ContainsFunc(known, func(k string) bool { return sqltext.Same(k, name) }) {
			return fault.New(fault.Invalid, "there is no relation %q", name).
				WithHint("the inputs are %s", strings.Join(known, ", "))
		}
	}
	return nil
}

// tooDeep begins DuckDB's advice to those whose expressions are too deep: a setting, which nobody may change.
const tooDeep = ` Use "SET max_expression_depth`

// bareInfinity is what DuckDB writes, as no other JSON does, for a literal beyond DOUBLE.
var bareInfinity = late.Pattern(`"value":-?Infinity[,}]`)

// unreadable returns why DuckDB's JSON of a statement cannot be read, which the statement is to blame for.
func unreadable(text string, err error) error {
	if bareInfinity.MatchString(text) {
		return fault.New(fault.Invalid, "a number in it is larger than a DOUBLE holds").
			WithHint("write 'Infinity'::DOUBLE if that is meant")
	}
	return fault.New(fault.Invalid, "it is nested too deeply: %w", err)
}

func refusal(message string) string {
	if strings.HasPrefix(message, "Only SELECT") {
		return "only a SELECT is allowed here (PIVOT: write SELECT * FROM (PIVOT ... ON x IN (...) USING ...))"
	}
	return message
}

// lineOf turns DuckDB's byte offset into a place for people.
func lineOf(query string, position json.Number) string {
	offset, err := position.Int64()
	if err != nil || offset < 0 || offset > int64(len(query)) {
		return ""
	}
	before := query[:offset]
	return fmt.Sprintf(" (line %d, column %d)", strings.Count(before, "\n")+1,
		offset-int64(strings.LastIndexByte(before, '\n')))
}

// What stands before the name of a relation, and what may be one.
var (
	beforeName = late.Pattern(`(?i)(?:\b(?:FROM|JOIN)|,)(?:\s|/\*[^*]*\*/|--[^\n]*\n)*$`)
	bareName   = late.Pattern(`^[a-zA-Z_]+\b`)
	lastName   = late.Pattern(`[a-zA-Z_]+$`)
)

// keywordAsName returns the keyword for which DuckDB finds a syntax error where only a relation's name makes sense,
// behind FROM, JOIN and a comma, or before a point; empty: there is none at the byte offset.
func keywordAsName(query string, position json.Number) string {
	offset, err := position.Int64()
	if err != nil || offset < 0 || offset > int64(len(query)) {
		return ""
	}
	before, after := query[:offset], query[offset:]

	word := bareName.FindString(after)
	switch {
	case strings.HasPrefix(after, "."):
		word = lastName.FindString(before)
	case strings.HasPrefix(after[len(word):], "."), beforeName.MatchString(before):
	default:
		return ""
	}
	if !sqltext.Keyword(word) {
		return ""
	}
	return word
}

// strip removes the positions, in place.
func strip(node any) {
	switch n := node.(type) {
	case map[string]any:
		delete(n, "query_location")
		for _, child := range n {
			strip(child)
		}
	case []any:
		for _, child := range n {
			strip(child)
		}
	}
}

// prune removes empty lists and objects from objects, in place. An empty set of groups stays: GROUPING SETS ((x), ())
// makes a row more than GROUP BY x.
func prune(node any) {
	switch n := node.(type) {
	case map[string]any:
		for key, child := range n {
			prune(child)
			switch c := child.(type) {
			case map[string]any:
				if len(c) == 0 {
					delete(n, key)
				}
			case []any:
				if len(c) == 0 {
					delete(n, key)
				}
			}
		}

	case []any:
		for _, child := range n {
			prune(child)
		}
	}
}

// relationScan collects the relations of a statement. It follows the scopes of WITH exactly: a name that some other
// WITH defines elsewhere is not thereby allowed here.
type relationScan struct {
	query  string
	seen   map[string]string // lower case → as first written
	places map[string]string // lower case → where first written
	macros Macros            // which may stand for tables
	err    error
}

func (r *relationScan) walk(node any, ctes []string) {
	if r.err != nil {
		return
	}
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			r.walk(child, ctes)
		}
	case map[string]any:
		ctes = r.with(n, ctes)
		switch text(n, "type") {
		case "BASE_TABLE":
			r.table(n, ctes)
		case "TABLE_FUNCTION":
			function, _ := n["function"].(map[string]any)
			name := sqltext.Lower(text(function, "function_name"))
			if !slices.Contains(tableFunctions, name) && r.macros[name] == nil {
				r.err = fault.New(fault.Invalid, "the table function %s is not allowed", name).
					WithHint("read a job's inputs by name; allowed are %s", strings.Join(tableFunctions, ", "))
			}
		case "FUNCTION":
			if name := sqltext.Lower(text(n, "function_name")); slices.Contains(refusedFunctions, name) {
				position, _ := n["query_location"].(json.Number)
				r.err = fault.New(fault.Invalid, "the function %s is not allowed%s", name, lineOf(r.query, position)).
					WithHint("it shows or changes the server that runs the statement, and not its data")
			}
		case "SHOW_REF":
			r.err = fault.New(fault.Invalid, "DESCRIBE, SHOW and SUMMARIZE are not allowed").
				WithHint("a query may begin with DESCRIBE or SUMMARIZE; `dagctl datasets list` shows the datasets, " +
					"and `dagctl datasets get NAME` the columns")
		case "PARAMETER", "VALUE_PARAMETER":
			r.err = fault.New(fault.Invalid, "parameters ($name, ?) are not allowed").
				WithHint("use getvariable('partition'), getvariable('start') and getvariable('end')")
		}

		for _, key := range sortedKeys(n) {
			if key != "cte_map" {
				r.walk(n[key], ctes)
			}
		}
	}
}

// with walks the WITH clause of a node and returns the names visible in the rest of it. Each sees those before it,
// and itself where it is recursive.
func (r *relationScan) with(node map[string]any, ctes []string) []string {
	return withNames(node, ctes, r.walk)
}

// withNames walks the WITH clause of a node, as relationScan.with does.
func withNames(node map[string]any, ctes []string, walk func(node any, ctes []string)) []string {
	cteMap, _ := node["cte_map"].(map[string]any)
	entries, _ := cteMap["map"].([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		name := sqltext.Lower(text(entry, "key"))
		value, _ := entry["value"].(map[string]any)
		inner := ctes
		if query, _ := value["query"].(map[string]any); query != nil {
			if body, _ := query["node"].(map[string]any); text(body, "type") == "RECURSIVE_CTE_NODE" {
				inner = append(slices.Clip(ctes), name)
			}
		}

		walk(value, inner)
		ctes = append(slices.Clip(ctes), name)
	}
	return ctes
}

func (r *relationScan) table(n map[string]any, ctes []string) {
	name := text(n, "table_name")
	if qualifier := text(n, "catalog_name") + text(n, "schema_name"); qualifier != "" {
		r.err = fault.New(fault.Invalid, "%s.%s is not allowed: relations are plain names", qualifier, name)
		return
	}
	position, _ := n["query_location"].(json.Number)
	if n["at_clause"] != nil {
		r.err = fault.New(fault.Invalid, "%s AT (…) is not allowed%s: a statement reads its relations as they are at "+
			"one moment", name, lineOf(r.query, position)).
			WithHint("leave it out; `dagctl query --at TIME` reads what was served then")
		return
	}

	if slices.Contains(ctes, sqltext.Lower(name)) {
		return
	}
	if _, ok := r.seen[sqltext.Lower(name)]; !ok {
		r.seen[sqltext.Lower(name)] = name
		r.places[sqltext.Lower(name)] = lineOf(r.query, position)
	}
}

func text(n map[string]any, key string) string {
	s, _ := n[key].(string)
	return s
}
