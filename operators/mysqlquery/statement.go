package mysqlquery

import (
	"errors"
	"strings"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/operators/remotequery"
)

// dialect is how MySQL and MariaDB read a statement, with the sql_mode of settings.
var dialect = remotequery.Dialect{Token: token, Beginnings: []string{"SELECT", "WITH", "VALUES", "TABLE", "("},
	Also: "WITH, VALUES and TABLE", Refused: refused, Parameter: parameter}

// parameter returns the parameter of a placeholder, whose value is sent once for each. A key is a parameter without a
// type, which takes the collation of what it is compared with.
func parameter(uses *[]string, name string) string {
	*uses = append(*uses, name)
	if name == "partition" {
		return "?"
	}
	return "CAST(? AS DATETIME(6))"
}

// refused says why a word may not be in a query: a transaction that only reads writes files and takes locks all the
// same.
func refused(word, before string) string {
	before = strings.ToUpper(before)
	switch {
	case before == ".":
		return "" // the name of a column
	case word == "INTO":
		return "INTO writes the rows elsewhere: the query has to return them"
	case (word == "UPDATE" || word == "SHARE") && before == "FOR", word == "LOCK":
		return "the query may not lock rows: leave out FOR UPDATE, FOR SHARE and LOCK IN SHARE MODE"
	}
	return ""
}

var word = late.Pattern(`^[A-Za-z0-9_$\x80-\xff]+`)

// token returns the length of the first token of a text, which is not empty.
func token(text string) (length int, comment bool, err error) {
	switch {
	case text[0] == '#', strings.HasPrefix(text, "--") && (len(text) == 2 || text[2] <= ' '):
		return remotequery.LineComment(text), true, nil
	case strings.HasPrefix(text, "/*!"), strings.HasPrefix(text, "/*M!"):
		return 0, false, errors.New("the server would run what is in this comment: write it without /*! and */")
	case strings.HasPrefix(text, "/*"):
		end := strings.Index(text[2:], "*/")
		if end < 0 {
			return 0, false, remotequery.ErrOpen
		}
		return end + 4, true, nil
	case text[0] == '\'' || text[0] == '"':
		length, err = remotequery.Quoted(text, 0, true)
		return length, false, err
	case text[0] == '`':
		length, err = remotequery.Quoted(text, 0, false)
		return length, false, err
	case text[0] == '?':
		return 0, false, errors.New("? stands for no value: the values of a query are {partition}, {start} and {end}")
	case word.MatchString(text):
		return len(word.FindString(text)), false, nil
	}
	return max(remotequery.PlaceholderLength(text), 1), false, nil
}
