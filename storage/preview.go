package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Preview returns rows of published partitions, partition by partition in the given order, as values that JSON holds
// without loss. Numbers that a float64 cannot hold exactly, instants, bytes and the like are text in DuckDB's format;
// lists and structs are JSON.
func (s *Storage) Preview(
	ctx context.Context, g Generation, partitions []Partition, limit, offset int,
) ([]Column, [][]any, error) {
	if limit < 0 || offset < 0 {
		return nil, nil, fault.New(fault.Invalid, "limit and offset must not be negative")
	}
	b, err := s.of(g.Kind)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "dagctl-preview-*")
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	defer os.RemoveAll(dir)

	local, err := b.head(ctx, g, partitions, offset+limit, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	if len(local) == 0 {
		return nil, nil, nil
	}

	session, err := duck.OpenData(ctx, duck.Data{Scope: relations.UTC,
		Limits: duck.Limits{Threads: 1, Memory: 512 << 20}, Files: local})
	if err != nil {
		return nil, nil, err
	}
	defer session.Close()

	columns, rows, err := JSONRows(ctx, session, "SELECT * FROM "+duck.ReadParquet(local), limit, offset)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	return columns, rows, nil
}

// JSONRows runs a query and returns its rows as values that JSON holds without loss, as Preview does.
func JSONRows(ctx context.Context, session *duck.Session, query string, limit, offset int) ([]Column, [][]any, error) {
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
	ctx context.Context, session *duck.Session, query string, limit, offset int, each func(row []any) error,
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
	return columns, duck.WithoutValues(rows.Err())
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
		return duck.JSONText(name, sqltext.TypeOf(c.Type))
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
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprint(v)
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
