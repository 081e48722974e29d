package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators/textfile"
)

// FileRows is the part of a config that says how a source reads rows from files. A source in a folder of its own embeds
// it, and has FileRowsSchema among the properties of its schema.
type FileRows struct{ tabular }

// FileRowsSchema is the part of a config schema that describes FileRows.
const FileRowsSchema = tabularSchema

// ReadsFiles returns the spec of a source whose config embeds FileRows, with what the platform asks about its rows.
func ReadsFiles(spec dag.OperatorSpec) dag.OperatorSpec {
	spec.Shape, spec.CheckJob, spec.Reading = declaredColumns, checkOutputs, declaredReading
	return spec
}

// Check checks what FileRowsSchema cannot express.
func (r FileRows) Check() *dag.ConfigError { return r.tabular.check() }

// Local returns the path in a task's scratch folder for the copy of a file: number is its place among the task's files.
// The path says how the file is compressed.
func (r FileRows) Local(t *Task, number int, name string) string {
	return filepath.Join(t.Scratch, fmt.Sprintf("%05d.%s%s", number, r.Format, compression(name)))
}

// Read writes the rows of the files to the task's first output, and those that do not fit to its quarantine. The rows
// are read as those before were.
func (r FileRows) Read(ctx context.Context, t *Task, files []textfile.File) (RowsRead, error) {
	found, err := reads{tabular: r.tabular, task: t}.convert(ctx, files)
	return RowsRead{Rows: found.Rows, BadRows: found.BadRows, Reading: found.reading}, err
}

// FilesVersion returns the version of a unit of files, by their names and what identifies the content of each. One file
// may be renamed; the order of several is that of their names.
func FilesVersion(names, contents []string) string {
	if len(contents) == 1 {
		return contents[0]
	}
	return unitVersion(names, contents)
}

// FileResult is the result of a task that read files, for people.
func FileResult(read RowsRead, names []string) (json.RawMessage, error) {
	return json.Marshal(readFiles{Rows: read.Rows, BadRows: read.BadRows, Files: names})
}
