package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/storage"
)

// CheckTask is the checks of one revision of an output, which is either held for them or published.
type CheckTask struct {
	Generation storage.Generation
	Held       *storage.Manifest  // exactly one of Held and Published is set
	Published  *storage.Partition //
	// Those of the job: its zone, and getvariable('partition'), ('start') and ('end') in SQL checks
	PartitionBy dag.Partitioning
	Partition   *PartitionRange
	Inputs      []AssignedInput // the job's inputs, for relationships and SQL
	Checks      []dag.Check
	Now         time.Time // the time that freshness is measured from
}

// CheckOutcome is the outcome of one check.
type CheckOutcome struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Passed   bool   `json:"passed"`
	// Failures counts the failing rows; a check of the whole revision (row_count, freshness) fails once.
	Failures int64 `json:"failures"`
	// Sample is {"columns": [...], "rows": [[...]]}, at most 20 failing rows. It contains data: show it only to people
	// who may read the dataset.
	Sample json.RawMessage `json:"sample,omitempty"`
	// Error says why the check could not run. A check that could not run has not passed.
	Error string `json:"error,omitempty"`
}

const (
	sampleRows  = 20
	sampleBytes = 32 << 10
)

// Check runs the checks, each on its own. A check that cannot run, because of a missing column or broken SQL for
// example, has an outcome that says so; an error means that no check could run for now.
func (r *Runner) Check(ctx context.Context, t CheckTask) ([]CheckOutcome, error) {
	scratch, err := os.MkdirTemp(r.ScratchDir, "check-*")
	if err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)

	c, err := r.openChecks(ctx, t, scratch)
	if err != nil {
		return nil, err
	}
	defer c.session.Close()

	outcomes := make([]CheckOutcome, len(t.Checks))
	for i, check := range t.Checks {
		outcomes[i] = CheckOutcome{Name: check.Name, Severity: check.Severity}
		err := c.run(ctx, check, &outcomes[i])
		switch {
		case err == nil:
			outcomes[i].Passed = outcomes[i].Failures == 0
		case ctx.Err() == nil && IsPermanent(err):
			outcomes[i].Error = fault.Text(err)
		default:
			return nil, fmt.Errorf("check %q: %w", check.Name, err)
		}
	}
	return outcomes, nil
}

// checker holds the data that the checks of one revision read.
type checker struct {
	session *duck.Session
	columns []storage.Column // of the output
	known   []string         // relations
	now     time.Time
}

// outputRelation is the name of the output in a check's SQL.
const outputRelation = "output"

func (r *Runner) openChecks(ctx context.Context, t CheckTask, scratch string) (*checker, error) {
	relations := []duck.Relation{{Name: outputRelation}}
	var err error
	if relations[0].Files, err = r.openChecked(ctx, t, scratch); err != nil {
		return nil, fmt.Errorf("open the output: %w", err)
	}

	for i, in := range t.Inputs {
		if !t.reads(in.As) {
			continue
		}
		dir := filepath.Join(scratch, fmt.Sprintf("input%d", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		partitions, err := r.Storage.Open(ctx, in.Generation, in.Partitions, dir)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", in.As, err)
		}
		relations = append(relations, relation(in, slices.Concat(partitions...)))
	}

	data := duck.Data{Scope: scopeOf(t.PartitionBy, t.Partition), Limits: r.limits(), Dirs: []string{scratch},
		Spill: scratch}
	for _, relation := range relations {
		data.Files = append(data.Files, relation.Files...)
	}
	session, err := duck.OpenData(ctx, data)
	if err != nil {
		return nil, err
	}

	c := &checker{session: session, now: t.Now}
	for _, relation := range relations {
		c.known = append(c.known, relation.Name)
		if err = session.Create(ctx, relation); err != nil {
			break
		}
	}
	if err == nil {
		c.columns, err = session.Describe(ctx, "SELECT * FROM "+outputRelation)
	}
	if err != nil {
		session.Close()
		return nil, err
	}
	return c, nil
}

// reads reports whether a check reads the input. An input that no check reads is not opened, so it cannot fail them.
func (t CheckTask) reads(as string) bool {
	return as != outputRelation && slices.ContainsFunc(t.Checks, func(c dag.Check) bool {
		return c.Kind == "sql" || c.To != nil && c.To.Input == as
	})
}

func (r *Runner) openChecked(ctx context.Context, t CheckTask, scratch string) ([]string, error) {
	dir := filepath.Join(scratch, "output")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	switch {
	case (t.Held == nil) == (t.Published == nil):
		return nil, fault.New(fault.Internal, "a check needs either a held or a published revision")
	case t.Held != nil:
		return r.Storage.OpenSealed(ctx, t.Generation, *t.Held, dir)
	}

	files, err := r.Storage.Open(ctx, t.Generation, []storage.Partition{*t.Published}, dir)
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

// run runs a check by a query that selects the failing rows.
func (c *checker) run(ctx context.Context, check dag.Check, into *CheckOutcome) error {
	failing, err := c.failing(ctx, check)
	if err != nil {
		return err
	}
	if err := c.session.Value(ctx, &into.Failures, "SELECT count(*) FROM ("+failing+")"); err != nil ||
		into.Failures == 0 {
		return err
	}
	columns, rows, err := duck.JSONRows(ctx, c.session, failing, sampleRows, 0)
	if err != nil {
		return err
	}
	into.Sample, err = sample(columns, rows)
	return err
}

func sample(columns []storage.Column, rows [][]any) (json.RawMessage, error) {
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = column.Name
	}
	for {
		text, err := json.Marshal(map[string]any{"columns": names, "rows": rows})
		if err != nil || len(text) <= sampleBytes || len(rows) == 0 {
			return text, err
		}
		rows = rows[:len(rows)/2]
	}
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
		parsed, err := c.session.Parse(ctx, check.SQL)
		if err != nil {
			return "", err
		}
		if err := parsed.Check(c.known); err != nil {
			return "", err
		}
		return c.session.View(ctx, parsed)
	}

	return "", fault.New(fault.Invalid, "unknown check kind %q", check.Kind)
}

func (c *checker) hasColumns(check dag.Check) error {
	for _, name := range check.Columns {
		if !slices.ContainsFunc(c.columns, func(have storage.Column) bool { return have.Name == name }) {
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
func (c *checker) column(name string) storage.Column {
	return c.columns[slices.IndexFunc(c.columns, func(have storage.Column) bool { return have.Name == name })]
}

func (c *checker) orphans(ctx context.Context, check dag.Check) (string, error) {
	if check.To == nil || !slices.Contains(c.known[1:], check.To.Input) {
		return "", fault.New(fault.Invalid, "relationships: the job has no input %q", check.To.Input).
			WithHint("its inputs are %s", strings.Join(c.known[1:], ", "))
	}
	columns, err := c.session.Describe(ctx, "SELECT * FROM "+sqltext.Quote(check.To.Input))
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(columns, func(have storage.Column) bool { return have.Name == check.To.Column }) {
		return "", fault.New(fault.Invalid, "relationships: input %q has no column %q", check.To.Input, check.To.Column)
	}
	return fmt.Sprintf("SELECT * FROM output WHERE %[1]s IS NOT NULL AND %[1]s NOT IN (SELECT %[2]s FROM %[3]s "+
		"WHERE %[2]s IS NOT NULL)",
		sqltext.Quote(check.Columns[0]), sqltext.Quote(check.To.Column), sqltext.Quote(check.To.Input)), nil
}
