package parquetexport

import (
	"context"
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

// others has the types of DuckDB that some readers of Parquet do not know, and those that hold the same values and that
// all of them do. Some take numbers without a sign for numbers with one.
var others = map[string]string{"UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "BIGINT",
	"UBIGINT": "DECIMAL(20,0)", "UUID": "VARCHAR", "JSON": "VARCHAR", "TIME": "VARCHAR", "INTERVAL": "VARCHAR",
	"TIMESTAMP_NS": "TIMESTAMP"}

var (
	isNanos    = sqltext.Named("TIMESTAMP_NS")
	isGeometry = func(t sqltext.Type) bool { return strings.HasPrefix(t.Name, "GEOMETRY") }
	isInstant  = sqltext.Named("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_NS")
)

// forOthers returns the column as files for others have it.
func forOthers(c dag.Column) dag.Column {
	c.Type = sqltext.TypeOf(c.Type).Map(func(t sqltext.Type) sqltext.Type {
		if to, ok := others[t.Name]; ok {
			return sqltext.Type{Name: to}
		}
		return t
	}).String()
	return c
}

// selecting returns the SELECT of the rows of an input with the columns that files for others have.
func selecting(input string, columns, written []dag.Column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = sqltext.Quote(c.Name)
		if written[i].Type != c.Type {
			list[i] = fmt.Sprintf("CAST(%[1]s AS %[2]s) AS %[1]s", list[i], written[i].Type)
		}
	}
	return fmt.Sprintf("SELECT %s FROM %s", strings.Join(list, ", "), sqltext.Quote(input))
}

// checkValues refuses values that files for others would not hold as they are: times with nanoseconds, and infinite
// ones, which readers take for some day in a far year.
func checkValues(ctx context.Context, t *operators.Task, columns, written []dag.Column) error {
	var counts, says []string
	for i, c := range columns {
		of, name := sqltext.TypeOf(c.Type), sqltext.Quote(c.Name)
		switch {
		case of.Any(isGeometry):
			return fault.New(fault.Invalid, "column %q is a geometry, which many readers of Parquet do not know",
				c.Name).WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s in a sql job before this one", name)
		case isInstant(of):
			counts = append(counts, fmt.Sprintf("count(*) FILTER (isinf(%s))", name))
			says = append(says, fmt.Sprintf("column %q has an infinite time", c.Name))
		}
		if of.Any(isNanos) {
			counts = append(counts, fmt.Sprintf("count(*) FILTER (CAST(CAST(%[1]s AS %[2]s) AS %[3]s) IS DISTINCT "+
				"FROM %[1]s)", name, written[i].Type, c.Type))
			says = append(says, fmt.Sprintf("column %q has a time with nanoseconds, and most readers of Parquet know "+
				"microseconds", c.Name))
		}
	}
	if len(counts) == 0 {
		return nil
	}

	found, err := t.Ask(ctx, fmt.Sprintf("SELECT %s FROM %s", strings.Join(counts, ", "),
		sqltext.Quote(t.Inputs[0].As)), 1)
	if err != nil {
		return err
	}
	for i, what := range says {
		if found[0][i] != int64(0) {
			return fault.New(fault.Invalid, "%s, in %v of the rows", what, found[0][i]).
				WithHint("cast it in a sql job before this one: to VARCHAR, or to what you want instead")
		}
	}
	return nil
}
