package duck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Binder binds statements over relations of which only the columns are known, and runs none of them.
type Binder struct {
	session *Session
	views   map[string]string // SELECTs of relations, by lower-case name
}

// mostViews is how many relations a Binder keeps for statements to come.
const mostViews = 1000

// OpenBinder starts a Binder.
func OpenBinder(ctx context.Context, cfg Config) (*Binder, error) {
	cfg.errorsAsJSON = true
	session, err := Open(ctx, cfg)
	return &Binder{session, map[string]string{}}, err
}

// Lost reports whether DuckDB has given the Binder up, after which it answers nothing any more.
func (b *Binder) Lost() bool { return b.session.Lost() }

// Close ends the Binder.
func (b *Binder) Close() error { return b.session.Close() }

// Unbindable is why a statement cannot be bound.
type Unbindable struct {
	Offset int    // of what is at fault, in bytes; -1: not known
	Width  int    // of the name at fault, as it is written; 0: there is none
	Column string // that is not there; empty: something else is wrong
	Table  string // that Column was looked for in; empty: in all of them
	// Sure says that the statement cannot be bound whatever the types of columns are.
	Sure    bool
	Message string
	Meant   string // what else there is of that name's kind, as DuckDB suggests it

	start int // where the whole reference begins
}

// Bind returns the columns of a statement's result over relations, or why it has none. Columns without a type are NULL.
func (b *Binder) Bind(
	ctx context.Context, statement string, over map[string][]Column,
) (columns []Column, why *Unbindable, err error) {
	if err := b.relate(ctx, over); err != nil {
		return nil, nil, err
	}
	const describe = "DESCRIBE\n"
	columns, err = b.describe(ctx, describe+statement)

	var e *duckdb.Error
	if errors.As(err, &e) && e.Type == duckdb.ErrorTypeParser {
		columns, err = b.throughView(ctx, statement) // DESCRIBE reads some statements otherwise
		if errors.As(err, &e) {
			return nil, nil, nil // and so nothing is known of their places
		}
		return columns, nil, err
	}

	if errors.As(err, &e) {
		return nil, b.unbindable(e.Msg, statement, len(describe)), nil
	}
	if err == nil && repeats(columns) {
		columns, err = b.throughView(ctx, statement) // which gives the names that are stored
	}
	return columns, nil, err
}

// throughView returns the columns of a view of the statement.
func (b *Binder) throughView(ctx context.Context, statement string) ([]Column, error) {
	const view = `"dagctl bound"`
	if err := b.session.Exec(ctx, "CREATE OR REPLACE TEMP VIEW "+view+" AS\n"+statement); err != nil {
		return nil, err
	}
	return b.describe(ctx, "DESCRIBE SELECT * FROM "+view)
}

func (b *Binder) describe(ctx context.Context, statement string) (columns []Column, err error) {
	rows, err := b.session.Query(ctx, statement)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var c Column
		var null, key, byDefault, extra any
		if err := rows.Scan(&c.Name, &c.Type, &null, &key, &byDefault, &extra); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, b.session.ended(ctx, rows.Err())
}

// repeats reports whether two columns have one name.
func repeats(columns []Column) bool {
	seen := make(map[string]bool, len(columns))
	for _, c := range columns {
		name := sqltext.Lower(c.Name)
		if seen[name] {
			return true
		}
		seen[name] = true
	}
	return false
}

// relate makes the relations. Those of the same name and columns stay from statement to statement: jobs side by side
// read the same.
func (b *Binder) relate(ctx context.Context, over map[string][]Column) error {
	if len(b.views)+len(over) > mostViews {
		var drop strings.Builder
		for _, name := range sortedKeys(b.views) {
			drop.WriteString("DROP VIEW " + sqltext.Quote(name) + ";\n")
		}
		b.views = map[string]string{}
		if err := b.session.Exec(ctx, drop.String()); err != nil {
			return err
		}
	}

	var create strings.Builder
	for _, name := range sortedKeys(over) {
		key, text := sqltext.Lower(name), nullsOf(over[name])
		if b.views[key] != text {
			b.views[key] = text
			create.WriteString("CREATE OR REPLACE VIEW " + sqltext.Quote(key) + " AS " + text + ";\n")
		}
	}
	if create.Len() == 0 {
		return nil
	}
	err := b.session.Exec(ctx, create.String())
	if err != nil {
		b.views = map[string]string{} // nobody knows which of them are there
	}
	return err
}

// nullsOf returns a SELECT of no rows. A column without a type is NULL, which fits nearly every expression.
func nullsOf(columns []Column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = "NULL"
		if c.Type != "" {
			list[i] += "::" + c.Type
		}
		list[i] += " AS " + sqltext.Quote(c.Name)
	}
	return "SELECT " + strings.Join(list, ", ") + " WHERE false"
}

// bindError is an error of DuckDB as JSON.
type bindError struct {
	Type       string      `json:"exception_type"`
	Entry      string      `json:"type"` // of a catalogue, that is missing
	Message    string      `json:"exception_message"`
	Subtype    string      `json:"error_subtype"`
	Name       string      `json:"name"`
	Candidates string      `json:"candidates"`
	Position   json.Number `json:"position"`
}

// What DuckDB says of columns that are not there.
var (
	notInTable = late.Pattern(`^(?:Values list|Table) "((?s:.*?))" does not have a column named "((?s:.*?))"`)
	notInJoin  = late.Pattern(`^Column "((?s:.*?))" does not exist on (?:left|right) side of join!`)
	notInStar  = late.Pattern(`^Column "((?s:.*?))" in (?:EXCLUDE|REPLACE|RENAME) list not found in FROM clause`)
	oneName    = late.Pattern(`^("(?:[^"]|"")*"|[\pL_][\pL\pN_$]*)`)
	qualifier  = late.Pattern(`^(?:"(?:[^"]|"")*"|[\pL_][\pL\pN_$]*)\s*\.\s*`)
)

// unbindable reads an error of DuckDB about a statement that stands behind a prefix; nil if it does not say that the
// statement can never be bound.
func (b *Binder) unbindable(message, statement string, prefix int) *Unbindable {
	var e bindError
	if json.Unmarshal([]byte(message), &e) != nil || e.Type == "INTERNAL" || e.Type == "FATAL" {
		b.session.lost.Store(true)
		return nil
	}
	if e.Type != "Binder" && e.Type != "Catalog" || e.Entry == "Table" {
		return nil
	}
	u := &Unbindable{Offset: -1, Message: firstLine(e.Message)}
	if at, err := e.Position.Int64(); err == nil && int(at) >= prefix && int(at) < prefix+len(statement) {
		u.Offset = int(at) - prefix
		u.start = u.Offset
	}

	switch {
	case e.Subtype == "COLUMN_NOT_FOUND":
		u.Column = e.Name
	case e.Subtype == "MISSING_ENTRY":
		u.Sure, u.Meant = true, strings.ReplaceAll(e.Candidates, ",", " or ")
		u.Width = min(len(e.Name), len(statement)-max(u.Offset, 0))
		if slices.Contains([]string{"Scalar Function", "Table Function", "Aggregate Function"}, e.Entry) {
			u.Message = fmt.Sprintf("there is no function %q", e.Name)
		}
	default:
		for _, alone := range []*late.Regexp{notInJoin, notInStar} {
			if found := alone.FindStringSubmatch(e.Message); found != nil {
				u.Column = found[1]
			}
		}
		if found := notInTable.FindStringSubmatch(e.Message); found != nil {
			u.Table, u.Column = found[1], found[2]
		}
	}
	if u.Column != "" {
		u.find(statement)
	}
	return u
}

// find sets the place and the width of a column's name. DuckDB says where the whole reference is, or nothing.
func (u *Unbindable) find(statement string) {
	if u.Offset < 0 {
		word := regexp.MustCompile(`(?i)(?:^|[^\pL\pN_"])("?` + regexp.QuoteMeta(u.Column) + `"?)(?:[^\pL\pN_"]|$)`)
		at := word.FindStringSubmatchIndex(statement)
		if at == nil {
			return
		}
		u.Offset, u.start = at[2], at[2]
	}
	if u.Table != "" {
		if before := qualifier.FindString(statement[u.Offset:]); before != "" {
			u.Offset += len(before)
		}
	}
	u.Width = len(oneName.FindString(statement[u.Offset:]))
}

// Without returns the statement with NULL in place of the column at fault, so that others are found. Nothing else
// moves.
func (u *Unbindable) Without(statement string) (string, bool) {
	end := u.Offset + u.Width
	if u.Offset < 0 || u.Width == 0 || end > len(statement) {
		return statement, false
	}
	filler := "NULL"
	if end-u.start < len(filler) {
		filler = "0"
	}
	return statement[:u.start] + filler + strings.Repeat(" ", end-u.start-len(filler)) + statement[end:], true
}

// firstLine returns what DuckDB says before it lists candidates.
func firstLine(message string) string {
	line, _, _ := strings.Cut(message, "\n")
	line = strings.TrimSuffix(line, " You might need to add explicit type casts.")
	return strings.TrimSuffix(line, " In order to select one, please add explicit type casts.")
}

// Known reports whether columns have one of a name. DuckDB ignores case.
func Known(columns []Column, name string) bool {
	return slices.ContainsFunc(columns, func(c Column) bool { return sqltext.Same(c.Name, name) })
}
