package webhook

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Row is one row of the input, as a JSON object.
type Row struct {
	Number int64 // from 1
	Text   json.RawMessage
	values map[string]json.RawMessage
}

// maxKey is the longest key of a row, in bytes.
const maxKey = 1000

// Value returns the value of a column as JSON.
func (r Row) Value(column string) (json.RawMessage, error) {
	value, ok := r.values[column]
	if !ok {
		return nil, operators.Permanent(fault.New(fault.Invalid, "the input has no column %q", column))
	}
	return value, nil
}

// String returns the value of a column as text: strings as they are, NULL as "", everything else as JSON.
func (r Row) String(column string) (string, error) {
	value, err := r.Value(column)
	if err != nil {
		return "", err
	}
	var text *string
	if json.Unmarshal(value, &text) == nil {
		if text == nil {
			return "", nil
		}
		return *text, nil
	}
	return string(value), nil
}

// Key returns the key of the row: the text of one column, or a JSON list of the texts of several.
func (r Row) Key(columns []string) (string, error) {
	texts := make([]string, len(columns))
	for i, column := range columns {
		value, err := r.Value(column)
		if err == nil && string(value) == "null" {
			err = operators.Permanent(fault.New(fault.Invalid, "row %d has no %s, which is of the key", r.Number,
				column))
		}
		if err != nil {
			return "", err
		}
		if texts[i], err = r.String(column); err != nil {
			return "", err
		}
	}

	key := texts[0]
	if len(texts) > 1 {
		list, err := json.Marshal(texts)
		if err != nil {
			return "", err
		}
		key = string(list)
	}
	if len(key) > maxKey {
		return "", operators.Permanent(fault.New(fault.TooLarge, "row %d has a key of %d bytes; %d are allowed",
			r.Number, len(key), maxKey).WithHint("name fewer or shorter columns as `key`"))
	}
	return key, nil
}

// Body returns an object with some columns of the row; all: none are named.
func (r Row) Body(columns []string) (json.RawMessage, error) {
	if len(columns) == 0 {
		return r.Text, nil
	}

	fields := make([]string, len(columns))
	for i, column := range columns {
		value, err := r.Value(column)
		if err != nil {
			return nil, err
		}
		name, err := json.Marshal(column)
		if err != nil {
			return nil, err
		}
		fields[i] = string(name) + ":" + string(value)
	}
	return json.RawMessage("{" + strings.Join(fields, ",") + "}"), nil
}

// readRow reads a line of NDJSON.
func readRow(number int64, line []byte) (Row, error) {
	r := Row{Number: number, Text: bytes.Clone(bytes.TrimSpace(line))}
	return r, json.Unmarshal(r.Text, &r.values)
}
