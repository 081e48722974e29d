package duck

import (
	"context"
	"errors"
	"fmt"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// CheckTypes returns a fault.Invalid for the first column whose type DuckDB does not know.
func (s *Session) CheckTypes(ctx context.Context, relations map[string][]Column) error {
	for _, table := range sortedKeys(relations) {
		columns, err := s.Describe(ctx, Empty(relations[table]))
		if err == nil && len(columns) == len(relations[table]) {
			continue
		}
		for _, c := range relations[table] {
			if columns, err := s.Describe(ctx, Empty([]Column{c})); err != nil || len(columns) != 1 {
				return fault.New(fault.Invalid, "table %q: the column %q has a type that is not known: %q", table,
					c.Name, c.Type).
					WithHint("DuckDB's types are BIGINT, VARCHAR, DECIMAL(12, 2), INTEGER[], STRUCT(x DOUBLE) and such")
			}
		}
		return fault.New(fault.Invalid, "table %q: its columns cannot be read", table)
	}
	return nil
}

var (
	ambiguous  = late.Pattern(`^Binder Error: Ambiguous reference to column name "((?s:.*?))" \(use: (.*?)\)`)
	candidates = late.Pattern(`\n*Candidate bindings: ((?s:.*?))\n\nLINE`)
)

// Unbound returns why a statement could not be bound, as a fault.Invalid that says what, where and how to mend it.
func Unbound(err error) error {
	var e *duckdb.Error
	if !errors.As(err, &e) {
		return err
	}
	place := placeIn(e.Msg)
	hint := "name a column of the tables in FROM"
	if found := candidates.FindStringSubmatch(e.Msg); found != nil {
		hint = "did you mean " + strings.ReplaceAll(found[1], ", ", " or ") + "?"
	}

	if found := ambiguous.FindStringSubmatch(e.Msg); found != nil {
		return fault.New(fault.Invalid, "the column %q is in several tables%s", found[1], place).
			WithHint("write %s", found[2])
	}
	switch lack := LackOf(err); {
	case lack != nil && lack.Table != "":
		return fault.New(fault.Invalid, "the table %q has no column %q%s", lack.Table, lack.Column, place).
			WithHint("%s", hint)
	case lack != nil:
		return fault.New(fault.Invalid, "there is no column %q%s", lack.Column, place).WithHint("%s", hint)
	}
	message, _, _ := strings.Cut(e.Msg, "\n\nLINE ")
	return fault.New(fault.Invalid, "%s%s", strings.ReplaceAll(message, "\n", " "), place).
		WithHint("see DuckDB's functions and types, and the types that the schema gives the columns")
}

// placeIn returns where in the statement the caret of a message points: " (line 1, column 15)". DuckDB shows long lines
// in part; then the column is not known.
func placeIn(message string) string {
	at := lineOfSQL.FindStringSubmatchIndex(message)
	if at == nil {
		return ""
	}
	line := message[at[2]:at[3]]
	shown, rest, _ := strings.Cut(message[at[1]:], "\n")
	caret := strings.IndexByte(rest, '^') - len("LINE "+line+": ")
	if caret < 0 || strings.HasPrefix(shown, "...") {
		return fmt.Sprintf(" (line %s)", line)
	}
	return fmt.Sprintf(" (line %s, column %d)", line, caret+1)
}
