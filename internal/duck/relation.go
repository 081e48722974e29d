package duck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// What sessions read, in the words that both sides of an engine share.
type (
	Column    = relations.Column
	Condition = relations.Condition
	Relation  = relations.Relation
	Range     = relations.Range
)

// ReadParquet returns the FROM clause that reads the files and matches columns by name. Hive partitioning is off: a
// folder called "a=1" is not a column.
func ReadParquet(files []string) string {
	return readFiles(Relation{Files: files})
}

// readFiles is like ReadParquet for the files of a relation. Where they are alike, only the footers of those are read
// that the rows come from.
func readFiles(r Relation) string {
	return fmt.Sprintf("read_parquet(%s, union_by_name = %t, hive_partitioning = false)",
		sqltext.Literals(r.Files), len(r.Files) > 1 && !r.Alike)
}

// Empty returns a SELECT of no rows with the given columns.
func Empty(columns []Column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = fmt.Sprintf("NULL::%s AS %s", c.Type, sqltext.Quote(c.Name))
	}
	return "SELECT " + strings.Join(list, ", ") + " WHERE false"
}

// Create creates the relation as a view.
func (s *Session) Create(ctx context.Context, r Relation) error {
	from := "SELECT * FROM " + readFiles(r)
	if r.Rows != nil && len(r.Files) == 1 {
		// Row groups that have none of these places are not read.
		from = fmt.Sprintf("SELECT * EXCLUDE (file_row_number) FROM read_parquet(%s, hive_partitioning = false, "+
			"file_row_number = true) WHERE file_row_number >= %d AND file_row_number < %d",
			sqltext.Literals(r.Files), r.Rows.From, r.Rows.To)
	}
	if len(r.Files) == 0 {
		if len(r.Schema) == 0 {
			return fault.New(fault.Conflict, "input %q has no data yet, and its columns are not known", r.Name).
				WithHint("its first partition shows them: try again then, by `tasks retry` or `deploy --resume`")
		}
		from = Empty(r.Schema)
	}

	if r.Keyed && r.Rows == nil {
		var err error
		if from, err = s.withKeys(ctx, r, from); err != nil {
			return err
		}
	}
	if r.Fill && len(r.Files) > 0 && len(r.Schema) > 0 {
		var err error
		if from, err = s.filled(ctx, r, from); err != nil {
			return err
		}
	}

	where, err := s.conditions(ctx, r, from)
	if err != nil {
		return err
	}
	s.made = append(s.made, r.Name)
	if err := s.Exec(ctx, fmt.Sprintf("CREATE VIEW %s AS SELECT * FROM (%s)%s",
		sqltext.Quote(r.Name), from, where)); err != nil {
		return fmt.Errorf("read input %q: %w", r.Name, err)
	}
	return nil
}

// filled returns a SELECT of the columns of the relation's schema, and of what else the files have. Files may lack some
// of them, or have them with other types: those of an older definition, and those of text that showed no type yet.
func (s *Session) filled(ctx context.Context, r Relation, from string) (string, error) {
	have, err := s.Describe(ctx, from)
	if err != nil {
		return "", fmt.Errorf("read input %q: %w", r.Name, err)
	}

	list := make([]string, len(r.Schema))
	for i, c := range r.Schema {
		name := sqltext.Quote(c.Name)
		switch at := slices.IndexFunc(have, func(h Column) bool { return sqltext.Same(h.Name, c.Name) }); {
		case at < 0:
			list[i] = fmt.Sprintf("NULL::%s AS %s", c.Type, name)
		case have[at].Type == c.Type:
			list[i] = name
		default:
			list[i] = fitted(have[at], c.Type) + " AS " + name
		}
	}
	for _, h := range have {
		known := func(c Column) bool { return sqltext.Same(c.Name, h.Name) }
		hidden := s.isKeyed(r.Name) && sqltext.Same(h.Name, relations.Partition)
		if (!r.Only || hidden) && !slices.ContainsFunc(r.Schema, known) {
			list = append(list, sqltext.Quote(h.Name))
		}
	}
	return fmt.Sprintf("SELECT %s FROM (%s)", strings.Join(list, ", "), from), nil
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
		column := sqltext.Quote(r.Range.Column)
		all = append(all, fmt.Sprintf("%[1]s >= %[2]d AND %[1]s < %[3]d", column, r.Range.From, r.Range.To))
	}

	for _, c := range r.Where {
		column, err := find(c.Column)
		if err != nil {
			return "", err
		}
		condition, err := ConditionSQL(c, column.Type)
		if err != nil {
			return "", fault.New(fault.Invalid, "where of input %q: %s", r.Name, fault.Text(err))
		}
		all = append(all, condition)
	}
	return " WHERE " + strings.Join(all, " AND "), nil
}

// ConditionSQL returns a condition that compares in the column's own type, with values that are cast to it without
// loss. So "2024-01-01" matches in a column of dates, and 1.5 matches nothing in one of whole numbers. A value that no
// value of the type can equal, such as true in a column of numbers, is an error.
func ConditionSQL(c Condition, columnType string) (string, error) {
	column, anyOf := sqltext.Quote(c.Column), []string{}
	for _, v := range c.Values {
		compared, err := literal.Compare(c.Column, columnType, v)
		switch {
		case err != nil:
			return "", err
		case compared.Null:
			anyOf = append(anyOf, column+" IS NULL")
		case strings.HasPrefix(columnType, "ENUM("):
			anyOf = append(anyOf, fmt.Sprintf("CAST(%s AS VARCHAR) = %s", column, sqltext.Literal(compared.Value)))
		case !compared.Never:
			anyOf = append(anyOf, fmt.Sprintf("%s = CAST(%s AS %s)", column, sqltext.Literal(compared.Value),
				columnType))
		}
	}

	if len(anyOf) == 0 {
		return "false", nil
	}
	return "(" + strings.Join(anyOf, " OR ") + ")", nil
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
	ctx context.Context, q *Select, known map[string][]Column,
) (columns []Column, err error) {
	if err := s.Exec(ctx, "BEGIN"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Exec(ctx, "ROLLBACK")) }()

	before := s.keyed
	defer func() { s.keyed = before }()
	for _, name := range sortedKeys(known) {
		from := Empty(known[name])
		if relations.NamesPartition(q.SQL) {
			from, _ = s.withKeys(ctx, Relation{Name: name, Schema: known[name]}, from) // it describes no files
		}
		if err := s.Exec(ctx, "CREATE VIEW "+sqltext.Quote(name)+" AS "+from); err != nil {
			return nil, err
		}
	}
	view, err := s.View(ctx, q)
	if err != nil {
		return nil, err
	}
	return s.Describe(ctx, view)
}

// CopyTo writes the query's rows, in the query's order, as parquet, arrow (a stream of IPC), csv (with a header) or
// ndjson.
func (s *Session) CopyTo(ctx context.Context, query, file, format string) error {
	switch format {
	case "parquet":
		_, err := s.CopyToParquet(ctx, query, file)
		return err
	case "arrow":
		return s.copyToArrow(ctx, query, file)
	case "csv":
		return s.Exec(ctx, fmt.Sprintf("COPY (%s) TO %s (FORMAT csv, HEADER)", query, sqltext.Literal(file)))
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
		t := sqltext.TypeOf(c.Type)
		anyJSON = anyJSON || t.Any(sqltext.Named("JSON"))
		own[i] = fmt.Sprintf("c%d", i)
		parts[i] = sqltext.LineMember(c.Name, own[i], t)
	}
	if !anyJSON {
		return s.Exec(ctx, fmt.Sprintf("COPY (%s) TO %s (FORMAT json)", query, sqltext.Literal(file)))
	}

	// As CSV without quotes: JSON has neither line ends nor control characters in it.
	return s.Exec(ctx, fmt.Sprintf("COPY (SELECT '{' || %s || '}' FROM (%s\n) AS q (%s)) TO %s (FORMAT csv, "+
		"HEADER false, QUOTE '', ESCAPE '', DELIMITER E'\\x01')", strings.Join(parts, " || ',' || "), query,
		strings.Join(own, ", "), sqltext.Literal(file)))
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
	view := fmt.Sprintf("dagctl view %d", s.views)
	name := sqltext.Quote(view)
	s.made = append(s.made, view)
	statement, err := s.Starless(ctx, q, s.isKeyed)
	if err != nil {
		return "", err
	}
	if err := s.Exec(ctx, "CREATE VIEW "+name+" AS\n"+statement); err != nil {
		return "", oneLineUp(err)
	}
	return "SELECT * FROM " + name, nil
}

var lineNumber = late.Pattern(`LINE (\d+)(:| of the statement)`)

// oneLineUp changes DuckDB's line numbers to those of the statement itself, which begins on the second line of the
// view.
func oneLineUp(err error) error {
	var e *duckdb.Error
	if errors.As(err, &e) {
		e.Msg = lineNumber.ReplaceAllStringFunc(e.Msg, func(text string) string {
			parts := lineNumber.FindStringSubmatch(text)
			n, _ := strconv.Atoi(parts[1])
			return fmt.Sprintf("LINE %d%s", max(1, n-1), parts[2])
		})
	}
	return err
}
