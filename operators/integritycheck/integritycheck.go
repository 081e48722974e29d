// Package integritycheck has the operator integrity_check, which compares the files of its input with the catalogue and
// its rows with what they are said to be.
//
// Vocabulary: a finding is one difference: where it is, what was expected there and what was found. Findings are the
// rows of the output. It owns no tables.
package integritycheck

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "unique": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "Columns that no two rows have the same values of."},
    "monotonic": {"type": "string", "minLength": 1,
      "description": "A column whose values never descend from row to row."},
    "sequence": {"type": "string", "minLength": 1,
      "description": "A column of whole numbers: each from the lowest to the highest, once."},
    "start_column": {"type": "string", "minLength": 1,
      "description": "With end_column: the first position of a row's half-open range. Ranges neither overlap nor leave gaps."},
    "end_column": {"type": "string", "minLength": 1,
      "description": "The column with the position behind the last one of a row's range."},
    "on_findings": {"enum": ["fail", "warn"],
      "description": "fail, the default: the findings are published, and the task fails. warn: they are published."}
  }
}`

type config struct {
	Unique      []string `json:"unique"`
	Monotonic   string   `json:"monotonic"`
	Sequence    string   `json:"sequence"`
	StartColumn string   `json:"start_column"`
	EndColumn   string   `json:"end_column"`
	OnFindings  string   `json:"on_findings"`
}

func parseConfig(given map[string]any) (config, *dag.ConfigError) {
	c := config{OnFindings: "fail"}
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if (c.StartColumn == "") != (c.EndColumn == "") {
		return c, &dag.ConfigError{Key: "start_column", Message: "`start_column` and `end_column` need each other"}
	}
	return c, nil
}

// columns are those of the output, all VARCHAR.
var columns = []string{"kind", "place", "expected", "found"}

// finding is a row of the output.
type finding [4]string

type operator struct{}

// New returns the operator.
func New(operators.Options) (operators.Operator, error) { return operator{}, nil }

func (operator) Spec() dag.OperatorSpec {
	var written []dag.Column
	for _, name := range columns {
		written = append(written, dag.Column{Name: name, Type: "VARCHAR"})
	}
	return dag.OperatorSpec{
		Name: "integrity_check", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(configSchema),
		CheckJob:     checkJob,
		Shape: func(*dag.Job, [][]dag.Column) (dag.Shape, error) {
			return dag.Shape{Writes: [][]dag.Column{written}}, nil
		},
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			c, err := parseConfig(given)
			return c, err
		},
	}
}

// checkJob refuses jobs whose output would not be the findings of what there is now.
func checkJob(job *dag.Job) *dag.ConfigError {
	switch {
	case len(job.Outputs) != 1 || len(job.Inputs) != 1:
		return &dag.ConfigError{Message: "integrity_check has one input and one output: give each dataset a job"}
	case job.UpdateStrategy == dag.Append:
		return &dag.ConfigError{Message: "integrity_check lists what is wrong now: leave `update_strategy: append` out"}
	}
	return nil
}

// Run implements operators.Operator.
func (operator) Run(ctx context.Context, t *operators.Task) (result operators.Result, err error) {
	c, configFault := parseConfig(t.Config)
	if configFault != nil {
		return result, operators.Permanent(operators.ConfigError(configFault))
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if len(t.Inputs) != 1 || len(t.Outputs) != 1 {
		return result, operators.Permanent(fault.New(fault.Invalid, "integrity_check has one input and one output"))
	}

	t.Progress(0, "looking at the files")
	found, compared, err := filesOf(ctx, t)
	if err != nil {
		return result, err
	}
	if len(found) == 0 { // rows of files that are not those of the catalogue say nothing
		t.Progress(50, "looking at the rows")
		if found, err = c.rows(ctx, t); err != nil {
			return result, err
		}
	}

	if _, _, err := t.Select(ctx, listing(found), 0, "part.parquet"); err != nil {
		return result, err
	}
	result.Result, err = json.Marshal(map[string]int{"findings": len(found), "files": compared})
	if err != nil || len(found) == 0 || c.OnFindings == "warn" {
		return result, err
	}
	if t.Committer != nil {
		if _, err := t.Commit(ctx, operators.Commit{}); err != nil {
			return result, err
		}
	}
	return result, operators.Permanent(fault.New(fault.Invalid, "%d findings, the first: %s", len(found), found[0]).
		WithHint("the output lists them; with `on_findings: warn` the task does not fail"))
}

// String describes a finding, for errors.
func (f finding) String() string {
	return fmt.Sprintf("%s: %s: expected %s, found %s", f[0], f[1], f[2], f[3])
}

// listing returns the SELECT of findings as rows.
func listing(found []finding) string {
	names := make([]string, len(columns))
	for i, name := range columns {
		names[i] = sqltext.Quote(name)
	}
	rows, where := found, ""
	if len(rows) == 0 {
		rows, where = []finding{{}}, " WHERE false"
	}

	values := make([]string, len(rows))
	for i, f := range rows {
		cells := make([]string, len(f))
		for n, text := range f {
			cells[n] = sqltext.Literal(text)
		}
		values[i] = "(" + strings.Join(cells, ", ") + ")"
	}
	return fmt.Sprintf("SELECT * FROM (VALUES %s) AS v(%s)%s", strings.Join(values, ", "), strings.Join(names, ", "),
		where)
}
