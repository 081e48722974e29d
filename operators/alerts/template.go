package alerts

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// Template is text with the names of columns in braces: "{host} is full". Two braces stand for one.
type Template []part

// part is text, or the value of a column.
type part struct {
	text   string
	column bool
}

// ParseTemplate reads a template.
func ParseTemplate(text string) (t Template, err error) {
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case (c == '{' || c == '}') && i+1 < len(text) && text[i+1] == c:
			plain.WriteByte(c)
			i++
		case c == '{':
			length := strings.IndexByte(text[i:], '}')
			if length < 2 {
				return nil, fmt.Errorf("%q has a { without the name of a column and }: write {{ for a brace", text)
			}
			t = append(t, part{text: plain.String()}, part{text: text[i+1 : i+length], column: true})
			plain.Reset()
			i += length
		case c == '}':
			return nil, fmt.Errorf("%q has a } without {: write }} for a brace", text)
		default:
			plain.WriteByte(c)
		}
	}

	t = append(t, part{text: plain.String()})
	return slices.DeleteFunc(t, func(p part) bool { return p.text == "" }), nil
}

// Columns returns the names of the columns, each once.
func (t Template) Columns() (names []string) {
	for _, p := range t {
		if p.column && !HasColumn(names, p.text) {
			names = append(names, p.text)
		}
	}
	return names
}

// HasColumn reports whether a list of names has that of a column.
func HasColumn(names []string, name string) bool {
	return slices.ContainsFunc(names, func(have string) bool { return sqltext.Same(have, name) })
}

// Fill returns the text with the values of columns.
func (t Template) Fill(value func(column string) string) string {
	var filled strings.Builder
	for _, p := range t {
		if p.column {
			filled.WriteString(value(p.text))
		} else {
			filled.WriteString(p.text)
		}
	}
	return filled.String()
}
