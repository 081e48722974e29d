package duck

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// WriteCSV writes the query's rows, in the query's order, as CSV with a line of names. Its memory does not grow with
// the rows. Values are those of JSONRows as text: NULL is an empty field, and lists, structs and maps are JSON.
func (s *Session) WriteCSV(ctx context.Context, query string, to io.Writer, most ArrowLimits) (Streamed, error) {
	return s.writeText(ctx, query, most, func(columns []Column) (rowWriter, error) {
		out := csv.NewWriter(to)
		names := make([]string, len(columns))
		for i, c := range columns {
			names[i] = c.Name
		}
		return &csvRows{out, columns, names}, out.Write(names)
	})
}

// WriteJSONLines is like WriteCSV, with each row as a JSON object in a line of its own. Values are those of JSONRows.
func (s *Session) WriteJSONLines(ctx context.Context, query string, to io.Writer, most ArrowLimits) (Streamed, error) {
	return s.writeText(ctx, query, most, func(columns []Column) (rowWriter, error) {
		keys, known := make([][]byte, len(columns)), map[string]bool{}
		for i, c := range columns {
			if known[c.Name] {
				return nil, fault.New(fault.Invalid, "two columns are called %q, which a JSON object cannot have",
					c.Name).
					WithHint("name one of them with AS")
			}
			known[c.Name] = true
			key, err := json.Marshal(c.Name)
			if err != nil {
				return nil, err
			}
			keys[i] = append(key, ':')
		}
		return &jsonLines{to: to, columns: columns, keys: keys}, nil
	})
}

// rowWriter writes rows, whose values are DuckDB's text; a missing one is NULL.
type rowWriter interface {
	row(values []*string) error
	end() error
}

// writeText writes the query's rows by their text.
func (s *Session) writeText(ctx context.Context, query string, most ArrowLimits,
	begin func(columns []Column) (rowWriter, error)) (Streamed, error) {
	columns, err := s.Describe(ctx, query)
	if err != nil {
		return Streamed{}, err
	}
	out, err := begin(columns)
	if err != nil {
		return Streamed{}, err
	}

	texts := make([]string, len(columns))
	for i, c := range columns {
		texts[i] = fmt.Sprintf("CAST(%s AS VARCHAR) AS c%d", textExpression(c), i)
	}
	done, err := s.writeBatches(ctx, fmt.Sprintf("SELECT %s FROM (%s)", strings.Join(texts, ", "), query), most,
		func(*arrow.Schema) (batches, error) { return textBatches{out}, nil })
	done.Columns = columns
	return done, err
}

// textExpression returns an expression for a column whose text is the value.
func textExpression(c Column) string {
	if nested(c.Type) {
		return sqltext.JSONText(sqltext.Quote(c.Name), sqltext.TypeOf(c.Type))
	}
	return sqltext.Quote(c.Name)
}

// textBatches hands batches on, row by row.
type textBatches struct{ out rowWriter }

func (t textBatches) Close() error { return t.out.end() }

func (t textBatches) Write(batch arrow.RecordBatch) error {
	columns := make([]*array.String, batch.NumCols())
	for i := range columns {
		texts, ok := batch.Column(i).(*array.String)
		if !ok {
			return fmt.Errorf("column %d is no text but %T", i, batch.Column(i))
		}
		columns[i] = texts
	}

	values := make([]*string, len(columns))
	for row := range int(batch.NumRows()) {
		for i, c := range columns {
			values[i] = nil
			if !c.IsNull(row) {
				text := c.Value(row)
				values[i] = &text
			}
		}
		if err := t.out.row(values); err != nil {
			return err
		}
	}
	return nil
}

// csvRows writes rows as CSV.
type csvRows struct {
	out     *csv.Writer
	columns []Column
	record  []string
}

func (c *csvRows) end() error {
	c.out.Flush()
	return c.out.Error()
}

func (c *csvRows) row(values []*string) error {
	for i, text := range values {
		switch t := c.columns[i].Type; {
		case text == nil:
			c.record[i] = ""
		case t == "DOUBLE" || t == "FLOAT":
			number, err := floatOf(*text, t)
			if err != nil {
				return err
			}
			if f, ok := number.(float64); ok {
				number = literal.Float(f)
			}
			c.record[i] = fmt.Sprint(number)
		default:
			c.record[i] = *text
		}
	}
	return c.out.Write(c.record)
}

// floatOf returns a number, or its text if JSON has none for it, by DuckDB's text. A FLOAT becomes the shortest number
// that stands for it.
func floatOf(text, t string) (any, error) {
	bits := 64
	if t == "FLOAT" {
		bits = 32
	}
	f, err := strconv.ParseFloat(text, bits)
	if err != nil {
		return nil, fmt.Errorf("read a number: %w", err)
	}
	if bits == 32 {
		if shortest, err := strconv.ParseFloat(strconv.FormatFloat(f, 'g', -1, 32), 64); err == nil {
			f = shortest
		}
	}
	return finite(f, f), nil
}

// jsonLines writes rows as JSON objects.
type jsonLines struct {
	to      io.Writer
	columns []Column
	keys    [][]byte
	line    bytes.Buffer
}

func (j *jsonLines) end() error { return nil }

func (j *jsonLines) row(values []*string) error {
	j.line.Reset()
	for i, text := range values {
		between := byte(',')
		if i == 0 {
			between = '{'
		}
		j.line.WriteByte(between)
		j.line.Write(j.keys[i])

		value, err := valueOf(j.columns[i], text)
		if err != nil {
			return err
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			return err
		}
		j.line.Write(encoded)
	}

	j.line.WriteString("}\n")
	_, err := j.to.Write(j.line.Bytes())
	return err
}

// valueOf returns a value as JSONRows does, by its text.
func valueOf(c Column, text *string) (any, error) {
	switch {
	case text == nil:
		return nil, nil
	case c.Type == "BOOLEAN":
		return *text == "true", nil
	case c.Type == "DOUBLE" || c.Type == "FLOAT":
		return floatOf(*text, c.Type)
	case native[c.Type]:
		return wholeValue(*text), nil
	}
	return jsonValue(c, *text), nil
}
