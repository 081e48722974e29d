// Package seed has the operator whose output is a small table in the DAG's own folder: a CSV file that is sent with the
// deploy and is part of the job's definition. It reads nothing else, so it needs no folder of a server, and what its
// columns are is known wherever the DAG file is.
//
// Vocabulary: a seed is such a table; its rows change with a deploy and never otherwise. It owns no tables.
package seed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/textfile"
)

type operator struct{}

// New returns the operator.
func New(operators.Options) (operators.Operator, error) { return operator{}, nil }

const schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["csv"],
  "properties": {
    "csv": {"type": "string",
      "description": "The table, as CSV whose first line names the columns; csv_file: a file beside the DAG file."},
    "types": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1000},
      "description": "DuckDB types of columns; those of the others are inferred from the rows."},
    "delimiter": {"type": "string", "minLength": 1, "maxLength": 4,
      "description": "The separator of the values; by default as in the file."},
    "null_string": {"type": "string", "description": "The text for NULL; the empty value by default."},
    "date_format": {"type": "string", "minLength": 1,
      "description": "How dates are written, such as %d/%m/%Y; ISO 8601 by default."},
    "timestamp_format": {"type": "string", "minLength": 1,
      "description": "How dates with a time are written; ISO 8601 by default."}
  }
}`

func (operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: dag.Seed, Version: "1.0.0", Source: true, Replayable: true, Effect: dag.EffectInternal,
		ConfigSchema:    json.RawMessage(schema),
		Canonical:       canonical,
		CheckJob:        checkJob,
		CheckPartitions: checkPartitions,
		Shape:           shape,
	}
}

// config is the config of a seed.
type config struct {
	CSV string `json:"csv"`
	operators.FileRows
}

// table is a seed that was looked at.
type table struct {
	config
	columns []dag.Column
}

// look looks at the table of a config. What is wrong with it is said of the config's field.
func look(given map[string]any) (r table, refused *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &r.config); err != nil {
		return r, &dag.ConfigError{Message: err.Error()}
	}
	r.CSV = strings.ReplaceAll(r.CSV, "\r\n", "\n") // as Git may have it on Windows
	if len(r.CSV) > dag.MaxReferenceBytes {
		return r, &dag.ConfigError{Key: "csv", Message: fmt.Sprintf("it has more than %d bytes: a larger table is "+
			"read by file_source, http_source or s3_source", dag.MaxReferenceBytes)}
	}
	header := true
	r.Format, r.Header = "csv", &header
	if refused := r.Check(); refused != nil {
		return r, refused
	}

	reading, _, err := textfile.Table(context.Background(), r.Declaration, []byte(r.CSV))
	if errors.Is(err, textfile.ErrAbsent) {
		return r, &dag.ConfigError{Key: "types", Message: fault.Text(err)}
	}
	if err != nil {
		return r, &dag.ConfigError{Key: "csv", Message: fault.Text(err)}
	}
	r.Types, r.Delimiter = map[string]string{}, reading.Delimiter
	for _, c := range reading.Columns {
		r.columns = append(r.columns, dag.Column(c))
		r.Types[c.Name] = c.Type
	}
	return r, nil
}

// canonical returns the hash of the text in place of it, however its lines end.
func canonical(given map[string]any) (any, *dag.ConfigError) {
	r, refused := look(given)
	if refused != nil {
		return nil, refused
	}
	form := maps.Clone(given)
	form["csv"] = version(r.CSV)
	return form, nil
}

// version identifies the content of a table.
func version(csv string) string {
	sum := sha256.Sum256([]byte(csv))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func checkJob(job *dag.Job) *dag.ConfigError {
	switch {
	case len(job.Outputs) != 1:
		return &dag.ConfigError{Message: fmt.Sprintf("a seed has one output, not %d", len(job.Outputs))}
	case job.UpdateStrategy != dag.Replace:
		return &dag.ConfigError{Message: "a seed is replaced as a whole: leave `update_strategy` out"}
	}
	return nil
}

func checkPartitions(job *dag.Job) *dag.ConfigError {
	if job.PartitionBy.Kind == dag.Unpartitioned {
		return nil
	}
	return &dag.ConfigError{Message: "a seed is one table without partitions: leave `partition_by` out"}
}

// shape returns the columns of the table.
func shape(job *dag.Job, _ [][]dag.Column) (shape dag.Shape, err error) {
	if r, refused := look(job.Config); refused == nil {
		shape.Writes = [][]dag.Column{r.columns}
	}
	return shape, nil
}

// Enumerate implements operators.Enumerator: there is the table.
func (operator) Enumerate(_ context.Context, e operators.Enumeration) ([]operators.Unit, error) {
	r, refused := look(e.Config)
	if refused != nil {
		return nil, operators.ConfigError(refused)
	}
	return []operators.Unit{{Partition: dag.WholeKey, Version: version(r.CSV), Payload: json.RawMessage("{}")}}, nil
}

// Run writes the table's rows.
func (operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	r, refused := look(t.Config)
	if refused != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(refused))
	}
	file := textfile.File{Name: "the table", Path: r.Local(t, 0, "table.csv")}
	if err := os.WriteFile(file.Path, []byte(r.CSV), 0o600); err != nil {
		return operators.Result{}, fmt.Errorf("write the table: %w", err)
	}
	found, err := r.Read(ctx, t, []textfile.File{file})
	if err != nil {
		return operators.Result{}, err
	}
	result, err := json.Marshal(map[string]int64{"rows": found.Rows})
	return operators.Result{Result: result, SourceVersion: version(r.CSV)}, err
}
