// Package postgresquery has the operator postgres_query, a source that runs one SELECT on a PostgreSQL database of the
// user's and publishes its rows.
//
// Vocabulary: a placeholder stands for a value of the partition that is made and travels as a parameter. A column is
// read as the DuckDB type that holds all values of its type, or as one that the config declares or that stands since
// the first run: a value that such a type does not hold is refused. It owns no tables.
package postgresquery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgremote"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/textfile"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["host", "database", "user", "query"],
  "properties": {` + pgremote.Schema + `,
    "query": {"type": "string", "minLength": 1,
      "description": "One SELECT. {partition}, {start} and {end} are values: the task's partition and its half-open range."},
    "types": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1000},
      "description": "DuckDB types of columns; by default those that hold all values of the columns' types."},
    "columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns to keep, in this order; all by default."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 1099511627776,
      "description": "The most bytes of rows to accept; 16 GiB by default."}
  }
}`

const defaultMaxBytes = 16 << 30

type config struct {
	pgremote.Address
	Query    string            `json:"query"`
	Types    map[string]string `json:"types"`
	Columns  []string          `json:"columns"`
	MaxBytes int64             `json:"max_bytes"`
}

func parseConfig(given map[string]any) (c config, s statement, fault *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, s, &dag.ConfigError{Message: err.Error()}
	}
	if err := c.Address.Check(); err != nil {
		return c, s, &dag.ConfigError{Message: err.Error()}
	}
	s, err := parse(c.Query)
	if err != nil {
		return c, s, &dag.ConfigError{Key: "query", Message: err.Error()}
	}

	for _, column := range slices.Sorted(maps.Keys(c.Types)) {
		if t, err := textfile.ParseType(c.Types[column]); err != nil || strings.Contains(t.String(), "?") {
			return c, s, &dag.ConfigError{Key: "types", Message: fmt.Sprintf("%s: %q is not the name of a DuckDB type "+
				"that a column of PostgreSQL can be read as", column, c.Types[column])}
		}
	}
	return c, s, nil
}

// declared returns the type that the config gives to a column; empty: none.
func (c config) declared(column string) string {
	for name, text := range c.Types {
		if strings.EqualFold(name, column) {
			t, _ := textfile.ParseType(text) // parseConfig has looked at it
			return t.String()
		}
	}
	return ""
}

type operator struct {
	options operators.Options
	dialer  *dial.Dialer
}

// New returns the operator.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	return &operator{o, d}, err
}

func (*operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "postgres_query", Version: "1.0.0", Source: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(configSchema),
		Operational:  append([]string{"max_bytes"}, pgremote.Operational...),
		CheckJob:     checkJob,
		Shape:        shape,
		Reading: func(given map[string]any) any {
			return map[string]any{"query": given["query"], "types": given["types"], "columns": given["columns"]}
		},
		SecretsTo: pgremote.SecretsTo,
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, _, err := parseConfig(given)
			return given, err
		},
	}
}

// checkJob refuses placeholders that no partition of the job has a value for.
func checkJob(job *dag.Job) *dag.ConfigError {
	if len(job.Outputs) != 1 {
		return &dag.ConfigError{Message: "postgres_query has one output"}
	}
	_, s, fault := parseConfig(job.Config)
	if fault != nil {
		return fault
	}

	ranged := slices.Contains(s.uses, "start") || slices.Contains(s.uses, "end")
	switch {
	case ranged && job.PartitionBy.Kind != dag.ByTime:
		return &dag.ConfigError{Key: "query", Message: "{start} and {end} need partitions of time: `partition_by: { " +
			"time: day }`"}
	case job.PartitionBy.Kind == dag.ByCursor || job.PartitionBy.Kind == dag.ByRange:
		return &dag.ConfigError{Message: "postgres_query makes partitions of time or by key, or one for all rows"}
	}
	return nil
}

// shape is the Shape: the columns that the config names, and the types that it declares.
func shape(job *dag.Job, _ [][]dag.Column) (s dag.Shape, err error) {
	c, _, fault := parseConfig(job.Config)
	if fault != nil {
		return s, nil
	}
	for _, name := range c.Columns {
		if len(s.Writes) == 0 {
			s.Writes = [][]dag.Column{nil}
		}
		s.Writes[0] = append(s.Writes[0], dag.Column{Name: name, Type: c.declared(name)})
	}
	if len(s.Writes) > 0 {
		return s, nil
	}

	for _, name := range slices.Sorted(maps.Keys(c.Types)) {
		s.Types = append(s.Types, dag.Column{Name: name, Type: c.declared(name)})
	}
	return s, nil
}

// state is what the source remembers of the last answer.
type state struct {
	Request string `json:"request"` // hash of config and partition: another request has another answer
	SHA256  string `json:"sha256"`  // of the columns and rows
}

// Run implements operators.Operator. If the rows are those of the last run, it publishes nothing.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, s, configFault := parseConfig(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	if err := ctx.Err(); err != nil {
		return operators.Result{}, err
	}
	standing, err := standingOf(t)
	if err != nil {
		return operators.Result{}, err
	}

	t.Progress(0, "asking "+c.Host)
	file := filepath.Join(t.Scratch, "rows.pgcopy")
	read, err := o.read(ctx, t, c, s, standing, file)
	if err != nil {
		if fault.Is(err, fault.Forbidden) {
			err = operators.Permanent(err)
		}
		return operators.Result{}, err
	}

	now := state{requestOf(t), read.hash}
	var last state
	same := len(t.State) > 0 && json.Unmarshal(t.State, &last) == nil && last == now && standing != nil
	result := operators.Result{SourceVersion: "sha256:" + read.hash, Unchanged: same}
	if result.State, err = json.Marshal(now); err != nil || same {
		return result, err
	}

	t.Progress(50, "writing rows")
	columns := make([]relations.Column, len(read.columns))
	reading := textfile.Reading{Format: textfile.Database}
	for i, column := range read.columns {
		columns[i] = column.Column
		reading.Columns = append(reading.Columns, textfile.Column(column.Column))
	}
	target := filepath.Join(t.OutputDirs[0], "part.parquet")
	rows, err := o.options.Engines.CopyIn(ctx, t.OrgID.String(), columns, file, target)
	if err != nil {
		return result, err
	}

	if standing == nil || !slices.Equal(standing, reading.Columns) {
		if result.Reading, err = json.Marshal(reading); err != nil {
			return result, err
		}
	}
	result.Result, err = json.Marshal(map[string]int64{"rows": rows})
	return result, errors.Join(err, os.Remove(file))
}

// standingOf returns the columns that stand since an earlier run; nil if none do.
func standingOf(t *operators.Task) ([]textfile.Column, error) {
	if len(t.Reading) == 0 {
		return nil, nil
	}
	var r textfile.Reading
	if err := json.Unmarshal(t.Reading, &r); err != nil {
		return nil, fmt.Errorf("standing columns: %w", err)
	}
	return r.Columns, nil
}

func requestOf(t *operators.Task) string {
	text, _ := json.Marshal([]any{t.Config, t.Partition, t.PartitionBy}) // it came from JSON
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}
