package duck

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// A keyed relation has one column more, of which no star knows: relations.Partition, the key of the partition of each
// row. DuckDB has no such columns in views, so the stars of the statements that read the view exclude it.

// withKeys returns a SELECT of a relation's files, or of no rows, with the column of their keys; from is that without.
// One that has a column of that name keeps its own.
func (s *Session) withKeys(ctx context.Context, r Relation, from string) (string, error) {
	columns := r.Schema
	if len(r.Files) > 0 {
		have, err := s.Describe(ctx, from)
		if err != nil {
			return "", fmt.Errorf("read input %q: %w", r.Name, err)
		}
		columns = append(have, r.Schema...)
	}
	if Known(columns, relations.Partition) {
		return from, nil
	}

	s.keyed = append(s.keyed, r.Name)
	name := sqltext.Quote(relations.Partition)
	if len(r.Files) == 0 {
		return Empty(append(slices.Clone(r.Schema), Column{Name: relations.Partition, Type: "VARCHAR"})), nil
	}
	keys := sqltext.Literals(r.Keys)
	if !Known(columns, "file_index") { // DuckDB's own number of a file: no work for a row
		return fmt.Sprintf("SELECT *, %s[file_index::BIGINT + 1] AS %s FROM %s", keys, name, readFiles(r)), nil
	}
	const file = `"dagctl file"`
	return fmt.Sprintf("SELECT * EXCLUDE (%s), %s[list_position(%s, %[1]s)] AS %[4]s FROM read_parquet(%[3]s, "+
		"union_by_name = %[5]t, hive_partitioning = false, filename = %[6]s)", file, keys, sqltext.Literals(r.Files),
		name, len(r.Files) > 1 && !r.Alike, sqltext.Literal("dagctl file")), nil
}

// isKeyed reports whether a relation has the column that no star knows.
func (s *Session) isKeyed(relation string) bool {
	return slices.ContainsFunc(s.keyed, func(name string) bool { return sqltext.Same(name, relation) })
}

// Shown returns the columns of a relation that a star knows.
func (s *Session) Shown(relation string, columns []Column) []Column {
	if !s.isKeyed(relation) {
		return columns
	}
	return slices.DeleteFunc(columns, func(c Column) bool { return sqltext.Same(c.Name, relations.Partition) })
}

// Starless returns the text of a statement whose stars leave out the column of relations that are keyed.
func (s *Session) Starless(ctx context.Context, q *Select, keyed func(relation string) bool) (string, error) {
	if !slices.ContainsFunc(q.Relations, keyed) {
		return q.SQL, nil
	}
	tree, err := s.tree(ctx, q.SQL)
	if err != nil {
		return "", err
	}

	h := keyHider{keyed: keyed}
	h.walk(tree, nil)
	refused := fault.New(fault.Invalid, "beside %s, a * or COLUMNS(…) of the statement would show it too",
		relations.Partition).WithHint("name the columns in its place")
	switch {
	case h.refused:
		return "", refused
	case !h.changed:
		return q.SQL, nil
	}

	written, err := s.plain(ctx, tree)
	if fault.Is(err, fault.Invalid) {
		return "", refused
	}
	return written, err
}

// keyHider changes a parsed statement so that no star shows the column of keyed relations.
type keyHider struct {
	keyed   func(relation string) bool
	changed bool
	refused bool // it has a COLUMNS that would show it
}

func (h *keyHider) walk(node any, ctes []string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			h.walk(child, ctes)
		}
	case map[string]any:
		ctes = withNames(n, ctes, h.walk)
		if text(n, "type") == "SELECT_NODE" {
			h.selects(n, ctes)
		}
		for _, key := range sortedKeys(n) {
			if key != "cte_map" {
				h.walk(n[key], ctes)
			}
		}
	}
}

// selects hides the column from the stars of one SELECT.
func (h *keyHider) selects(n map[string]any, ctes []string) {
	n["from_table"] = h.whole(n["from_table"], false, ctes)
	sources := h.sources(n["from_table"], ctes)
	for _, key := range sortedKeys(n) {
		switch key {
		case "from_table", "cte_map":
		case "modifiers":
			list, _ := n[key].([]any)
			h.stars(slices.DeleteFunc(slices.Clone(list), ordersByAll), sources)
		default:
			h.stars(n[key], sources)
		}
	}
}

// reads reports whether a node of a FROM is a keyed relation.
func (h *keyHider) reads(n map[string]any, ctes []string) bool {
	name := text(n, "table_name")
	return text(n, "type") == "BASE_TABLE" && !slices.Contains(ctes, sqltext.Lower(name)) && h.keyed(name)
}

// whole puts a subquery in place of each keyed relation whose columns count without a star: those of NATURAL joins and
// of PIVOT.
func (h *keyHider) whole(node any, all bool, ctes []string) any {
	n, ok := node.(map[string]any)
	if !ok {
		return node
	}

	switch text(n, "type") {
	case "BASE_TABLE":
		if all && h.reads(n, ctes) {
			return h.subquery(n)
		}
	case "JOIN":
		all = all || text(n, "ref_type") == "NATURAL"
		n["left"], n["right"] = h.whole(n["left"], all, ctes), h.whole(n["right"], all, ctes)
	case "PIVOT":
		n["source"] = h.whole(n["source"], true, ctes)
	}
	return n
}

// subquery is SELECT * FROM relation, under the name of the relation.
func (h *keyHider) subquery(table map[string]any) map[string]any {
	h.changed = true
	star := map[string]any{"class": "STAR", "type": "STAR", "exclude_list": []any{}}
	node := map[string]any{"type": "SELECT_NODE", "select_list": []any{star}, "from_table": table,
		"cte_map": map[string]any{}, "aggregate_handling": "STANDARD_HANDLING"}
	return map[string]any{"type": "SUBQUERY", "alias": sourceName(table), "subquery": map[string]any{"node": node}}
}

// sources returns the names in a FROM that stand for keyed relations.
func (h *keyHider) sources(node any, ctes []string) []string {
	n, _ := node.(map[string]any)
	switch {
	case h.reads(n, ctes):
		return []string{sourceName(n)}
	case text(n, "type") == "JOIN" && slices.Contains([]string{"SEMI", "ANTI"}, text(n, "join_type")):
		return h.sources(n["left"], ctes)
	case text(n, "type") == "JOIN":
		return append(h.sources(n["left"], ctes), h.sources(n["right"], ctes)...)
	}
	return nil
}

func sourceName(n map[string]any) string {
	if alias := text(n, "alias"); alias != "" {
		return alias
	}
	return text(n, "table_name")
}

// stars has the stars of a part of a SELECT, without its subqueries, exclude the column of keyed sources.
func (h *keyHider) stars(node any, sources []string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			h.stars(child, sources)
		}

	case map[string]any:
		switch text(n, "class") {
		case "SUBQUERY":
			return
		case "STAR":
			if expr, _ := n["expr"].(map[string]any); expr != nil { // COLUMNS of a pattern, or chosen from a *
				h.refused = h.refused || len(sources) > 0 && matchesPartition(expr)
				break
			}
			for _, source := range sources {
				of := text(n, "relation_name")
				if (of == "" || sqltext.Same(of, source)) && !excludes(n) {
					exclude(n, source)
					h.changed = true
				}
			}
		}
		for _, key := range sortedKeys(n) {
			h.stars(n[key], sources)
		}
	}
}

// ordersByAll reports whether a modifier of a SELECT is ORDER BY ALL, whose star stands for what is selected.
func ordersByAll(modifier any) bool {
	n, _ := modifier.(map[string]any)
	orders, _ := n["orders"].([]any)
	if text(n, "type") != "ORDER_MODIFIER" || len(orders) != 1 {
		return false
	}
	only, _ := orders[0].(map[string]any)
	star, _ := only["expression"].(map[string]any)
	excluded, _ := star["exclude_list"].([]any)
	return text(star, "class") == "STAR" && text(star, "relation_name") == "" && star["expr"] == nil &&
		star["replace_list"] == nil && len(excluded) == 0
}

// matchesPartition reports whether the pattern of COLUMNS('…') matches the column.
func matchesPartition(expr map[string]any) bool {
	value, _ := expr["value"].(map[string]any)
	pattern, ok := value["value"].(string)
	if !ok {
		return false
	}
	matched, err := regexp.MatchString(pattern, relations.Partition)
	return matched || err != nil
}

// excludes reports whether a star leaves the column out already, of whatever has it.
func excludes(star map[string]any) bool {
	list, _ := star["exclude_list"].([]any)
	return slices.ContainsFunc(list, func(e any) bool {
		name, _ := e.(string)
		return sqltext.Same(name, relations.Partition)
	})
}

func exclude(star map[string]any, source string) {
	list, _ := star["qualified_exclude_list"].([]any)
	star["qualified_exclude_list"] = append(list, map[string]any{"table": source, "column": relations.Partition})
}
