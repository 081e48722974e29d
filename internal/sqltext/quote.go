// Package sqltext writes and reads the parts of SQL texts: names, literals, and the types of columns, without a
// database. DuckDB's types are those of datasets: columns have their names, which TypeOf reads.
package sqltext

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Quote returns a name as an identifier.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// QuoteAll returns names as a list of identifiers.
func QuoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Quote(n)
	}
	return strings.Join(quoted, ", ")
}

// Literal returns a text, a boolean, an integer, an instant or NULL as a literal. In DuckDB, a backslash in '...' is a
// backslash, so only quotes need escaping, by doubling them.
func Literal(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case time.Time:
		return "TIMESTAMPTZ '" + v.UTC().Format("2006-01-02 15:04:05.999999") + "+00'"
	case string:
		return "'" + strings.ReplaceAll(v, "'", "''") + "'"
	default:
		return Literal(fmt.Sprint(v))
	}
}

// Literals returns a list of literals.
func Literals[T any](values []T) string {
	literals := make([]string, len(values))
	for i, v := range values {
		literals[i] = Literal(v)
	}
	return "[" + strings.Join(literals, ", ") + "]"
}

// Lower folds as DuckDB does: ASCII only, so that no exotic letter makes two names one here and two there.
func Lower(name string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf {
			return rune(lower(byte(r)))
		}
		return r
	}, name)
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// Same reports whether two names are one. It is asked for each pair of the columns of two relations.
func Same(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}
