package postgresquery

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// statement is a query with parameters in place of its placeholders.
type statement struct {
	text string   // one statement without a semicolon; ends in a newline if it ends in a comment
	uses []string // names of the placeholders, by the number of their parameter
}

// placeholders are what a query may name of its partition, with the type of the value.
var placeholders = map[string]string{"partition": "text", "start": "timestamptz", "end": "timestamptz"}

var (
	placeholder = regexp.MustCompile(`^\{(partition|start|end)\}`)
	anywhere    = regexp.MustCompile(`\{(partition|start|end)\}`)
	dollarQuote = regexp.MustCompile(`^\$([A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$`)
	word        = regexp.MustCompile(`^[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*`)
)

// parse reads a query as PostgreSQL does: it finds the placeholders that are not inside of quotes or comments, and what
// ends the statement. A wrong query is a fault.Invalid; the database finds what is wrong with the rest.
func parse(query string) (s statement, err error) {
	var (
		b     strings.Builder
		first string // token that is neither space nor comment
		depth int
		ended bool
	)
	for rest := query; rest != ""; {
		taken, comment, err := token(rest)
		if err != nil {
			return s, fault.New(fault.Invalid, "line %d: %w", lineOf(query, len(query)-len(rest)), err)
		}
		part := rest[:taken]
		rest = rest[taken:]

		blank := comment || strings.TrimSpace(part) == ""
		switch name := placeholder.FindStringSubmatch(part); {
		case ended && !blank:
			return s, fault.New(fault.Invalid, "there is more than one statement")
		case name != nil:
			part = s.use(name[1])
		case part == ";":
			ended, part = true, ""
		case part == "{":
			return s, fault.New(fault.Invalid, "line %d: { begins no value: there are {partition}, {start} and {end}",
				lineOf(query, len(query)-len(rest)-1))
		case part == "(":
			depth++
		case part == ")":
			if depth--; depth < 0 {
				return s, fault.New(fault.Invalid, "line %d: nothing opens this parenthesis",
					lineOf(query, len(query)-len(rest)-1))
			}
		}
		if first == "" && !blank {
			first = part
		}
		b.WriteString(part)
	}

	switch s.text = b.String(); {
	case first == "":
		return s, fault.New(fault.Invalid, "there is no statement")
	case !slices.Contains(beginnings, strings.ToUpper(first)):
		return s, fault.New(fault.Invalid, "it begins with %s, and has to be one SELECT", first).
			WithHint("WITH, VALUES and TABLE begin one, too")
	}
	return s, nil
}

// beginnings are the first tokens of a query.
var beginnings = []string{"SELECT", "WITH", "VALUES", "TABLE", "("}

// use returns the parameter of a placeholder.
func (s *statement) use(name string) string {
	at := slices.Index(s.uses, name)
	if at < 0 {
		at = len(s.uses)
		s.uses = append(s.uses, name)
	}
	return fmt.Sprintf("$%d::%s", at+1, placeholders[name])
}

// token returns the length of the first token of a text, which is not empty.
func token(text string) (length int, comment bool, err error) {
	switch {
	case strings.HasPrefix(text, "--"):
		if end := strings.IndexByte(text, '\n'); end >= 0 {
			return end + 1, true, nil
		}
		return len(text), true, nil
	case strings.HasPrefix(text, "/*"):
		length, err = blockComment(text)
		return length, true, err
	case text[0] == '\'' || text[0] == '"':
		length, err = quoted(text, 0, false)
		return length, false, err
	case (text[0] == 'e' || text[0] == 'E') && strings.HasPrefix(text[1:], "'"):
		length, err = quoted(text, 1, true)
		return length, false, err
	case text[0] == '$':
		length, err = dollar(text)
		return length, false, err
	case word.MatchString(text):
		return len(word.FindString(text)), false, nil
	case placeholder.MatchString(text):
		return len(placeholder.FindString(text)), false, nil
	}
	return 1, false, nil
}

var errOpen = errors.New("a quote or comment that begins here does not end")

// quoted returns the length of what stands in quotes, the first of which is at a place.
func quoted(text string, at int, backslashes bool) (int, error) {
	quote := text[at]
	for i := at + 1; i < len(text); i++ {
		switch {
		case backslashes && text[i] == '\\':
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1, inQuotes(text[:i+1])
		}
	}
	return 0, errOpen
}

// dollar returns the length of what stands between dollar quotes.
func dollar(text string) (int, error) {
	tag := dollarQuote.FindString(text)
	if tag == "" {
		return 0, errors.New("$ begins no text: the values of a query are {partition}, {start} and {end}")
	}
	end := strings.Index(text[len(tag):], tag)
	if end < 0 {
		return 0, errOpen
	}
	length := end + 2*len(tag)
	return length, inQuotes(text[:length])
}

// inQuotes refuses a placeholder in quotes, which would be text.
func inQuotes(text string) error {
	if found := anywhere.FindString(text); found != "" {
		return fmt.Errorf("%s is in quotes: it is a value, so write it without them", found)
	}
	return nil
}

// blockComment returns the length of a comment, which may hold others.
func blockComment(text string) (int, error) {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			i++
			if depth--; depth == 0 {
				return i + 1, nil
			}
		}
	}
	return 0, errOpen
}

// lineOf returns the number of the line of a byte, from 1.
func lineOf(text string, at int) int { return strings.Count(text[:at], "\n") + 1 }
