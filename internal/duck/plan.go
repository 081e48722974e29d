package duck

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// planStep is a step of DuckDB's plan. Extra has texts, or lists of them.
type planStep struct {
	Name     string         `json:"name"`
	Children []planStep     `json:"children"`
	Extra    map[string]any `json:"extra_info"`
}

// planDetails are the details of steps that are shown, in this order. What is not here is left out: it may name files,
// or what DuckDB's next version will think of.
var planDetails = []string{
	"Join Type", "Conditions", "Condition", "Groups", "Aggregates", "Expressions", "Expression", "Projections",
	"Filters", "Order By", "Order", "Top", "Limit", "Offset", "CTE Name", "CTE Index",
}

// planNames are names of steps in words that do not tell how relations are stored.
var planNames = map[string]string{"READ_PARQUET": "SCAN", "PARQUET_SCAN": "SCAN"}

// Plan returns how DuckDB would run a query, as text for people: a step a line, those that it reads from below it. The
// query is not run. It names columns and functions of the query, and no files.
func (s *Session) Plan(ctx context.Context, query string) (string, error) {
	rows, err := s.Query(ctx, "EXPLAIN (FORMAT json) "+query)
	if err != nil {
		return "", err
	}
	defer rows.Close()

	var text strings.Builder
	for rows.Next() {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return "", err
		}
		var steps []planStep
		if err := json.Unmarshal([]byte(value), &steps); err != nil {
			return "", fmt.Errorf("read a plan: %w", err)
		}
		for _, step := range steps {
			step.write(&text, "", "")
		}
	}
	return text.String(), WithoutValues(rows.Err())
}

// write writes a step and those below it. first is what its line begins with, and rest the lines after it.
func (p planStep) write(to *strings.Builder, first, rest string) {
	name := strings.TrimSpace(p.Name)
	if said, ok := planNames[name]; ok {
		name = said
	}
	to.WriteString(first + name)
	if rows, ok := p.Extra["Estimated Cardinality"].(string); ok {
		to.WriteString("  ~" + rows + " rows")
	}
	to.WriteByte('\n')

	below := "  "
	if len(p.Children) > 0 {
		below = "│ "
	}
	for _, detail := range planDetails {
		if text := planText(p.Extra[detail]); text != "" {
			fmt.Fprintf(to, "%s%s  %s: %s\n", rest, below, detail, text)
		}
	}

	for i, child := range p.Children {
		if i == len(p.Children)-1 {
			child.write(to, rest+"└─ ", rest+"   ")
		} else {
			child.write(to, rest+"├─ ", rest+"│  ")
		}
	}
}

// planText returns a detail in one line.
func planText(detail any) string {
	switch d := detail.(type) {
	case string:
		return strings.Join(strings.Fields(d), " ")
	case []any:
		var all []string
		for _, one := range d {
			all = append(all, planText(one))
		}
		return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
	}
	return ""
}
