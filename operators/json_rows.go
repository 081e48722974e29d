package operators

import (
	"context"
	"encoding/json"
	"path/filepath"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators/textfile"
)

// JSONRows is the part of a config that says how a source reads rows that it gets as JSON objects. A source in a folder
// of its own embeds it, and has JSONRowsSchema among the properties of its schema.
type JSONRows struct {
	Types           map[string]string `json:"types"`
	Columns         []string          `json:"columns"`
	DateFormat      string            `json:"date_format"`
	TimestampFormat string            `json:"timestamp_format"`
	OnBadRows       string            `json:"on_bad_rows"`
}

// JSONRowsSchema is the part of a config schema that describes JSONRows.
const JSONRowsSchema = `
    "types": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1000},
      "description": "DuckDB types of columns; those of the others are inferred from the first rows and stand from then on."},
    "columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns to keep, in this order; all by default."},
    "date_format": {"type": "string", "minLength": 1,
      "description": "How dates are written, such as %d/%m/%Y; ISO 8601 by default."},
    "timestamp_format": {"type": "string", "minLength": 1,
      "description": "How dates with a time are written; ISO 8601 by default."},
    "on_bad_rows": {"enum": ["fail", "quarantine"],
      "description": "What becomes of rows that do not fit. fail, the default: nothing is published. quarantine: they go to the job's output quarantine."}`

// RowsRead is how many rows a source read, and how they are read from now on.
type RowsRead struct {
	Rows    int64
	BadRows int64           // in the quarantine
	Reading json.RawMessage // for Result.Reading; nil: as before
}

// ReadsJSONRows returns the spec of a source whose config embeds JSONRows, with what the platform asks about its rows.
func ReadsJSONRows(spec dag.OperatorSpec) dag.OperatorSpec {
	spec.Shape, spec.CheckJob = declaredColumns, checkOutputs
	spec.Reading = func(config map[string]any) any {
		var r JSONRows
		if err := DecodeConfig(config, &r); err != nil {
			return nil
		}
		return r.tabular().Declaration
	}
	return spec
}

// Check checks what JSONRowsSchema cannot express.
func (r JSONRows) Check() *dag.ConfigError { return r.tabular().check() }

// Read writes the rows of a file of NDJSON to the task's first output, and those that do not fit to its quarantine.
// name is what errors call the file. The rows are read as those before were.
func (r JSONRows) Read(ctx context.Context, t *Task, name, path string) (RowsRead, error) {
	found, err := reads{tabular: r.tabular(), task: t}.convert(ctx, []textfile.File{{Name: name, Path: path}})
	return RowsRead{Rows: found.Rows, BadRows: found.BadRows, Reading: found.reading}, err
}

func (r JSONRows) tabular() tabular {
	return tabular{OnBadRows: r.OnBadRows, Declaration: textfile.Declaration{Format: "ndjson", Types: r.Types,
		Columns: r.Columns, DateFormat: r.DateFormat, TimestampFormat: r.TimestampFormat}}
}

// RowsAsJSON writes the rows of an input that the job reads to a file of NDJSON below Scratch, in their order. It
// returns "" if the input has no files.
func (t *Task) RowsAsJSON(ctx context.Context, input int) (file string, err error) {
	rel, err := t.relation(input)
	if err != nil {
		return "", Permanent(err)
	}
	if len(rel.Files) == 0 {
		return "", nil
	}
	if err := t.work.open(ctx, t.Scope(), []relations.Relation{rel}); err != nil {
		return "", err
	}
	return t.exportJSON(ctx, rel.Name)
}

func (t *Task) exportJSON(ctx context.Context, relation string) (string, error) {
	file := filepath.Join(t.Scratch, "input.ndjson")
	return file, t.work.write(ctx, file, func(inside string) engine.Question {
		return engine.Export{Relation: relation, Target: inside, Format: "ndjson"}
	}, nil)
}

// WriteJSON writes a file of NDJSON, whose objects have exactly the given columns, as the content of an output.
func (t *Task) WriteJSON(ctx context.Context, output int, columns []dag.Column, file string) error {
	r := JSONRows{Types: map[string]string{}}
	for _, c := range columns {
		r.Types[c.Name] = c.Type
		r.Columns = append(r.Columns, c.Name)
	}
	q := engine.Text{Declaration: r.tabular().Declaration, Zone: "UTC", Files: textFiles([]string{file})}
	read, err := t.work.readText(ctx, q, filepath.Join(t.OutputDirs[output], "part.parquet"), "")
	if err == nil && read.Result.BadRows > 0 {
		err = fault.New(fault.Internal, "%d rows of %s do not fit their columns", read.Result.BadRows, t.Operator)
	}
	return err
}
