package duck

import (
	"context"
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Shown is what a statement wants to know of the rows of another one.
type Shown string

// What is shown: the rows themselves, their columns, or a summary of each column.
const (
	ShownRows      Shown = ""
	ShownColumns   Shown = "DESCRIBE"
	ShownSummaries Shown = "SUMMARIZE"
)

var (
	showing = late.Pattern(`(?is)^(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(DESCRIBE|DESC|SUMMARIZE)\b`)
	asQuery = late.Pattern(`(?is)^(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:SELECT|FROM|WITH|VALUES|PIVOT|UNPIVOT|\()`)
)

// ShownOf returns what a statement shows, and the statement whose rows that is about: of "SUMMARIZE x", that is
// "FROM x". All that is refused in a statement is refused there, too.
func ShownOf(query string) (Shown, string) {
	at := showing.FindStringSubmatchIndex(query)
	if at == nil {
		return ShownRows, query
	}
	shown := ShownColumns
	if strings.EqualFold(query[at[2]:at[3]], string(ShownSummaries)) {
		shown = ShownSummaries
	}

	// Blanks keep the places in errors.
	blank := strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return ' '
	}, query[:at[3]])
	rest := query[at[3]:]
	if asQuery.MatchString(rest) {
		return shown, blank + rest
	}
	return shown, blank[:len(blank)-len("FROM")] + "FROM" + rest
}

// Show returns a query for what is shown of a query's rows. Its columns are those of DuckDB.
func (s *Session) Show(ctx context.Context, shown Shown, query string) (string, error) {
	if shown == ShownRows {
		return query, nil
	}
	columns, err := s.Describe(ctx, query)
	if err != nil {
		return "", err
	}
	if shown == ShownColumns {
		rows := make([]string, len(columns))
		for i, c := range columns {
			rows[i] = fmt.Sprintf("(%s, %s)", sqltext.Literal(c.Name), sqltext.Literal(c.Type))
		}
		return "SELECT * FROM (VALUES " + strings.Join(rows, ", ") + ") AS shown (column_name, column_type)", nil
	}
	return summaryOf(columns, query), nil
}

// summaryOf returns a query with a row for each column of a query, in one pass over its rows. In contrast to DuckDB's
// SUMMARIZE, it does not fail for numbers that have no mean: means and quantiles are those of the finite ones.
func summaryOf(columns []Column, query string) string {
	names, parts, rows := make([]string, len(columns)), make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i] = fmt.Sprintf("c%d", i)
		parts[i] = fmt.Sprintf("%s AS s%d", summaryOfColumn(names[i], sqltext.TypeOf(c.Type)), i)
		rows[i] = fmt.Sprintf(`SELECT %d AS dagctl_place, %s AS column_name, %s AS column_type, s%[1]d.* FROM summed`,
			i, sqltext.Literal(c.Name), sqltext.Literal(c.Type))
	}
	return fmt.Sprintf(`SELECT * EXCLUDE (dagctl_place) FROM (
		WITH summed AS MATERIALIZED (SELECT %s FROM (%s) AS of (%s)) %s) ORDER BY dagctl_place`,
		strings.Join(parts, ", "), query, strings.Join(names, ", "), strings.Join(rows, " UNION ALL "))
}

// summaryOfColumn returns an aggregate: a struct with the columns of SUMMARIZE.
func summaryOfColumn(name string, t sqltext.Type) string {
	// Beyond this, squares and sums are no DOUBLE.
	const most = "1e150"
	mean, deviation := "NULL::VARCHAR", "NULL::VARCHAR"
	quantile := func(float64) string { return "NULL::VARCHAR" }

	switch {
	case isNumeric(t):
		value, finite := fmt.Sprintf("%s::DOUBLE", name), fmt.Sprintf("isfinite(%s::DOUBLE)", name)
		sane := func(of string) string {
			return fmt.Sprintf("CASE WHEN count(*) FILTER (%[2]s AND abs(%[1]s) > %[3]s) = 0 THEN "+
				"(%[4]s FILTER (%[2]s AND abs(%[1]s) <= %[3]s))::VARCHAR END", value, finite, most, of)
		}
		mean, deviation = sane("avg("+value+")"), sane("stddev_samp("+value+")")
		quantile = func(q float64) string {
			return fmt.Sprintf("(approx_quantile(%s, %v) FILTER (%s))::VARCHAR", name, q, finite)
		}
	case t.Name == "DATE" || t.Name == "TIMESTAMP" || t.Name == "TIMESTAMP WITH TIME ZONE":
		quantile = func(q float64) string {
			return fmt.Sprintf("(approx_quantile(%[1]s, %[2]v) FILTER (isfinite(%[1]s)))::VARCHAR", name, q)
		}
	}

	return fmt.Sprintf(`struct_pack("min" := min(%[1]s)::VARCHAR, "max" := max(%[1]s)::VARCHAR,
		approx_unique := approx_count_distinct(%[1]s), "avg" := %[2]s, std := %[3]s, q25 := %[4]s, q50 := %[5]s,
		q75 := %[6]s, "count" := count(*), null_percentage := CASE WHEN count(*) = 0 THEN NULL
			ELSE round(100.0 * (count(*) - count(%[1]s)) / count(*), 2) END::DECIMAL(9, 2))`,
		name, mean, deviation, quantile(0.25), quantile(0.5), quantile(0.75))
}

func isNumeric(t sqltext.Type) bool {
	switch t.Name {
	case "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
		"UHUGEINT", "FLOAT", "DOUBLE":
		return true
	}
	return strings.HasPrefix(t.Name, "DECIMAL(")
}
