package duck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// A value fits another type if it comes back as it was from a cast to it: 1.5 is no BIGINT, and neither is the text
// 007. And it has to mean the same, which a cast and back does not show: true is not 1, and a moment is no local time.

// fits returns the condition that a column's value fits a type.
func fits(c Column, to string) string {
	return fmt.Sprintf("TRY_CAST(TRY_CAST(%[1]s AS %[2]s) AS %[3]s) IS NOT DISTINCT FROM %[1]s",
		sqltext.Quote(c.Name), to, c.Type)
}

// misfits returns the condition that a column's value does not fit a type, or means something else in it.
func misfits(c Column, to string) string {
	if meansElse(sqltext.TypeOf(c.Type), sqltext.TypeOf(to)) {
		return sqltext.Quote(c.Name) + " IS NOT NULL"
	}
	return "NOT (" + fits(c, to) + ")"
}

// meansElse reports whether values of a type mean something else as another one, which a cast to that does not heed.
func meansElse(from, to sqltext.Type) bool {
	if from.Kind != to.Kind {
		return false
	}
	if from.Kind == sqltext.ScalarType {
		was, is := meaning(from.Name), meaning(to.Name)
		return was != "" && is != "" && was != is || from.Name == "VARCHAR" && to.Name == "JSON"
	}

	for i, f := range from.Fields {
		at := slices.IndexFunc(to.Fields, func(t sqltext.TypeField) bool { return sqltext.Same(t.Name, f.Name) })
		if from.Kind != sqltext.StructType {
			at = min(i, len(to.Fields)-1)
		}
		if at >= 0 && meansElse(f.Type, to.Fields[at].Type) {
			return true
		}
	}
	return false
}

// meaning returns what values of a scalar type mean; empty: what their text says.
func meaning(name string) string {
	name, _, _ = strings.Cut(name, "(")
	switch name {
	case "BOOLEAN":
		return "truth"
	case "TIMESTAMP WITH TIME ZONE":
		return "moment"
	case "DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS":
		return "local time"
	case "TIME", "TIME_NS":
		return "time of day"
	case "TIME WITH TIME ZONE":
		return "time of day with a zone"
	case "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
		"UHUGEINT", "DECIMAL", "FLOAT", "DOUBLE":
		return "number"
	}
	return ""
}

// fitted returns the expression of a column's value in another type, which fails where it does not fit.
func fitted(c Column, to string) string {
	message := fmt.Sprintf("column %s: a partition that a forward-only deploy kept has a value that is no %s: "+
		"compute it anew, by `dagctl backfill --existing all`", c.Name, to)
	return fmt.Sprintf("CASE WHEN %s THEN CAST(%s AS %s) ELSE error(%s) END", fits(c, to), sqltext.Quote(c.Name), to,
		sqltext.Literal(message))
}

// Misfit returns the first value of Parquet files that does not fit the column of its name; nil if all do. What the
// files lack fits.
func (s *Session) Misfit(ctx context.Context, files []string, columns []Column) (*relations.Misfit, error) {
	from := ReadParquet(files)
	have, err := s.Describe(ctx, "FROM "+from)
	if err != nil {
		return nil, err
	}

	for _, c := range columns {
		at := slices.IndexFunc(have, func(h Column) bool { return sqltext.Same(h.Name, c.Name) })
		if at < 0 || have[at].Type == c.Type {
			continue
		}
		value, err := s.first(ctx, from, have[at], misfits(have[at], c.Type))
		if ctx.Err() == nil && Deterministic(err) { // there is no such cast
			value, err = s.first(ctx, from, have[at], sqltext.Quote(have[at].Name)+" IS NOT NULL")
		}
		if err != nil {
			return nil, err
		}
		if value != nil {
			return &relations.Misfit{Column: c, Value: *value}, nil
		}
	}
	return nil, nil
}

// MisfitAt is Misfit in files that have one, and tells the file, as Part, and the row.
func (s *Session) MisfitAt(ctx context.Context, files []string, columns []Column) (*relations.Misfit, error) {
	for i, file := range files {
		found, err := s.Misfit(ctx, []string{file}, columns)
		if err != nil {
			return nil, err
		}
		if found == nil {
			continue
		}

		from := ReadParquet([]string{file})
		have, err := s.Describe(ctx, "FROM "+from)
		if err != nil {
			return nil, err
		}

		at := slices.IndexFunc(have, func(h Column) bool { return sqltext.Same(h.Name, found.Column.Name) })
		bad := misfits(have[at], found.Column.Type)
		if !s.casts(ctx, from, have[at], found.Column.Type) {
			bad = sqltext.Quote(have[at].Name) + " IS NOT NULL"
		}
		found.Part = i
		err = s.conn.QueryRowContext(ctx, fmt.Sprintf("SELECT n, left(CAST(v AS VARCHAR), %d) FROM (SELECT %s AS v, "+
			"%s AS bad, row_number() OVER () AS n FROM %s) WHERE bad ORDER BY n LIMIT 1", shownOfMisfit,
			sqltext.Quote(have[at].Name), bad, from)).Scan(&found.Row, &found.Value)
		return found, s.ended(ctx, err)
	}
	return nil, errors.New("a value that did not fit is gone")
}

// casts reports whether there is a cast from a column's type to another.
func (s *Session) casts(ctx context.Context, from string, c Column, to string) bool {
	_, err := s.Describe(ctx, fmt.Sprintf("SELECT %s FROM %s", fits(c, to), from))
	return err == nil || ctx.Err() != nil || !Deterministic(err)
}

// Cast returns a SELECT of the rows of files without a Misfit, which have the columns `have`, as rows of other columns.
func (s *Session) Cast(ctx context.Context, files []string, have, columns []Column) (string, error) {
	from, list := ReadParquet(files), make([]string, len(columns))
	for i, c := range columns {
		name := sqltext.Quote(c.Name)
		at := slices.IndexFunc(have, func(h Column) bool { return sqltext.Same(h.Name, c.Name) })
		switch {
		case at >= 0 && have[at].Type == c.Type:
			list[i] = sqltext.Quote(have[at].Name) + " AS " + name
		case at >= 0 && s.casts(ctx, from, have[at], c.Type):
			list[i] = fmt.Sprintf("CAST(%s AS %s) AS %s", sqltext.Quote(have[at].Name), c.Type, name)
		default: // all its values are NULL
			list[i] = fmt.Sprintf("CAST(NULL AS %s) AS %s", c.Type, name)
		}
	}
	return "SELECT " + strings.Join(list, ", ") + " FROM " + from, ctx.Err()
}

// first returns the text of the first value of a column where a condition is met; nil if it never is.
func (s *Session) first(ctx context.Context, from string, c Column, where string) (value *string, err error) {
	return value, s.Value(ctx, &value, fmt.Sprintf("SELECT (SELECT left(CAST(%s AS VARCHAR), %d) FROM %s WHERE %s "+
		"LIMIT 1)", sqltext.Quote(c.Name), shownOfMisfit, from, where))
}

// shownOfMisfit is how many characters of a value are shown.
const shownOfMisfit = 200
