package operators

import (
	"context"
	"encoding/json"

	"github.com/dagctl/dagctl/dag"
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
