package integritycheck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/ranges"
)

// mostOfAKind is how many findings of one kind a run lists.
const mostOfAKind = 1000

// question is a SELECT of the place, the expected and the found of findings, as texts.
type question struct{ kind, sql string }

// rows returns what is wrong with the rows of the input.
func (c config) rows(ctx context.Context, t *operators.Task) (found []finding, err error) {
	if err := c.needs(ctx, t); err != nil {
		return nil, err
	}
	for _, q := range c.questions(sqltext.Quote(t.Inputs[0].As)) {
		rows, err := t.Ask(ctx, fmt.Sprintf("SELECT * FROM (%s) LIMIT %d", q.sql, mostOfAKind), mostOfAKind)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			found = append(found, finding{q.kind, fmt.Sprint(row[0]), fmt.Sprint(row[1]), fmt.Sprint(row[2])})
		}
	}
	return found, nil
}

// needs refuses columns that the input does not have, and those of positions that have no whole numbers.
func (c config) needs(ctx context.Context, t *operators.Task) error {
	_, have, err := t.Rows(ctx, 0)
	if err != nil {
		return err
	}

	whole := []string{c.Sequence, c.StartColumn, c.EndColumn}
	for _, name := range slices.Concat(c.Unique, []string{c.Monotonic}, whole) {
		at := slices.IndexFunc(have, func(column relations.Column) bool { return sqltext.Same(column.Name, name) })
		switch {
		case name == "":
		case at < 0:
			return operators.Permanent(fault.New(fault.Invalid, "the input %q has no column %q", t.Inputs[0].As, name))
		case slices.Contains(whole, name) && !ranges.IsWhole(have[at].Type):
			return operators.Permanent(fault.New(fault.Invalid, "column %q of the input %q is %s, which has no whole "+
				"numbers", name, t.Inputs[0].As, have[at].Type))
		}
	}
	return nil
}

// questions returns what is asked about the rows of a relation.
func (c config) questions(from string) (all []question) {
	if len(c.Unique) > 0 {
		shown := make([]string, len(c.Unique))
		for i, name := range c.Unique {
			shown[i] = fmt.Sprintf("%s || coalesce(%s::VARCHAR, 'NULL')", sqltext.Literal(name+" "),
				sqltext.Quote(name))
		}
		keys := sqltext.QuoteAll(c.Unique)
		all = append(all, question{"unique", fmt.Sprintf("SELECT %s, '1 row', count(*)::VARCHAR || ' rows' FROM %s "+
			"GROUP BY %s HAVING count(*) > 1 ORDER BY %s", strings.Join(shown, " || ', ' || "), from, keys, keys)})
	}
	if c.Monotonic != "" {
		all = append(all, question{"monotonic", fmt.Sprintf(`
			SELECT 'row ' || n, 'at least ' || last::VARCHAR, value::VARCHAR FROM (
				SELECT n, value, lag(value) OVER (ORDER BY n) AS last FROM (
					SELECT row_number() OVER () AS n, %s AS value FROM %s))
			WHERE value < last ORDER BY n`, sqltext.Quote(c.Monotonic), from)})
	}

	if c.Sequence != "" {
		all = append(all, question{"sequence", fmt.Sprintf(`
			SELECT CASE WHEN value IS NULL THEN 'NULL' ELSE 'after ' || last END,
				CASE WHEN value IS NULL THEN 'a number' ELSE (last + 1)::VARCHAR END, coalesce(value::VARCHAR, 'NULL')
			FROM (SELECT value, lag(value) OVER (ORDER BY value NULLS FIRST) AS last
				FROM (SELECT %s::HUGEINT AS value FROM %s))
			WHERE value IS NULL OR value <> last + 1 ORDER BY value NULLS FIRST`, sqltext.Quote(c.Sequence), from)})
	}
	if c.StartColumn != "" {
		all = append(all, question{"ranges", fmt.Sprintf(`
			SELECT 'range ' || coalesce(s::VARCHAR, 'NULL') || '-' || coalesce(e::VARCHAR, 'NULL'),
				CASE WHEN wrong THEN 'start < end' ELSE 'start ' || reached END,
				CASE WHEN wrong THEN 'none' WHEN s < reached THEN 'an overlap' ELSE 'a gap' END
			FROM (SELECT s, e, wrong, max(e) FILTER (WHERE NOT wrong) OVER (
					ORDER BY s NULLS FIRST, e NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
				FROM (SELECT s, e, coalesce(s >= e, true) AS wrong
					FROM (SELECT %s::HUGEINT AS s, %s::HUGEINT AS e FROM %s)))
			WHERE wrong OR s <> reached ORDER BY s NULLS FIRST, e NULLS FIRST`, sqltext.Quote(c.StartColumn),
			sqltext.Quote(c.EndColumn), from)})
	}
	return all
}
