package duck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// CopyToParquet writes the query's rows, in the query's order and in the types that Written returns, and returns their
// number. A value that does not fit is a fault.Invalid that names its column.
func (s *Session) CopyToParquet(ctx context.Context, query, file string) (int64, error) {
	columns, err := s.Describe(ctx, query)
	if err != nil {
		return 0, err
	}
	return s.CopyColumns(ctx, query, columns, file)
}

// CopyColumns is CopyToParquet for a query of which Describe has returned the columns.
func (s *Session) CopyColumns(ctx context.Context, query string, columns []Column, file string) (int64, error) {
	query, err := writing(query, columns)
	if err != nil {
		return 0, err
	}

	rows, err := s.copyKept(ctx, query, file)
	if place := unfit.FindStringSubmatch(fmt.Sprint(err)); err != nil && place != nil && isDuckDB(err) {
		i, _ := strconv.Atoi(place[1])
		return 0, doesNotFit(columns[i])
	}
	return rows, err
}

// copyKept is CopyToParquet for a query whose types are written as they are.
func (s *Session) copyKept(ctx context.Context, query, file string) (int64, error) {
	var rows int64
	err := s.conn.QueryRowContext(ctx, fmt.Sprintf("COPY (%s) TO %s (FORMAT parquet, COMPRESSION zstd)", query,
		sqltext.Literal(file))).Scan(&rows)
	if err != nil && unfit.MatchString(err.Error()) && ctx.Err() == nil {
		return 0, err // its text has no value
	}
	return rows, s.ended(ctx, err)
}

func isDuckDB(err error) bool {
	var e *duckdb.Error
	return errors.As(err, &e)
}

// unfit begins the text of the error that a value raises if it does not fit what it is written as. The text of any
// other error may quote the statement, which has the same words in it.
var unfit = late.Pattern(`^Invalid Input Error: dagctl: column (\d+) does not fit`)

func doesNotFit(c Column) error {
	if sqltext.TypeOf(c.Type).Any(isWidest) {
		return fault.New(fault.Invalid, "column %q has a number of more than 38 digits", c.Name).
			WithHint("write CAST(%[1]s AS DOUBLE) AS %[1]s before you add up, if it need not be exact",
				sqltext.Quote(c.Name))
	}

	if !sqltext.TypeOf(c.Type).Any(sqltext.Named("HUGEINT", "UHUGEINT", "TIMESTAMP_S", "TIMESTAMP_MS")) {
		return fault.New(fault.Invalid, "column %q has an INTERVAL that cannot be stored without changing it: one "+
			"that is negative, finer than milliseconds, or has more than 49 days in its hours", c.Name).
			WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s, or make it coarser", sqltext.Quote(c.Name))
	}
	// The type is known: it has been written.
	written, _ := sqltext.Written(c)
	return fault.New(fault.Invalid, "column %q has a value of type %s that does not fit %s, as which it is stored",
		c.Name, c.Type, written.Type).
		WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s; CAST(%[1]s AS DOUBLE) if it need not be exact",
			sqltext.Quote(c.Name))
}

// writing returns the query with its columns as they are written.
func writing(query string, columns []Column) (string, error) {
	written, err := sqltext.WrittenAll(columns)
	if err != nil {
		return "", err
	}
	same := func(i int) bool {
		t := sqltext.TypeOf(columns[i].Type)
		return written[i] == columns[i] && !t.Any(sqltext.Named("INTERVAL")) && !t.Any(isWidest)
	}

	values, names, plain := make([]string, len(columns)), make([]string, len(columns)), true
	for i, c := range columns {
		names[i] = fmt.Sprintf("c%d", i)
		values[i] = names[i] + " AS " + sqltext.Quote(c.Name)
		if same(i) {
			continue
		}
		plain = false
		values[i] = fmt.Sprintf("%s AS %s", exact(names[i], sqltext.TypeOf(c.Type), written[i].Type, i),
			sqltext.Quote(c.Name))
	}

	if plain {
		return query, nil
	}
	return fmt.Sprintf("SELECT %s FROM (%s\n) AS q (%s)", strings.Join(values, ", "), query,
		strings.Join(names, ", ")), nil
}

// exact returns the expression that casts a value, and raises an error if it does not fit. TRY and CASE cost nothing
// where all values fit: both look at whole vectors.
func exact(value string, t sqltext.Type, written string, column int) string {
	cast := value
	if t.String() != written {
		cast = casting(value, written, column)
	}
	if fits := fitting(value, t, 0); fits != "" {
		return fmt.Sprintf("CASE WHEN %s IS NULL OR %s THEN %s ELSE %s END", value, fits, cast, doesNot(column))
	}
	return cast
}

// casting returns the expression that casts a value, and raises an error if that cannot be.
func casting(value, to string, column int) string {
	return fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN coalesce(TRY(CAST(%[1]s AS %[2]s)), %[3]s) END", value, to,
		doesNot(column))
}

func doesNot(column int) string {
	return fmt.Sprintf("error('dagctl: column %d does not fit')", column)
}

// isWidest reports whether a type is a decimal of 38 digits. DuckDB adds such numbers up without a look at how many
// digits the sum has.
func isWidest(t sqltext.Type) bool { return strings.HasPrefix(t.Name, "DECIMAL(38,") }

// widest returns the largest number of a decimal of 38 digits.
func widest(t sqltext.Type) string {
	scale, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(t.Name, "DECIMAL(38,"), ")"))
	return fmt.Sprintf("CAST('%s.%s' AS %s)", strings.Repeat("9", 38-scale), strings.Repeat("9", scale), t.Name)
}

// fitting returns the condition that the intervals and widest decimals in a value are written as they are; empty: there
// are none. Parquet counts months, days and milliseconds in 32 bits without a sign.
func fitting(value string, t sqltext.Type, depth int) string {
	all := func(list string, of sqltext.Type) string {
		element := fmt.Sprintf("e%d", depth)
		fits := fitting(element, of, depth+1)
		if fits == "" {
			return ""
		}
		return fmt.Sprintf("len(list_filter(%s, lambda %s: NOT (%[2]s IS NULL OR %[3]s))) = 0", list, element, fits)
	}

	var fits []string
	switch {
	case isWidest(t):
		most := widest(t)
		fits = append(fits, fmt.Sprintf("%s BETWEEN -%s AND %s", value, most, most))
	case t.Name == "INTERVAL":
		part := func(name string) string { return fmt.Sprintf("date_part('%s', %s)", name, value) }
		micros := fmt.Sprintf("(%s * 3600000000 + %s * 60000000 + %s)", part("hour"), part("minute"),
			part("microsecond"))
		fits = append(fits, part("year")+" >= 0", part("month")+" >= 0", part("day")+" >= 0",
			micros+" BETWEEN 0 AND 4294967295000", micros+" % 1000 = 0")
	case t.Kind == sqltext.ListType || t.Kind == sqltext.ArrayType:
		return all(value, t.Fields[0].Type)
	case t.Kind == sqltext.MapType:
		fits = append(fits, all("map_keys("+value+")", t.Fields[0].Type), all("map_values("+value+")",
			t.Fields[1].Type))
	case t.Kind == sqltext.StructType:
		for i, f := range t.Fields {
			member := fmt.Sprintf("struct_extract(%s, %s)", value, sqltext.MemberKey(f, i))
			if inner := fitting(member, f.Type, depth); inner != "" {
				fits = append(fits, fmt.Sprintf("(%s IS NULL OR %s)", member, inner))
			}
		}
	}

	fits = slices.DeleteFunc(fits, func(s string) bool { return s == "" })
	if len(fits) == 0 {
		return ""
	}
	return "(" + strings.Join(fits, " AND ") + ")"
}
