// Package parquetcompact has the operator parquet_compact, which writes the rows of an input, in their order, to fewer
// and greater Parquet files.
//
// Vocabulary: the fingerprint of rows is how many there are, and a sum of hashes over each row with its place. A run
// publishes files only if their fingerprint, read back from what was written, is that of the input. It owns no tables.
package parquetcompact

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "target_bytes": {"type": "integer", "minimum": 1024, "maximum": 1099511627776,
      "description": "About how many bytes a file has; 256 MiB by default."}
  }
}`

const defaultTarget = 256 << 20

// mostFiles is how many files a partition gets at most.
const mostFiles = 1000

type config struct {
	TargetBytes int64 `json:"target_bytes"`
}

func parseConfig(given map[string]any) (config, *dag.ConfigError) {
	c := config{TargetBytes: defaultTarget}
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	return c, nil
}

type operator struct{}

// New returns the operator.
func New(operators.Options) (operators.Operator, error) { return operator{}, nil }

func (operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "parquet_compact", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(configSchema),
		Operational:  []string{"target_bytes"},
		CheckJob:     checkJob,
		Shape: func(_ *dag.Job, inputs [][]dag.Column) (s dag.Shape, err error) {
			if len(inputs) == 1 && len(inputs[0]) > 0 {
				s.Writes = [][]dag.Column{inputs[0]}
			}
			return s, nil
		},
	}
}

// checkJob refuses jobs whose output would not have the rows of the input.
func checkJob(job *dag.Job) *dag.ConfigError {
	switch {
	case len(job.Outputs) != 1 || len(job.Inputs) != 1:
		return &dag.ConfigError{Message: "parquet_compact has one input and one output: give each dataset a job"}
	case job.UpdateStrategy == dag.Append:
		return &dag.ConfigError{Message: "parquet_compact writes all rows of a partition anew: leave " +
			"`update_strategy: append` out"}
	case slices.ContainsFunc(job.Storage, func(s dag.Storage) bool { return s.Kind == "postgres" }):
		return &dag.ConfigError{Message: "parquet_compact writes Parquet files: leave `storage: postgres` out"}
	}
	return nil
}

// compacted is the result of a run.
type compacted struct {
	Rows         int64  `json:"rows"`
	Hash         string `json:"hash"` // of the rows in their order
	FilesRead    int    `json:"files_read"`
	FilesWritten int    `json:"files_written"`
	BytesRead    int64  `json:"bytes_read"`
	BytesWritten int64  `json:"bytes_written"`
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
		return result, operators.Permanent(fault.New(fault.Invalid, "parquet_compact has one input and one output"))
	}

	t.Progress(0, "counting the rows")
	input := t.Inputs[0].As
	read, err := fingerprintOf(ctx, t, input)
	if err != nil {
		return result, err
	}
	done := compacted{Rows: read.rows, Hash: read.hash, FilesRead: len(t.InputFiles[0])}
	if done.BytesRead, err = sizeOf(t.InputFiles[0]); err != nil {
		return result, err
	}

	from, columns, err := t.Rows(ctx, 0)
	if err != nil {
		return result, err
	}
	whole, err := rowsOf(from)
	if err != nil {
		return result, err
	}
	files := min(max(1, (done.BytesRead+c.TargetBytes-1)/c.TargetBytes), max(1, read.rows), mostFiles)
	each := (read.rows + files - 1) / files
	var written []string
	for n := range files {
		t.Progress(int(90*n/files), fmt.Sprintf("writing file %d of %d", n+1, files))
		name := fmt.Sprintf("part-%05d.parquet", n)
		part := whole.cut(n*each, min((n+1)*each, read.rows))
		r := relations.Relation{Name: input, Files: part.files, Schema: t.Inputs[0].Schema}
		query := "SELECT * FROM " + sqltext.Quote(input)
		if len(part.files) == 1 && !slices.ContainsFunc(columns, isRowNumber) {
			r.Rows = &relations.Rows{From: part.skip, To: part.skip + part.rows}
		} else {
			query += fmt.Sprintf(" LIMIT %d OFFSET %d", part.rows, part.skip)
		}
		if _, result.Columns, err = t.SelectFrom(ctx, query, []relations.Relation{r}, 0, name); err != nil {
			return result, err
		}
		written = append(written, filepath.Join(t.OutputDirs[0], name))
	}

	t.Progress(90, "comparing the rows")
	if err := same(ctx, t, read, columns, written); err != nil {
		return result, err
	}
	done.FilesWritten = len(written)
	if done.BytesWritten, err = sizeOf(written); err != nil {
		return result, err
	}
	result.Result, err = json.Marshal(done)
	return result, err
}

// fingerprint says which rows there are, in which order.
type fingerprint struct {
	rows int64
	hash string
}

// fingerprintOf returns the fingerprint of a relation: of an input, or of one of more.
func fingerprintOf(
	ctx context.Context, t *operators.Task, name string, more ...relations.Relation,
) (f fingerprint, err error) {
	found, err := t.Ask(ctx, fmt.Sprintf("SELECT count(*), printf('%%x', coalesce(sum(hash(n, r)), 0)::HUGEINT) "+
		"FROM (SELECT row_number() OVER () AS n, %[1]s AS r FROM %[1]s)", sqltext.Quote(name)), 1, more...)
	if err != nil {
		return f, err
	}
	rows, counted := found[0][0].(int64)
	hash, hashed := found[0][1].(string)
	if !counted || !hashed {
		return f, fmt.Errorf("an engine says that the fingerprint of %s is %v", name, found[0])
	}
	return fingerprint{rows, hash}, nil
}

// same fails unless files have the rows of the input, in their order, and its columns.
func same(
	ctx context.Context, t *operators.Task, want fingerprint, columns []relations.Column, files []string,
) error {
	for _, file := range files {
		have, err := footer.Read(file)
		if err != nil {
			return err
		}
		if len(t.InputFiles[0]) > 0 && !slices.Equal(have.Columns, columns) {
			return fault.New(fault.Internal, "a file that was written has the columns %v, and the input has %v",
				have.Columns, columns)
		}
	}

	have, err := fingerprintOf(ctx, t, engine.Output, relations.Relation{Name: engine.Output, Files: files})
	if err == nil && have != want {
		err = fault.New(fault.Internal, "what was written has %d rows with the hash %s, and the input has %d with %s",
			have.rows, have.hash, want.rows, want.hash)
	}
	return err
}

// sizeOf returns how many bytes files have.
func sizeOf(files []string) (bytes int64, err error) {
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		bytes += info.Size()
	}
	return bytes, nil
}
