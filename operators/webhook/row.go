package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Row is one row of the input, as a JSON object.
type Row struct {
	Number int64 // from 1
	Text   json.RawMessage
	values map[string]json.RawMessage
	zoned  map[string]bool // columns of the type TIMESTAMP WITH TIME ZONE
	from   string          // "payload", or "" for a row of the input
}

// name returns how errors name the row.
func (r Row) name() string {
	if r.from != "" {
		return "the " + r.from
	}
	return fmt.Sprintf("row %d", r.Number)
}

// maxKey is the longest key of a row, in bytes.
const maxKey = 1000

// Value returns the value of a column as JSON.
func (r Row) Value(column string) (json.RawMessage, error) {
	value, ok := r.values[column]
	if !ok {
		if r.from != "" {
			return nil, operators.Permanent(fault.New(fault.Invalid, "the %s has no field %q", r.from, column))
		}
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

// Key returns the key of the row: the canonical text of one column, or a JSON list of those of several. It does not
// depend on how many digits a type has after the point, or on the time zone of the job.
func (r Row) Key(columns []string) (string, error) {
	texts := make([]string, len(columns))
	for i, column := range columns {
		value, err := r.Value(column)
		if err == nil && string(value) == "null" {
			err = operators.Permanent(fault.New(fault.Invalid, "%s has no %s, which is of the key", r.name(), column))
		}
		if err != nil {
			return "", err
		}
		text, err := r.String(column)
		if err != nil {
			return "", err
		}
		switch {
		case r.zoned[column]:
			texts[i] = inUTC(text)
		case value[0] != '"':
			texts[i] = shortest(text)
		default:
			texts[i] = text
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
		return "", operators.Permanent(fault.New(fault.TooLarge, "%s has a key of %d bytes; %d are allowed",
			r.name(), len(key), maxKey).WithHint("name fewer or shorter columns as `key`"))
	}
	return key, nil
}

// shortest returns a number without zeros at the end of its fraction.
func shortest(number string) string {
	if !strings.Contains(number, ".") || strings.ContainsAny(number, "eE") {
		return number
	}
	return strings.TrimSuffix(strings.TrimRight(number, "0"), ".")
}

// inUTC returns the text of a moment in UTC. One that is beyond the years 0 to 9999 has no zone, or stays as it is.
func inUTC(text string) string {
	for _, offset := range []string{"-07", "-07:00", "-07:00:00"} {
		if at, err := time.Parse("2006-01-02 15:04:05"+offset, text); err == nil {
			return at.UTC().Format("2006-01-02 15:04:05.999999-07")
		}
	}
	return text
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

// readRow reads a line of NDJSON. NaN and infinities, which JSON does not have, become text.
func readRow(number int64, line []byte, zoned map[string]bool) (Row, error) {
	r := Row{Number: number, Text: bytes.Clone(bytes.TrimSpace(line)), zoned: zoned}
	if !json.Valid(r.Text) {
		r.Text = quoteWords(r.Text)
	}
	return r, json.Unmarshal(r.Text, &r.values)
}

// quoteWords puts the words that stand for no number of JSON between quotes.
func quoteWords(text []byte) []byte {
	var out bytes.Buffer
	inText := false
	for i := 0; i < len(text); i++ {
		if c := text[i]; inText {
			out.WriteByte(c)
			switch {
			case c == '\\' && i+1 < len(text):
				i++
				out.WriteByte(text[i])
			case c == '"':
				inText = false
			}
			continue
		}

		word := ""
		for _, w := range []string{"NaN", "Infinity", "-Infinity"} {
			if bytes.HasPrefix(text[i:], []byte(w)) {
				word = w
			}
		}
		if word != "" {
			out.WriteString(`"` + word + `"`)
			i += len(word) - 1
			continue
		}
		inText = text[i] == '"'
		out.WriteByte(text[i])
	}
	return out.Bytes()
}
