package textfile

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// quarantineColumns are those of a file of bad rows.
var quarantineColumns = []Column{{"file", "VARCHAR"}, {"line", "BIGINT"}, {"column", "VARCHAR"}, {"value", "VARCHAR"},
	{"reason", "VARCHAR"}, {"row", "VARCHAR"}}

// Quarantine is a Parquet file of rows that do not fit.
type Quarantine struct{ w *writer }

// NewQuarantine begins the file.
func NewQuarantine(target string) (*Quarantine, error) {
	w, err := newWriter(target, quarantineColumns)
	return &Quarantine{w}, err
}

// Add adds a row to the file.
func (q *Quarantine) Add(b Bad) error {
	text := func(s string) value {
		if s == "" {
			return null
		}
		return value{text: []byte(visible(s))}
	}
	return q.w.append([]value{text(b.File), {i: b.Line}, text(b.Column), text(b.Value), text(b.Reason), text(b.Row)})
}

// visible returns a text whose bytes that are not UTF-8 are written as \xE9.
func visible(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		if _, size := utf8.DecodeRuneInString(text[i:]); r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02X`, text[i])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Close ends the file.
func (q *Quarantine) Close() error { return q.w.close() }
