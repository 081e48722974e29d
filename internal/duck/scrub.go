package duck

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/late"
)

// dataErrors are the types of errors that lie in a row, and whose messages quote it.
var dataErrors = []duckdb.ErrorType{
	duckdb.ErrorTypeConversion, duckdb.ErrorTypeOutOfRange, duckdb.ErrorTypeInvalidInput,
	duckdb.ErrorTypeMismatchType, duckdb.ErrorTypeConstraint,
}

// WithoutValues removes values from an error's message, because messages end up in logs and are shown to people who may
// not read the data. It keeps what went wrong, the column, the types and the line. It does not change errors that lie
// in the statement alone.
func WithoutValues(err error) error {
	var e *duckdb.Error
	if errors.As(err, &e) && slices.Contains(dataErrors, e.Type) {
		e.Msg = scrub(e.Msg)
	}
	return err
}

var (
	// value is where the first value of a message may begin: a quotation, or a number that is no part of a name such as
	// INT32.
	value      = late.Pattern(`['"]|(^|[^A-Za-z0-9_])[-+]?[0-9]`)
	intoType   = late.Pattern(`.*['")0-9] (to (?:type )?'?[A-Z][A-Z0-9_]*(?:\([0-9, ]+\))?'?)`)
	outOfRange = late.Pattern(`.*[0-9] can't be cast because the value is (out of range for) the destination type ` +
		`([A-Z][A-Z0-9_]*)`)
	fromColumn  = late.Pattern(`.* when casting from source column (\S+)$`)
	lineOfSQL   = late.Pattern(`\n\nLINE (\d+): `)
	jsonPlace   = late.Pattern(`^(.*Malformed JSON).* (in (?:line|record/value) \d+)`)
	csvLine     = late.Pattern(`CSV Error on Line: (\d+)`)
	csvColumn   = late.Pattern(`\nError when converting column "([^"\n]*)"\. [^\n]* to '([^'\n]*)'\n`)
	csvComplain = late.Pattern(`\n((?:` +
		`Expected Number of Columns: \d+ Found: \d+|` +
		`Value with unterminated quote found|` +
		`Maximum line size of \d+ bytes exceeded|` +
		`Invalid unicode[^.\n]*))`)
)

// scrub keeps of a message what cannot be a value. What it does not know ends where the first value may begin.
func scrub(message string) string {
	kind, text, ok := strings.Cut(message, ": ")
	if !ok {
		return message
	}
	if line := csvLine.FindStringSubmatch(text); line != nil {
		return fmt.Sprintf("%s: CSV Error on Line: %s%s", kind, line[1], csvFault(text))
	}
	statement := ""
	if at := lineOfSQL.FindAllStringSubmatchIndex(text, -1); at != nil {
		last := at[len(at)-1]
		statement = fmt.Sprintf(", LINE %s of the statement", text[last[2]:last[3]])
		text = text[:last[0]]
	}

	if place := jsonPlace.FindStringSubmatch(text); place != nil {
		return kind + ": " + "Malformed JSON " + place[2] + statement
	}
	at := value.FindStringIndex(text)
	if at == nil {
		return kind + ": " + text + statement
	}
	kept := strings.TrimRight(text[:at[0]], " (:") + " …"
	rest := strings.ReplaceAll(text[at[0]:], "\n", " ")
	if column := fromColumn.FindStringSubmatch(rest); column != nil {
		statement = " when casting from source column " + column[1] + statement
	}
	if into := intoType.FindStringSubmatch(rest); into != nil {
		kept += " " + into[1]
	}
	if beyond := outOfRange.FindStringSubmatch(rest); beyond != nil {
		kept += " is " + beyond[1] + " " + beyond[2]
	}
	return kind + ": " + kept + statement
}

// csvFault is what is wrong with a line of CSV, after the line itself, which may hold anything.
func csvFault(text string) string {
	if column := csvColumn.FindAllStringSubmatch(text, -1); column != nil {
		last := column[len(column)-1]
		return fmt.Sprintf(": column %q cannot be converted to %s", last[1], last[2])
	}
	if complaint := csvComplain.FindAllStringSubmatch(text, -1); complaint != nil {
		return ": " + complaint[len(complaint)-1][1]
	}
	return ""
}
