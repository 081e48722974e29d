package deploy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// columns are rows that go over to PostgreSQL as one array of texts for each column, which takes half as long as one
// JSON array of objects.
type columns struct {
	names, types []string
	values       [][]pgtype.Text // by column
	err          error
}

// newColumns returns no rows of columns that are each described as "name type".
func newColumns(rows int, described ...string) *columns {
	c := &columns{values: make([][]pgtype.Text, len(described))}
	for i, d := range described {
		name, kind, _ := strings.Cut(d, " ")
		c.names, c.types = append(c.names, name), append(c.types, kind)
		c.values[i] = make([]pgtype.Text, 0, rows)
	}
	return c
}

// add adds a row: a value for each column. Of a column of any type but arrays of text, what is not a plain value goes
// over as JSON; nil is NULL.
func (c *columns) add(row ...any) {
	for i, value := range row {
		text, err := columnText(value, c.types[i])
		if err != nil && c.err == nil {
			c.err = fmt.Errorf("column %s: %w", c.names[i], err)
		}
		c.values[i] = append(c.values[i], text)
	}
}

func columnText(value any, kind string) (pgtype.Text, error) {
	switch v := value.(type) {
	case nil:
		return pgtype.Text{}, nil
	case string:
		return pgtype.Text{String: v, Valid: true}, nil
	case uuid.UUID:
		return pgtype.Text{String: v.String(), Valid: true}, nil
	case int:
		return pgtype.Text{String: strconv.Itoa(v), Valid: true}, nil
	case bool:
		return pgtype.Text{String: strconv.FormatBool(v), Valid: true}, nil
	case []uuid.UUID:
		return textArray(v, uuid.UUID.String), nil
	case []string:
		if kind == "text[]" {
			return textArray(v, func(s string) string { return s }), nil
		}
	}
	text, err := json.Marshal(value)
	return pgtype.Text{String: string(text), Valid: true}, err
}

var quoteElement = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// textArray returns an array as PostgreSQL reads it.
func textArray[T any](values []T, text func(T) string) pgtype.Text {
	if values == nil {
		return pgtype.Text{}
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, value := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + quoteElement.Replace(text(value)) + `"`)
	}
	b.WriteByte('}')
	return pgtype.Text{String: b.String(), Valid: true}
}

// list returns the columns' names, for the list of an INSERT.
func (c *columns) list() string { return strings.Join(c.names, ", ") }

// typed returns the columns as expressions of the rows that from returns.
func (c *columns) typed() string {
	typed := make([]string, len(c.names))
	for i, name := range c.names {
		typed[i] = "w." + name + "::" + c.types[i]
	}
	return strings.Join(typed, ", ")
}

// from returns the rows as an item of FROM, with parameters after so many others, and its arguments. A column's NULLs
// at the end stay here: unnest adds them.
func (c *columns) from(others ...any) (sql string, args []any) {
	args = others
	arrays := make([]string, len(c.values))
	for i, values := range c.values {
		for n := len(values); n > 0 && !values[n-1].Valid && i > 0; n-- { // the first has no NULL
			values = values[:n-1]
		}
		args = append(args, values)
		arrays[i] = fmt.Sprintf("$%d::text[]", len(args))
	}
	return "unnest(" + strings.Join(arrays, ", ") + ") AS w(" + c.list() + ")", args
}
