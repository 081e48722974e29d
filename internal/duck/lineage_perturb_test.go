package duck_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// deciding are the words with which rows are chosen, matched, grouped or ordered. A column that is used so changes
// outputs whose source it is not.
var deciding = regexp.MustCompile(`(?i)\b(WHERE|ON|USING|NATURAL|SEMI|ASOF|HAVING|QUALIFY|GROUP|PARTITION|ORDER|FILTER|` +
	`EXISTS|LIMIT|EXCEPT|INTERSECT|UNION|PIVOT|RECURSIVE|LATERAL|SAMPLE|DISTINCT|range|unnest|json_each)\b`)

// perturbed are the rows of the corpus' tables, and for each type expressions that change every value.
var (
	perturbedRows = map[string]string{
		"people": `VALUES (1, 'ann', 2, DATE '1990-05-01', 12.50::DECIMAL(12, 2), ['x', 'y'],
			{'street': 'high', 'town': {'name': 'a', 'zip': 11}}, '{"a": {"b": 5, "c": 6}, "ann": 3, "annq": 4}'::JSON),
			(3, 'bob', 1, DATE '1980-01-02', 40.25::DECIMAL(12, 2), ['z', 'zz'],
			{'street': 'low', 'town': {'name': 'b', 'zip': 12}}, '{"a": {"b": 7, "c": 8}, "bob": 9}'::JSON)`,
		"sales":    `VALUES (1, 1, DATE '2024-02-03', 9.5::DOUBLE, 3, 'n'), (2, 3, DATE '2025-03-05', 30::DOUBLE, 2, 's')`,
		"regions":  `VALUES ('n', 'North', 'no'), ('s', 'South', 'so')`,
		"quarters": `VALUES ('k', 4, 2, 9, 15::BIGINT), ('l', 1, 7, 3, 11::BIGINT)`,
		"pairs":    `VALUES (5, 2, 6), (1, 3, 1)`,
	}
	changes = map[string][]string{
		"INTEGER": {"%s + 20", "%s * -1"}, "BIGINT": {"%s + 20", "-%s"}, "DOUBLE": {"%s * 3 + 20", "%s / 2"},
		"DECIMAL(12, 2)": {"%s + 20", "%s * -1"}, "DATE": {"%s + 500", "%s - 40"},
		"VARCHAR":   {"%s || 'q'", "upper('q' || %s)"},
		"VARCHAR[]": {"list_transform(%s, lambda v: v || 'q')", "list_append(%s, 'q')"},
		"JSON":      {`json_merge_patch(%s, '{"a": {"b": 50, "c": 60}, "ann": 30, "bob": 90}')`},
	}
)

func perturbations(c relations.Column) (expressions []string) {
	name := sqltext.Quote(c.Name)
	if strings.HasPrefix(c.Type, "STRUCT") {
		return []string{strings.ReplaceAll("{'street': %s.street || 'q', 'town': {'name': %s.town.name || 'q', "+
			"'zip': %s.town.zip + 1}}", "%s", name)}
	}
	for _, change := range changes[c.Type] {
		expressions = append(expressions, strings.ReplaceAll(change, "%s", name))
	}
	return expressions
}

// A change of one column of a table changes no output whose source it is not; and, to show that the statements can
// tell, it does change most outputs whose source it is.
func TestOnlySourcesChangeAnOutput(t *testing.T) {
	t.Parallel()
	tables := readLineageSchema(t, corpus+"/constructs.json")
	s := open(t, duck.Config{Threads: 1})
	set := func(table, column, change string) {
		replace := ""
		if change != "" {
			replace = fmt.Sprintf("REPLACE (%s AS %s)", change, sqltext.Quote(column))
		}
		var names, casts []string
		for _, c := range tables[table] {
			names = append(names, sqltext.Quote(c.Name))
			casts = append(casts, fmt.Sprintf("%[1]s::%[2]s AS %[1]s", sqltext.Quote(c.Name), c.Type))
		}
		require.NoError(t, s.Exec(t.Context(), fmt.Sprintf("CREATE OR REPLACE VIEW %s AS SELECT %s "+
			"FROM (SELECT * %s FROM (%s) v(%s))", table, strings.Join(casts, ", "), replace, perturbedRows[table],
			strings.Join(names, ", "))))
	}
	for table := range tables {
		set(table, "", "")
	}

	statements, moved, still := 0, 0, 0
	for _, c := range readCases(t, corpus+"/constructs.txt") {
		if deciding.MatchString(c.query) || strings.Contains(c.want, " ? ") {
			continue
		}
		statements++
		q, err := s.Parse(t.Context(), c.query)
		require.NoError(t, err)
		output, err := s.DescribeOver(t.Context(), q, map[string][]relations.Column{})
		require.NoError(t, err, c.query)
		lineage := q.Explain(tables, output)
		before := columnsOf(t, s, c.query, len(output))

		for _, table := range q.Relations {
			table = strings.ToLower(table)
			for _, column := range tables[table] {
				changed := make([]bool, len(output))
				for _, change := range perturbations(column) {
					set(table, column.Name, change)
					after := columnsOf(t, s, c.query, len(output))
					for i := range output {
						changed[i] = changed[i] || after[i] != before[i]
					}
				}
				set(table, "", "")

				for i, l := range lineage {
					isSource := slices.ContainsFunc(l.Sources, func(s relations.SourceColumn) bool {
						return s.Table == table && s.Column == column.Name
					})
					assert.False(t, changed[i] && !isSource, "%s: %s changes with %s.%s: %s", c.name, l.Column, table,
						column.Name, c.query)
					switch {
					case isSource && changed[i]:
						moved++
					case isSource:
						still++
						t.Logf("%s: %s does not change with %s.%s", c.name, l.Column, table, column.Name)
					}
				}
			}
		}
	}
	require.GreaterOrEqual(t, statements, 40)
	require.Greater(t, moved, 10*still)
}

// columnsOf returns the values of each column of a query's rows, in their order.
func columnsOf(t *testing.T, s *duck.Session, query string, columns int) []string {
	t.Helper()
	names := make([]string, columns)
	for i := range names {
		names[i] = fmt.Sprintf("c%d", i)
	}
	rows, err := s.Query(t.Context(), fmt.Sprintf("SELECT to_json(t)::VARCHAR FROM (\n%s\n) t(%s)", query,
		strings.Join(names, ", ")))
	require.NoError(t, err, query)
	defer rows.Close()

	values := make([]string, columns)
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		var row map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(text), &row))
		for i, name := range names {
			values[i] += string(row[name]) + "\n"
		}
	}
	require.NoError(t, rows.Err())
	return values
}
