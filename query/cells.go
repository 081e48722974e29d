package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/storage"
)

// Values of rows stay as the server wrote them, also in its clients: a number keeps its digits, and a map, which is an
// object here, the order of its entries. Objects and lists are json.RawMessage.

// UnmarshalJSON reads rows as they are.
func (r *Rows) UnmarshalJSON(text []byte) error {
	type plain Rows
	into := struct {
		*plain
		Rows [][]json.RawMessage `json:"rows"`
	}{plain: (*plain)(r)}
	err := json.Unmarshal(text, &into)
	if err == nil {
		r.Rows, err = cellsOf(into.Rows)
	}
	return err
}

// UnmarshalJSON reads rows as they are.
func (a *Answer) UnmarshalJSON(text []byte) error {
	type plain Answer
	into := struct {
		*plain
		Rows [][]json.RawMessage `json:"rows"`
	}{plain: (*plain)(a)}
	err := json.Unmarshal(text, &into)
	if err == nil {
		a.Rows, err = cellsOf(into.Rows)
	}
	return err
}

func cellsOf(rows [][]json.RawMessage) ([][]any, error) {
	all := make([][]any, len(rows))
	for i, row := range rows {
		all[i] = make([]any, len(row))
		for n, text := range row {
			if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
				all[i][n] = text
				continue
			}
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.UseNumber()
			if err := decoder.Decode(&all[i][n]); err != nil {
				return nil, fmt.Errorf("read row %d: %w", i, err)
			}
			if number, ok := all[i][n].(json.Number); ok {
				all[i][n] = plain(number)
			}
		}
	}
	return all, nil
}

// plain returns a number as a float64 if that is written in the same way.
func plain(n json.Number) any {
	f, err := n.Float64()
	if err == nil && strconv.FormatFloat(f, 'f', -1, 64) == n.String() {
		return f
	}
	return n
}

// answerOf returns rows that a child wrote.
func answerOf(columns []storage.Column, lines []json.RawMessage) (a Answer, err error) {
	rows := make([][]json.RawMessage, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal(line, &rows[i]); err != nil {
			return a, fmt.Errorf("read row %d: %w", i, err)
		}
	}
	a.Columns = columns
	a.Rows, err = cellsOf(rows)
	return a, err
}

// Text returns a value of a row as text; NULL is empty.
func Text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return literal.Float(v)
	case json.Number:
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), "eE") {
			return literal.Float(f)
		}
		return v.String()
	case json.RawMessage:
		return string(v)
	}

	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}
