package postgresquery

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/operators/remotequery"
)

// dialect is how PostgreSQL reads a statement.
var dialect = remotequery.Dialect{Token: token, Beginnings: []string{"SELECT", "WITH", "VALUES", "TABLE", "("},
	Also: "WITH, VALUES and TABLE", Parameter: parameter}

// placeholders are what a query may name of its partition, with the type of the value.
var placeholders = map[string]string{"partition": "text", "start": "timestamptz", "end": "timestamptz"}

var (
	dollarQuote = late.Pattern(`^\$([A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$`)
	word        = late.Pattern(`^[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*`)
)

// parameter returns the parameter of a placeholder.
func parameter(uses *[]string, name string) string {
	at := slices.Index(*uses, name)
	if at < 0 {
		at = len(*uses)
		*uses = append(*uses, name)
	}
	return fmt.Sprintf("$%d::%s", at+1, placeholders[name])
}

// token returns the length of the first token of a text, which is not empty.
func token(text string) (length int, comment bool, err error) {
	switch {
	case strings.HasPrefix(text, "--"):
		return remotequery.LineComment(text), true, nil
	case strings.HasPrefix(text, "/*"):
		length, err = blockComment(text)
		return length, true, err
	case text[0] == '\'' || text[0] == '"':
		length, err = remotequery.Quoted(text, 0, false)
		return length, false, err
	case (text[0] == 'e' || text[0] == 'E') && strings.HasPrefix(text[1:], "'"):
		length, err = remotequery.Quoted(text, 1, true)
		return length, false, err
	case text[0] == '$':
		length, err = dollar(text)
		return length, false, err
	case word.MatchString(text):
		return len(word.FindString(text)), false, nil
	}
	return max(remotequery.PlaceholderLength(text), 1), false, nil
}

// dollar returns the length of what stands between dollar quotes.
func dollar(text string) (int, error) {
	tag := dollarQuote.FindString(text)
	if tag == "" {
		return 0, errors.New("$ begins no text: the values of a query are {partition}, {start} and {end}")
	}
	end := strings.Index(text[len(tag):], tag)
	if end < 0 {
		return 0, remotequery.ErrOpen
	}
	length := end + 2*len(tag)
	return length, remotequery.InQuotes(text[:length])
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
	return 0, remotequery.ErrOpen
}
