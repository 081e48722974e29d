package duck

import (
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Partitions returns the condition that the partitions of a relation must meet for the statement to read their rows;
// nil: it may read all. It heeds what WHERE demands of relations.Partition beside a FROM that has the relation itself,
// and the statement still tests each row. The relation must be keyed, and have no column of that name of its own.
func (q *Select) Partitions(relation string) *relations.Keys {
	f := keyFinder{relation: relation}
	f.walk(q.tree, nil)
	if f.all || len(f.read) == 0 {
		return nil
	}
	return &relations.Keys{Op: relations.Any, Of: f.read}
}

// keyFinder finds which keys each mention of a relation reads.
type keyFinder struct {
	relation string
	read     []relations.Keys
	all      bool // some mention reads all
}

func (f *keyFinder) walk(node any, ctes []string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			f.walk(child, ctes)
		}

	case map[string]any:
		ctes = withNames(n, ctes, f.walk)
		switch text(n, "type") {
		case "BASE_TABLE":
			f.mention(n, nil, ctes)
		case "SELECT_NODE":
			f.selects(n, ctes)
			return
		}
		for _, key := range sortedKeys(n) {
			if key != "cte_map" {
				f.walk(n[key], ctes)
			}
		}
	}
}

// selects looks at one SELECT, whose WHERE is about the relations of its FROM. A sample is taken before WHERE.
func (f *keyFinder) selects(n map[string]any, ctes []string) {
	for _, key := range sortedKeys(n) {
		if key != "cte_map" && key != "from_table" {
			f.walk(n[key], ctes)
		}
	}
	where := n["where_clause"]
	if n["sample"] != nil {
		where = nil
	}
	from, _ := n["from_table"].(map[string]any)
	f.from(from, where, text(from, "type") == "BASE_TABLE", ctes)
}

// joinsByCondition are the joins that compare rows one by one: whether one matches does not depend on others. Where a
// side is filled up with NULLs, WHERE keeps none of that.
var joinsByCondition = []string{"INNER", "LEFT", "RIGHT", "OUTER"}

// from looks at a part of a FROM. alone says that a column without a relation's name is of that part.
func (f *keyFinder) from(n map[string]any, where any, alone bool, ctes []string) {
	kind, joined := text(n, "ref_type"), text(n, "join_type")
	switch {
	case text(n, "type") == "BASE_TABLE":
		name := ""
		if !alone {
			name = sourceName(n)
		}
		var keys *relations.Keys
		if n["sample"] == nil && n["column_name_alias"] == nil {
			keys = demanded(where, name, sourceName(n))
		}
		f.mention(n, keys, ctes)

	case text(n, "type") == "JOIN" && (kind == "REGULAR" || kind == "CROSS") && n["sample"] == nil &&
		slices.Contains(joinsByCondition, joined):
		left, _ := n["left"].(map[string]any)
		right, _ := n["right"].(map[string]any)
		f.from(left, where, false, ctes)
		f.from(right, where, false, ctes)
		f.walk(n["condition"], ctes)

	default:
		f.walk(n, ctes)
	}
}

// mention notes which partitions one mention of a relation reads.
func (f *keyFinder) mention(n map[string]any, keys *relations.Keys, ctes []string) {
	name := text(n, "table_name")
	switch {
	case slices.Contains(ctes, sqltext.Lower(name)) || !sqltext.Same(name, f.relation):
	case keys == nil:
		f.all = true
	default:
		f.read = append(f.read, *keys)
	}
}

// demanded returns what a condition demands of the keys of a relation, and nil if that is nothing or not known. The
// column is named with the source, or alone where needs is empty.
func demanded(condition any, needs, source string) *relations.Keys {
	n, _ := condition.(map[string]any)
	column := func(node any) bool { return isPartition(node, needs, source) }
	children, _ := n["children"].([]any)
	switch text(n, "type") {
	case "CONJUNCTION_AND", "CONJUNCTION_OR":
		return demandedOf(text(n, "type"), children, needs, source)
	case "COMPARE_IN":
		if len(children) < 2 || !column(children[0]) {
			return nil
		}
		in := &relations.Keys{Op: relations.Any}
		for _, child := range children[1:] {
			key, ok := constantText(child)
			if !ok {
				return nil
			}
			in.Of = append(in.Of, relations.Keys{Op: relations.Equal, Key: key})
		}
		return in
	case "COMPARE_BETWEEN":
		lower, ok := constantText(n["lower"])
		upper, okay := constantText(n["upper"])
		if !ok || !okay || !column(n["input"]) {
			return nil
		}
		return &relations.Keys{Op: relations.All, Of: []relations.Keys{{Op: relations.AtLeast, Key: lower},
			{Op: relations.AtMost, Key: upper}}}
	case "FUNCTION":
		return demandedByLike(n, children, column)
	}

	left, right := n["left"], n["right"]
	op, known := comparisons[text(n, "type")]
	if !column(left) {
		left, right, op = right, left, flipped(op)
	}
	key, ok := constantText(right)
	if !known || !ok || !column(left) {
		return nil
	}
	return &relations.Keys{Op: op, Key: key}
}

// demandedOf returns what an AND or an OR of conditions demands.
func demandedOf(kind string, conditions []any, needs, source string) *relations.Keys {
	both := &relations.Keys{Op: relations.All}
	if kind == "CONJUNCTION_OR" {
		both.Op = relations.Any
	}

	for _, c := range conditions {
		one := demanded(c, needs, source)
		switch {
		case one != nil:
			both.Of = append(both.Of, *one)
		case both.Op == relations.Any:
			return nil
		}
	}

	if len(both.Of) == 0 {
		return nil
	}
	return both
}

// demandedByLike returns what LIKE demands: how a key begins.
func demandedByLike(n map[string]any, operands []any, column func(any) bool) *relations.Keys {
	if text(n, "function_name") != "~~" || len(operands) != 2 || !column(operands[0]) {
		return nil
	}
	pattern, ok := constantText(operands[1])
	if !ok {
		return nil
	}
	if end := strings.IndexAny(pattern, `%_\`); end >= 0 {
		pattern = pattern[:end]
	}
	return &relations.Keys{Op: relations.Begins, Key: pattern}
}

var comparisons = map[string]relations.Op{"COMPARE_EQUAL": relations.Equal, "COMPARE_LESSTHAN": relations.Below,
	"COMPARE_LESSTHANOREQUALTO": relations.AtMost, "COMPARE_GREATERTHAN": relations.Above,
	"COMPARE_GREATERTHANOREQUALTO": relations.AtLeast}

// flipped returns the comparison whose operands have changed places.
func flipped(op relations.Op) relations.Op {
	switch op {
	case relations.Below:
		return relations.Above
	case relations.AtMost:
		return relations.AtLeast
	case relations.Above:
		return relations.Below
	case relations.AtLeast:
		return relations.AtMost
	}
	return op
}

// isPartition reports whether an expression is relations.Partition of a source, named with it or, where needs is empty,
// perhaps alone.
func isPartition(node any, needs, source string) bool {
	n, _ := node.(map[string]any)
	if text(n, "type") != "COLUMN_REF" {
		return false
	}
	names, _ := n["column_names"].([]any)
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i], _ = name.(string)
	}

	switch len(texts) {
	case 1:
		return needs == "" && sqltext.Same(texts[0], relations.Partition)
	case 2:
		return sqltext.Same(texts[0], source) && sqltext.Same(texts[1], relations.Partition)
	}
	return false
}

// constantText returns the value of a constant that is text. DuckDB compares text with anything else as that.
func constantText(node any) (string, bool) {
	n, _ := node.(map[string]any)
	value, _ := n["value"].(map[string]any)
	kind, _ := value["type"].(map[string]any)
	if text(n, "type") != "VALUE_CONSTANT" || text(kind, "id") != "VARCHAR" {
		return "", false
	}
	key, ok := value["value"].(string)
	return key, ok
}
