package inside

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// check runs the checks, each on its own. A check that cannot run, because of a missing column or broken SQL for
// example, has an outcome that says so; an error means that no check could run for now.
func (h *host) check(ctx context.Context, q engine.Check) ([]engine.CheckOutcome, error) {
	if !slices.Contains(h.known, engine.Output) {
		return nil, errors.New("there is no output to check")
	}
	inputs := slices.DeleteFunc(slices.Clone(h.known), func(name string) bool { return name == engine.Output })
	c := checker{session: h.session, statement: h.statement, columns: h.columns[engine.Output], inputs: inputs,
		now: q.Now}

	outcomes := make([]engine.CheckOutcome, len(q.Checks))
	for i, check := range q.Checks {
		outcomes[i] = engine.CheckOutcome{Name: check.Name, Severity: check.Severity}
		err := c.run(ctx, check, &outcomes[i])
		switch {
		case err == nil:
			outcomes[i].Passed = outcomes[i].Failures == 0
		case ctx.Err() == nil && failureOf(err).Lasting:
			outcomes[i].Error = strings.ReplaceAll(fault.Text(err), "\x00", "\ufffd")
		default:
			return nil, fmt.Errorf("check %q: %w", check.Name, err)
		}
	}
	return outcomes, nil
}

// checker holds the data that the checks of one revision read.
type checker struct {
	session   *duck.Session
	statement func(ctx context.Context, sql string) (*duck.Select, error)
	columns   []duck.Column // of the output
	inputs    []string      // relations
	now       time.Time
}

// run runs a check by a query that selects the failing rows.
func (c *checker) run(ctx context.Context, check dag.Check, into *engine.CheckOutcome) error {
	failing, err := c.failing(ctx, check)
	if err != nil {
		return err
	}
	count := "SELECT count(*) FROM (" + failing + ")"
	if check.Kind == "unique" {
		count = repeated(check)
	}
	if err := c.session.Value(ctx, &into.Failures, count); err != nil || into.Failures == 0 {
		return err
	}

	columns, rows, err := duck.JSONRows(ctx, c.session, failing, sampleRows, 0)
	if err != nil {
		return err
	}
	into.Sample, err = sample(columns, rows)
	return err
}

// failing returns the SELECT of the failing rows.
func (c *checker) failing(ctx context.Context, check dag.Check) (string, error) {
	if err := c.hasColumns(check); err != nil {
		return "", err
	}

	switch check.Kind {
	case "not_null":
		return "SELECT * FROM output WHERE " + each(check.Columns, " OR ", "%s IS NULL"), nil
	case "unique":
		return fmt.Sprintf("SELECT * FROM output WHERE %s QUALIFY count(*) OVER (PARTITION BY %s) > 1",
			each(check.Columns, " AND ", "%s IS NOT NULL"), sqltext.QuoteAll(check.Columns)), nil
	case "accepted_values":
		return c.notAccepted(check)
	case "row_count":
		return rowCount(check), nil
	case "freshness":
		return c.stale(check)
	case "relationships":
		return c.orphans(ctx, check)
	case "sql":
		parsed, err := c.statement(ctx, check.SQL)
		if err != nil {
			return "", err
		}
		if err := parsed.Check(append([]string{engine.Output}, c.inputs...)); err != nil {
			return "", err
		}
		return c.session.View(ctx, parsed)
	}

	return "", fault.New(fault.Invalid, "unknown check kind %q", check.Kind)
}

// repeated returns the count of the rows that fail a check of kind unique. It keeps a number per key, where the window
// that selects the rows keeps them all.
func repeated(check dag.Check) string {
	return fmt.Sprintf("SELECT coalesce(sum(n), 0)::BIGINT FROM (SELECT count(*) AS n FROM output "+
		"WHERE %s GROUP BY %s HAVING count(*) > 1)", each(check.Columns, " AND ", "%s IS NOT NULL"),
		sqltext.QuoteAll(check.Columns))
}

func (c *checker) hasColumns(check dag.Check) error {
	for _, name := range check.Columns {
		if !slices.ContainsFunc(c.columns, func(have duck.Column) bool { return have.Name == name }) {
			return fault.New(fault.Invalid, "the output has no column %q", name)
		}
	}
	if slices.Contains([]string{"not_null", "unique", "accepted_values", "freshness", "relationships"}, check.Kind) &&
		len(check.Columns) == 0 {
		return fault.New(fault.Invalid, "%s names no column", check.Kind)
	}
	return nil
}

// each returns a condition for each column.
func each(columns []string, operator, condition string) string {
	list := make([]string, len(columns))
	for i, column := range columns {
		list[i] = fmt.Sprintf(condition, sqltext.Quote(column))
	}
	return strings.Join(list, operator)
}

// notAccepted lets NULL pass, as CHECK does in SQL; not_null is a separate check.
func (c *checker) notAccepted(check dag.Check) (string, error) {
	list := make([]string, len(check.Columns))
	for i, name := range check.Columns {
		accepted, err := duck.ConditionSQL(duck.Condition{Column: name, Values: check.Values}, c.column(name).Type)
		if err != nil {
			return "", err
		}
		list[i] = fmt.Sprintf("(%s IS NOT NULL AND NOT %s)", sqltext.Quote(name), accepted)
	}
	return "SELECT * FROM output WHERE " + strings.Join(list, " OR "), nil
}

func rowCount(check dag.Check) string {
	var beyond []string
	if check.Min != nil {
		beyond = append(beyond, fmt.Sprintf("row_count < %d", *check.Min))
	}
	if check.Max != nil {
		beyond = append(beyond, fmt.Sprintf("row_count > %d", *check.Max))
	}
	if len(beyond) == 0 {
		beyond = []string{"false"}
	}
	return "SELECT * FROM (SELECT count(*) AS row_count FROM output) WHERE " + strings.Join(beyond, " OR ")
}

// instantTypes are the types whose values are instants, in the zone of the partition where they say none.
var instantTypes = []string{"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS",
	"TIMESTAMP WITH TIME ZONE"}

// stale compares instants. It also fails if there is no instant at all; infinity is none.
func (c *checker) stale(check dag.Check) (string, error) {
	column := c.column(check.Columns[0])
	if !slices.Contains(instantTypes, column.Type) {
		return "", fault.New(fault.Invalid, "freshness: column %q is %s, not a date or a timestamp", column.Name,
			column.Type).WithHint("cast it in the query")
	}
	return fmt.Sprintf("SELECT * FROM (SELECT CAST(max(%[1]s) FILTER (WHERE isfinite(%[1]s)) AS TIMESTAMPTZ) "+
		"AS latest FROM output) WHERE latest IS NULL OR latest < %[2]s",
		sqltext.Quote(column.Name), sqltext.Literal(c.now.Add(-check.Within))), nil
}

// column returns a column of the output that hasColumns has found.
func (c *checker) column(name string) duck.Column {
	return c.columns[slices.IndexFunc(c.columns, func(have duck.Column) bool { return have.Name == name })]
}

func (c *checker) orphans(ctx context.Context, check dag.Check) (string, error) {
	if check.To == nil || !slices.Contains(c.inputs, check.To.Input) {
		return "", fault.New(fault.Invalid, "relationships: the job has no input %q", check.To.Input).
			WithHint("its inputs are %s", strings.Join(c.inputs, ", "))
	}
	columns, err := c.session.Describe(ctx, "SELECT * FROM "+sqltext.Quote(check.To.Input))
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(columns, func(have duck.Column) bool { return have.Name == check.To.Column }) {
		return "", fault.New(fault.Invalid, "relationships: input %q has no column %q", check.To.Input, check.To.Column)
	}
	return fmt.Sprintf("SELECT * FROM output WHERE %[1]s IS NOT NULL AND %[1]s NOT IN (SELECT %[2]s FROM %[3]s "+
		"WHERE %[2]s IS NOT NULL)",
		sqltext.Quote(check.Columns[0]), sqltext.Quote(check.To.Column), sqltext.Quote(check.To.Input)), nil
}
