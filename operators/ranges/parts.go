package ranges

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

// parts returns what the task's inputs say is there. A partition of ranges and a segment of a cursor are parts
// themselves, whatever rows they have; of other inputs, each row is one.
func (c config) parts(ctx context.Context, t *operators.Task) (Set, error) {
	var found []Range
	for i, in := range t.Inputs {
		var (
			more []Range
			err  error
		)
		if in.PartitionBy.Kind == dag.ByRange || in.PartitionBy.Kind == dag.ByCursor {
			more, err = byKey(in)
		} else {
			more, err = c.byRow(ctx, t, i)
		}
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return Set{}.With(found...), nil
}

// byKey returns the partitions of an input as parts.
func byKey(in operators.AssignedInput) ([]Range, error) {
	if len(in.Where) > 0 {
		return nil, operators.Permanent(fault.New(fault.Invalid, "input %q: its partitions are ranges themselves, of "+
			"which `where` would leave rows out", in.As).WithHint("leave `where` out"))
	}

	parts := make([]Range, len(in.Partitions))
	for i, p := range in.Partitions {
		from, to, err := in.PartitionBy.Range(p.Key)
		if err != nil {
			return nil, operators.Permanent(fmt.Errorf("input %q: %w", in.As, err))
		}
		parts[i] = Range{from, to}
	}
	return parts, nil
}

// wholeNumbers are the types of columns with positions.
var wholeNumbers = []string{"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
	"UBIGINT", "UHUGEINT"}

// IsWhole reports whether values of a type are whole numbers.
func IsWhole(columnType string) bool {
	return slices.Contains(wholeNumbers, columnType) ||
		strings.HasPrefix(columnType, "DECIMAL(") && strings.HasSuffix(columnType, ",0)")
}

// byRow returns the parts that the rows of an input are. The engine joins those that overlap or touch.
func (c config) byRow(ctx context.Context, t *operators.Task, input int) ([]Range, error) {
	in := t.Inputs[input]
	if len(t.InputFiles[input]) == 0 {
		return nil, nil
	}
	_, columns, err := t.Rows(ctx, input)
	if err != nil {
		return nil, err
	}
	if err := c.checkColumns(in.As, columns); err != nil {
		return nil, operators.Permanent(err)
	}

	from := fmt.Sprintf("(SELECT %s::HUGEINT AS s, %s::HUGEINT AS e FROM %s)", sqltext.Quote(c.StartColumn),
		sqltext.Quote(c.EndColumn), sqltext.Quote(in.As))
	wrong, err := t.Ask(ctx, fmt.Sprintf("SELECT coalesce(s::VARCHAR, 'NULL'), coalesce(e::VARCHAR, 'NULL') FROM %s "+
		"WHERE s IS NULL OR e IS NULL OR s < 0 OR s >= e OR e > %d ORDER BY s, e LIMIT 1", from, int64(maxPosition)), 1)
	if err != nil {
		return nil, err
	}
	if len(wrong) > 0 {
		return nil, operators.Permanent(noRange(in, wrong[0]))
	}

	rows, err := t.Ask(ctx, strings.NewReplacer("PARTS", from).Replace(`
		SELECT min(s)::VARCHAR, max(e)::VARCHAR
		FROM (
			SELECT s, e, count(*) FILTER (WHERE apart) OVER (ORDER BY s, e ROWS UNBOUNDED PRECEDING) AS span
			FROM (
				SELECT s, e, s > max(e) OVER (ORDER BY s, e ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS apart
				FROM PARTS))
		GROUP BY span ORDER BY min(s)`), maxSpans)
	if err != nil {
		return nil, err
	}
	return rangesOf(rows)
}

// checkColumns refuses an input without the columns of the config, or with other types than whole numbers.
func (c config) checkColumns(input string, columns []relations.Column) error {
	for _, name := range []string{c.StartColumn, c.EndColumn} {
		at := slices.IndexFunc(columns, func(have relations.Column) bool { return sqltext.Same(have.Name, name) })
		switch {
		case at < 0:
			return fault.New(fault.Invalid, "input %q has no column %q", input, name).
				WithHint("name its columns as `start_column` and `end_column`")
		case !IsWhole(columns[at].Type):
			return fault.New(fault.Invalid, "column %q of input %q is %s: positions are whole numbers", name, input,
				columns[at].Type).WithHint("cast it, as in %s::BIGINT, in the job before", name)
		}
	}
	return nil
}

// noRange returns the error of a row whose two numbers are no range.
func noRange(in operators.AssignedInput, row []any) error {
	return fault.New(fault.Invalid, "input %q has a row with the range [%v, %v), which is none: 0 ≤ start < end ≤ "+
		"2^62. It is in %s", in.As, row[0], row[1], partitionsOf(in)).
		WithHint("mend or leave out the row where it is made: the partition is read again once it is published anew")
}

// partitionsOf names the partitions that a task reads of an input, the first few of many.
func partitionsOf(in operators.AssignedInput) string {
	const most = 3
	var keys []string
	for _, p := range in.Partitions[:min(most, len(in.Partitions))] {
		keys = append(keys, cmp.Or(p.Key, "the dataset, which has no partitions"))
	}
	text := strings.Join(keys, ", ")
	if more := len(in.Partitions) - most; more > 0 {
		text += fmt.Sprintf(" or one of %d more", more)
	}
	if len(keys) == 1 && in.Partitions[0].Key == "" {
		return text
	}
	return "partition " + text
}

// rangesOf returns rows of two numbers, each as text, as ranges.
func rangesOf(rows [][]any) ([]Range, error) {
	parts := make([]Range, len(rows))
	for i, row := range rows {
		if _, err := fmt.Sscan(fmt.Sprintln(row...), &parts[i][0], &parts[i][1]); err != nil {
			return nil, fmt.Errorf("an engine says that a range is %v: %w", row, err)
		}
	}
	return parts, nil
}
