package duck

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/fault"
)

// Column is a column of a relation, with DuckDB's name of its type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Condition keeps the rows whose Column is one of Values (JSON scalars; nil stands for NULL).
type Condition struct {
	Column string `json:"column"`
	Values []any  `json:"values"`
}

// ReadParquet returns the FROM clause that reads the files and matches columns by name. Hive partitioning is off: a
// folder called "a=1" is not a column.
func ReadParquet(files []string) string {
	return fmt.Sprintf("read_parquet(%s, union_by_name = %t, hive_partitioning = false)",
		literalList(files), len(files) > 1)
}

// Empty returns a SELECT of no rows with the given columns.
func Empty(columns []Column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = fmt.Sprintf("NULL::%s AS %s", c.Type, Quote(c.Name))
	}
	return "SELECT " + strings.Join(list, ", ") + " WHERE false"
}

// Relation is one named input of a query.
type Relation struct {
	Name   string
	Files  []string    // Parquet
	Schema []Column    // its columns if there are no files
	Where  []Condition // ANDed
	Range  *Range      // nil: all rows
}

// Range keeps the rows in which From ≤ Column < To.
type Range struct {
	Column   string
	From, To int64
}

// Create creates the relation as a view.
func (s *Session) Create(ctx context.Context, r Relation) error {
	from := "SELECT * FROM " + ReadParquet(r.Files)
	if len(r.Files) == 0 {
		if len(r.Schema) == 0 {
			return fault.New(fault.Conflict, "input %q has no data yet, and its columns are not known", r.Name).
				WithHint("its first partition shows them: try again then, by `tasks retry` or `deploy --resume`")
		}
		from = Empty(r.Schema)
	}

	where, err := s.conditions(ctx, r, from)
	if err != nil {
		return err
	}
	if err := s.Exec(ctx, fmt.Sprintf("CREATE VIEW %s AS SELECT * FROM (%s)%s",
		Quote(r.Name), from, where)); err != nil {
		return fmt.Errorf("read input %q: %w", r.Name, err)
	}
	return nil
}

// conditions writes the WHERE clause. Columns are looked up in the relation, so a misspelled one is an error of its
// own.
func (s *Session) conditions(ctx context.Context, r Relation, from string) (string, error) {
	if len(r.Where) == 0 && r.Range == nil {
		return "", nil
	}
	columns, err := s.Describe(ctx, from)
	if err != nil {
		return "", fmt.Errorf("read input %q: %w", r.Name, err)
	}
	find := func(name string) (Column, error) {
		i := slices.IndexFunc(columns, func(have Column) bool { return have.Name == name })
		if i < 0 {
			return Column{}, fault.New(fault.Invalid, "where: input %q has no column %q", r.Name, name).
				WithHint("its columns are %s", strings.Join(names(columns), ", "))
		}
		return columns[i], nil
	}

	var all []string
	if r.Range != nil {
		if _, err := find(r.Range.Column); err != nil {
			return "", err
		}
		column := Quote(r.Range.Column)
		all = append(all, fmt.Sprintf("%[1]s >= %[2]d AND %[1]s < %[3]d", column, r.Range.From, r.Range.To))
	}

	for _, c := range r.Where {
		column, err := find(c.Column)
		if err != nil {
			return "", err
		}
		all = append(all, c.SQL(column.Type))
	}
	return " WHERE " + strings.Join(all, " AND "), nil
}

// SQL returns a condition that compares in the column's own type, so that "2024-01-01" matches in a column of dates.
func (c Condition) SQL(columnType string) string {
	var anyOf []string
	for _, v := range c.Values {
		if v == nil {
			anyOf = append(anyOf, Quote(c.Column)+" IS NULL")
			continue
		}
		anyOf = append(anyOf, fmt.Sprintf("%s = CAST(%s AS %s)", Quote(c.Column), Literal(v), columnType))
	}
	if len(anyOf) == 0 {
		return "false"
	}
	return "(" + strings.Join(anyOf, " OR ") + ")"
}

// Describe returns the columns of a query without running it.
func (s *Session) Describe(ctx context.Context, query string) ([]Column, error) {
	rows, err := s.Query(ctx, "SELECT column_name, column_type FROM (DESCRIBE "+query+")")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var columns []Column
	for rows.Next() {
		var c Column
		if err := rows.Scan(&c.Name, &c.Type); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, s.ended(ctx, rows.Err())
}

// DescribeOver returns the columns of a parsed statement over relations of which only the columns are known, and leaves
// nothing behind. The session is busy meanwhile.
func (s *Session) DescribeOver(
	ctx context.Context, q *Select, relations map[string][]Column,
) (columns []Column, err error) {
	if err := s.Exec(ctx, "BEGIN"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Exec(ctx, "ROLLBACK")) }()

	for _, name := range sortedKeys(relations) {
		if err := s.Exec(ctx, "CREATE VIEW "+Quote(name)+" AS "+Empty(relations[name])); err != nil {
			return nil, err
		}
	}
	view, err := s.View(ctx, q)
	if err != nil {
		return nil, err
	}
	return s.Describe(ctx, view)
}

// CopyTo writes the query's rows, in the query's order, as parquet, csv (with a header) or ndjson.
func (s *Session) CopyTo(ctx context.Context, query, file, format string) error {
	switch format {
	case "parquet":
		_, err := s.CopyToParquet(ctx, query, file)
		return err
	case "csv":
		return s.Exec(ctx, fmt.Sprintf("COPY (%s) TO %s (FORMAT csv, HEADER)", query, Literal(file)))
	case "ndjson":
		return s.copyToLines(ctx, query, file)
	}
	return fault.New(fault.Invalid, "format %q is not known", format)
}

// copyToLines writes lines of JSON. DuckDB's own writer parses columns of JSON and rounds their numbers.
func (s *Session) copyToLines(ctx context.Context, query, file string) error {
	columns, err := s.Describe(ctx, query)
	if err != nil {
		return err
	}
	parts, own := make([]string, len(columns)), make([]string, len(columns))
	anyJSON := false
	for i, c := range columns {
		t := TypeOf(c.Type)
		anyJSON = anyJSON || t.Any(Named("JSON"))
		own[i] = fmt.Sprintf("c%d", i)
		parts[i] = Literal(jsonName(c.Name)+":") + " || " + orNull(lineJSON(own[i], t))
	}
	if !anyJSON {
		return s.Exec(ctx, fmt.Sprintf("COPY (%s) TO %s (FORMAT json)", query, Literal(file)))
	}

	// As CSV without quotes: JSON has neither line ends nor control characters in it.
	return s.Exec(ctx, fmt.Sprintf("COPY (SELECT '{' || %s || '}' FROM (%s\n) AS q (%s)) TO %s (FORMAT csv, "+
		"HEADER false, QUOTE '', ESCAPE '', DELIMITER E'\\x01')", strings.Join(parts, " || ',' || "), query,
		strings.Join(own, ", "), Literal(file)))
}

func names(columns []Column) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = c.Name
	}
	return out
}

// View creates a view of a parsed statement and returns the SELECT that reads it. Whatever ends the statement (a
// semicolon, a comment) ends it in the view, so that its text never mixes with another statement's.
func (s *Session) View(ctx context.Context, q *Select) (string, error) {
	s.views++
	name := Quote(fmt.Sprintf("dagctl view %d", s.views))
	if err := s.Exec(ctx, "CREATE VIEW "+name+" AS\n"+q.SQL); err != nil {
		return "", oneLineUp(err)
	}
	return "SELECT * FROM " + name, nil
}

var lineNumber = regexp.MustCompile(`LINE (\d+):`)

// oneLineUp changes DuckDB's line numbers to those of the statement itself, which begins on the second line of the
// view.
func oneLineUp(err error) error {
	var e *duckdb.Error
	if errors.As(err, &e) {
		e.Msg = lineNumber.ReplaceAllStringFunc(e.Msg, func(text string) string {
			n, _ := strconv.Atoi(text[len("LINE ") : len(text)-1])
			return fmt.Sprintf("LINE %d:", max(1, n-1))
		})
	}
	return err
}
