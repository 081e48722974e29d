package duck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// JSONRows runs a query and returns its rows as values that JSON holds without loss: numbers that a float64 cannot hold
// exactly, instants, bytes and the like are text in DuckDB's format; lists and structs are JSON.
func JSONRows(ctx context.Context, session *Session, query string, limit, offset int) ([]Column, [][]any, error) {
	out := [][]any{}
	columns, err := EachJSONRow(ctx, session, query, limit, offset, func(row []any) error {
		out = append(out, row)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return columns, out, nil
}

// ErrEnough ends EachJSONRow without an error.
var ErrEnough = errors.New("enough rows")

// EachJSONRow is JSONRows for callers that do not want to hold all rows.
func EachJSONRow(
	ctx context.Context, session *Session, query string, limit, offset int, each func(row []any) error,
) ([]Column, error) {
	columns, err := session.Describe(ctx, query)
	if err != nil {
		return nil, err
	}
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = jsonExpression(c)
	}

	rows, err := session.Query(ctx, fmt.Sprintf("SELECT %s FROM (%s) LIMIT %d OFFSET %d", strings.Join(list, ", "),
		query, limit, offset))
	if err != nil {
		return nil, err
	}
	defer rows.Close()

	for rows.Next() {
		row := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		for i, v := range row {
			row[i] = jsonValue(columns[i], v)
		}
		if err := each(row); errors.Is(err, ErrEnough) {
			return columns, nil
		} else if err != nil {
			return nil, err
		}
	}
	return columns, WithoutValues(rows.Err())
}

// native are the types whose values JSON numbers and booleans hold exactly.
var native = map[string]bool{
	"BOOLEAN": true, "TINYINT": true, "SMALLINT": true, "INTEGER": true, "UTINYINT": true, "USMALLINT": true,
	"UINTEGER": true, "BIGINT": true, "FLOAT": true, "DOUBLE": true,
}

func jsonExpression(c Column) string {
	name := sqltext.Quote(c.Name)
	switch {
	case native[c.Type]:
		return name
	case nested(c.Type):
		return sqltext.JSONText(name, sqltext.TypeOf(c.Type))
	default:
		return "CAST(" + name + " AS VARCHAR)"
	}
}

// nested reports whether values of the type are written as JSON.
func nested(t string) bool {
	return t == "JSON" || strings.HasSuffix(t, "]") || strings.HasPrefix(t, "STRUCT(") ||
		strings.HasPrefix(t, "MAP(") || strings.HasPrefix(t, "UNION(")
}

// whole reports whether values of the type are whole numbers that an int64 may not hold, such as a sum's.
func whole(t string) bool {
	return slices.Contains([]string{"UBIGINT", "HUGEINT", "UHUGEINT"}, t) ||
		strings.HasPrefix(t, "DECIMAL(") && strings.HasSuffix(t, ",0)")
}

// wholeValue returns a whole number, or its text beyond what a float64 holds exactly.
func wholeValue(text string) any {
	const exact = 1 << 53
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n <= exact && n >= -exact {
		return n
	}
	return text
}

// finite returns a number, or its text if JSON has none for it.
func finite(v any, f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return v
}

func jsonValue(c Column, v any) any {
	switch v := v.(type) {
	case int64:
		return wholeValue(fmt.Sprint(v))
	case float64:
		return finite(v, v)
	case float32:
		return finite(v, float64(v))
	case string:
		if nested(c.Type) && json.Valid([]byte(v)) {
			return json.RawMessage(v)
		}
		if whole(c.Type) {
			return wholeValue(v)
		}
	}
	return v
}
