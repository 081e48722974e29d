package remotequery

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/operators"
)

// Statement is a query with parameters in place of its placeholders.
type Statement struct {
	Text string   // one statement without a semicolon; ends in a newline if it ends in a comment
	Uses []string // names of the placeholders, in the order of the parameters
}

// Dialect is how a kind of database reads a statement.
type Dialect struct {
	// Token returns the length of the first token of a text, which is not empty. Words and placeholders are tokens as a
	// whole.
	Token func(text string) (length int, comment bool, err error)
	// Beginnings are the first tokens of a query, in capitals, and Also is how messages name those that are not SELECT.
	Beginnings []string
	Also       string
	// Refused says why a word outside of quotes, in capitals, may not be in a query, given the token before it; empty:
	// it may.
	Refused func(word, before string) string
	// Parameter returns the parameter of a placeholder. It adds the placeholder to uses, or finds it there.
	Parameter func(uses *[]string, name string) string
}

var (
	placeholder = late.Pattern(`^\{(partition|start|end)\}`)
	anywhere    = late.Pattern(`\{(partition|start|end)\}`)
)

// Parse reads a query as the database does: it finds the placeholders that are not inside of quotes or comments, and
// what ends the statement. A wrong query is a fault.Invalid; the database finds what is wrong with the rest.
func (d Dialect) Parse(query string) (s Statement, err error) {
	var (
		b             strings.Builder
		first, before string // tokens that are neither space nor comment
		depth         int
		ended         bool
	)
	for rest := query; rest != ""; {
		at := func() int { return lineOf(query, len(query)-len(rest)) }
		taken, comment, err := d.Token(rest)
		if err != nil {
			return s, fault.New(fault.Invalid, "line %d: %w", at(), err)
		}
		part := rest[:taken]

		blank := comment || strings.TrimSpace(part) == ""
		switch name := placeholder.FindStringSubmatch(part); {
		case ended && !blank:
			return s, fault.New(fault.Invalid, "there is more than one statement")
		case name != nil:
			part = d.Parameter(&s.Uses, name[1])
		case part == ";":
			ended, part = true, ""
		case part == "{":
			return s, fault.New(fault.Invalid, "line %d: { begins no value: there are {partition}, {start} and {end}",
				at())
		case part == "(":
			depth++
		case part == ")":
			if depth--; depth < 0 {
				return s, fault.New(fault.Invalid, "line %d: nothing opens this parenthesis", at())
			}
		case !blank && d.Refused != nil:
			if why := d.Refused(strings.ToUpper(part), before); why != "" {
				return s, fault.New(fault.Invalid, "line %d: %s", at(), why)
			}
		}
		if !blank {
			if before = part; first == "" {
				first = part
			}
		}
		rest = rest[taken:]
		b.WriteString(part)
	}

	switch s.Text = b.String(); {
	case first == "":
		return s, fault.New(fault.Invalid, "there is no statement")
	case !slices.Contains(d.Beginnings, strings.ToUpper(first)):
		return s, fault.New(fault.Invalid, "it begins with %s, and has to be one SELECT", first).
			WithHint("%s begin one, too", d.Also)
	}
	return s, nil
}

// ErrOpen is the error of a Token that has no end.
var ErrOpen = errors.New("a quote or comment that begins here does not end")

// PlaceholderLength returns the length of a placeholder at the beginning of a text; 0: there is none.
func PlaceholderLength(text string) int { return len(placeholder.FindString(text)) }

// Quoted returns the length of what stands in quotes, the first of which is at a place of the text. With backslashes,
// they escape.
func Quoted(text string, at int, backslashes bool) (int, error) {
	quote := text[at]
	for i := at + 1; i < len(text); i++ {
		switch {
		case backslashes && text[i] == '\\':
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1, InQuotes(text[:i+1])
		}
	}
	return 0, ErrOpen
}

// InQuotes refuses a placeholder in quotes, which would be text.
func InQuotes(text string) error {
	if found := anywhere.FindString(text); found != "" {
		return fmt.Errorf("%s is in quotes: it is a value, so write it without them", found)
	}
	return nil
}

// LineComment returns the length of a comment that ends with its line.
func LineComment(text string) int {
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		return end + 1
	}
	return len(text)
}

// lineOf returns the number of the line of a byte, from 1.
func lineOf(text string, at int) int { return strings.Count(text[:at], "\n") + 1 }

// Values returns the parameters of a statement as text, with times in a layout.
func (s Statement) Values(t *operators.Task, layout string) ([]string, error) {
	p := t.Partition
	if p == nil {
		p = &operators.PartitionRange{Key: dag.WholeKey}
	}

	values := make([]string, len(s.Uses))
	for i, name := range s.Uses {
		at := map[string]*time.Time{"start": p.Start, "end": p.End}[name]
		switch {
		case name == "partition":
			values[i] = p.Key
		case at == nil:
			return nil, operators.Permanent(fault.New(fault.Invalid, "partition %q has no {%s}", p.Key, name))
		default:
			values[i] = at.UTC().Format(layout)
		}
	}
	return values, nil
}
