package operators

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
)

// tabular describes how to read a source's bytes as rows. file_source and http_source share its fields and schema.
type tabular struct {
	textfile.Declaration
	OnBadRows string `json:"on_bad_rows"`
}

// What on_bad_rows may say.
const (
	badRowsFail       = "fail"
	badRowsQuarantine = "quarantine"
)

// tabularSchema is the part of a config schema that describes a tabular.
const tabularSchema = `
    "format": {"enum": ["csv", "json", "ndjson", "parquet"],
      "description": "How to read the bytes. A name that ends in .gz or .zst is decompressed first."},
    "delimiter": {"type": "string", "minLength": 1, "maxLength": 4,
      "description": "csv: the separator of the fields; by default as in the first file."},
    "quote": {"type": "string", "maxLength": 1,
      "description": "csv: the character around values, \" by default; empty: values are never quoted."},
    "header": {"type": "boolean",
      "description": "csv: whether the first line names the columns; by default as in the first file."},
    "encoding": {"type": "string", "minLength": 1,
      "description": "csv, json, ndjson: name of the text's encoding, such as windows-1252; UTF-8 by default."},
    "skip_lines": {"type": "integer", "minimum": 0, "maximum": 1000,
      "description": "csv: the number of lines before the first row; none by default."},
    "comment": {"type": "string", "minLength": 1, "maxLength": 4,
      "description": "csv: lines that begin with this are no rows; by default every line is one."},
    "null_string": {"type": "string", "description": "csv: the text for NULL; the empty field by default."},
    "date_format": {"type": "string", "minLength": 1,
      "description": "csv, json, ndjson: how dates are written, such as %d/%m/%Y; ISO 8601 by default."},
    "timestamp_format": {"type": "string", "minLength": 1,
      "description": "csv, json, ndjson: how dates with a time are written; ISO 8601 by default."},
    "decimal_separator": {"enum": [".", ","], "description": "csv: what separates a number's fraction; a point by default."},
    "records": {"type": "string", "minLength": 1,
      "description": "json: path of the list of rows, with dots between its parts; \"features\" for GeoJSON."},
    "types": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1000},
      "description": "DuckDB types of columns; those of the others are inferred from the first file and stand from then on."},
    "columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns to keep, in this order; all by default."},
    "optional_columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "csv, parquet: columns that a file may lack: they are NULL then."},
    "on_bad_rows": {"enum": ["fail", "quarantine"],
      "description": "csv, json, ndjson: what becomes of rows that do not fit. fail, the default: the file is not published. quarantine: they go to the job's output quarantine."}`

// DecodeConfig reads a config that has passed its schema into a struct.
func DecodeConfig(config map[string]any, into any) error {
	text, err := json.Marshal(config)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fault.New(fault.Invalid, "config: %w", err)
	}
	return nil
}

// check checks what the schema cannot express.
func (f tabular) check() *dag.ConfigError {
	for _, column := range sortedKeys(f.Types) {
		if err := f.checkType(f.Types[column]); err != nil {
			return &dag.ConfigError{Key: "types", Message: fmt.Sprintf("%s: %s", column, err)}
		}
	}
	if err := f.Declaration.Check(); err != nil {
		return &dag.ConfigError{Message: err.Error()}
	}

	text := []string{"csv", "json", "ndjson"}
	for _, use := range []struct {
		set     bool
		key     string
		formats []string
	}{
		{f.Delimiter != "", "delimiter", text[:1]}, {f.Header != nil, "header", text[:1]},
		{f.Quote != nil, "quote", text[:1]}, {f.SkipLines > 0, "skip_lines", text[:1]},
		{f.Comment != "", "comment", text[:1]}, {f.NullString != nil, "null_string", text[:1]},
		{f.DecimalSeparator != "", "decimal_separator", text[:1]},
		{len(f.OptionalColumns) > 0, "optional_columns", []string{"csv", "parquet"}},
		{f.Records != "", "records", text[1:2]},
		{f.Encoding != "", "encoding", text}, {f.DateFormat != "", "date_format", text},
		{f.TimestampFormat != "", "timestamp_format", text},
		{f.OnBadRows == badRowsQuarantine, "on_bad_rows", text},
	} {
		if use.set && !slices.Contains(use.formats, f.Format) {
			return &dag.ConfigError{Key: use.key, Message: fmt.Sprintf("%s is for format %s, not %s", use.key,
				strings.Join(use.formats, " or "), f.Format)}
		}
	}
	return nil
}

func (f tabular) checkType(name string) error {
	if f.Format == "parquet" {
		if !sqltext.IsType(name) { // it goes into statements as it is
			return fmt.Errorf("%q is not the name of a DuckDB type", name)
		}
		return nil
	}

	t, err := textfile.ParseType(name)
	switch {
	case err != nil:
		return err
	case t.Kind == textfile.Open:
		return fmt.Errorf("%q is not the name of a DuckDB type", name)
	case f.Format == "csv" && (t.Kind == textfile.List || t.Kind == textfile.Struct):
		return fmt.Errorf("a field of a CSV file cannot be a %s: read it as VARCHAR and cast it in a sql job", name)
	}
	return nil
}

// compression returns ".gz", ".zst" or "".
func compression(name string) string {
	for _, ext := range []string{".gz", ".zst"} {
		if strings.HasSuffix(strings.ToLower(name), ext) {
			return ext
		}
	}
	return ""
}

// reads is a run that reads files as rows.
type reads struct {
	tabular
	options Options
	task    *Task
}

// convert writes the rows of the files to the task's first output, and what does not fit to its quarantine. It returns
// the reading if that is news.
func (r reads) convert(ctx context.Context, files []textfile.File) (found readFiles, err error) {
	target := filepath.Join(r.task.OutputDirs[0], "part.parquet")
	if r.Format == "parquet" {
		found, err = r.convertParquet(ctx, files, target)
	} else {
		found, err = r.convertText(ctx, files, target)
	}

	var marked permanent
	if err != nil && ctx.Err() == nil && !errors.As(err, &marked) && !SaysNothing(err) {
		// The error is not wrapped: for DuckDB a broken row is a permanent error of the input, but here the file may
		// still be being written, and the next attempt finds it complete.
		message := strings.ReplaceAll(err.Error(), r.task.Scratch+string(os.PathSeparator), "")
		again := fault.New(fault.Unavailable, "the input cannot be read as %s: %s", r.Format, message)
		var known *fault.Error
		if errors.As(err, &known) {
			again.Hint = known.Hint
		}
		return found, again
	}
	return found, err
}

// readFiles is the result of reading files.
type readFiles struct {
	Rows    int64    `json:"rows"`
	BadRows int64    `json:"bad_rows,omitempty"`
	Files   []string `json:"files,omitempty"`
	reading json.RawMessage
}

func (r reads) convertText(ctx context.Context, files []textfile.File, target string) (found readFiles, err error) {
	zone, err := time.LoadLocation(r.task.PartitionBy.Timezone)
	if err != nil {
		return found, Permanent(err)
	}
	q := engine.Text{Declaration: r.Declaration, Zone: zone.String(), Files: files,
		Required: r.task.SplitBy}
	if q.Standing, err = r.standing(); err != nil {
		return found, err
	}

	quarantine := ""
	if r.OnBadRows == badRowsQuarantine {
		if len(r.task.OutputDirs) != 2 {
			return found, Permanent(fault.New(fault.Invalid, "on_bad_rows: quarantine needs two outputs"))
		}
		quarantine = filepath.Join(r.task.OutputDirs[1], "part.parquet")
	}

	read, err := r.task.work.readText(ctx, q, target, quarantine)
	switch {
	case err != nil:
		return found, err
	case read.Unknown:
		return found, fault.New(fault.Unavailable, "%w", textfile.ErrUnknown).
			WithHint("the first file with rows shows them, and this one is read then; or declare them all: their " +
				"names in `columns`, and the type of each in `types`")
	case read.Result.BadRows > 0 && quarantine == "":
		return found, badRowsError(read.Result, r.mending(read.Result.Examples))
	}

	found.Rows, found.BadRows = read.Result.Rows, read.Result.BadRows
	if q.Standing == nil || !q.Standing.Equal(read.Result.Reading) {
		found.reading, err = json.Marshal(read.Result.Reading)
	}
	return found, err
}

// standing returns the reading that stood when the task began; nil if none did.
func (r reads) standing() (*textfile.Reading, error) {
	if len(r.task.Reading) == 0 {
		return nil, nil
	}
	standing := new(textfile.Reading)
	if err := json.Unmarshal(r.task.Reading, standing); err != nil {
		return nil, fmt.Errorf("standing reading: %w", err)
	}
	return standing, nil
}

// OpenReading reports whether a reading leaves the type of a column open.
func OpenReading(text json.RawMessage) bool {
	var r textfile.Reading
	return len(text) > 0 && json.Unmarshal(text, &r) == nil && r.Open()
}

// CheckReading checks that a text is a reading.
func CheckReading(text json.RawMessage) error {
	var r textfile.Reading
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return fmt.Errorf("is no reading: %w", err)
	}
	return r.Check()
}

// mending says what can be done about rows that do not fit.
func (r reads) mending(bad []textfile.Bad) string {
	ways := []string{"mend the file"}
	skipped := slices.ContainsFunc(bad, textfile.Bad.Skipped)
	if skipped {
		ways = append(ways, "write times that the clocks skip with their offset from UTC, as 02:30:00+01:00")
	}
	declared := func(column string) bool {
		return slices.ContainsFunc(sortedKeys(r.Types), func(name string) bool { return sqltext.Same(name, column) })
	}
	if slices.ContainsFunc(bad, func(b textfile.Bad) bool { return b.Untyped() && !declared(b.Column) }) {
		ways = append(ways, "name the column's type in `types`")
	}
	return strings.Join(append(ways, "keep such rows apart with `on_bad_rows: quarantine`"), "; or ")
}

func badRowsError(r textfile.Result, hint string) error {
	shown := make([]string, len(r.Examples))
	for i, b := range r.Examples {
		shown[i] = b.String()
	}
	more := ""
	if n := r.BadRows - int64(len(shown)); n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fault.New(fault.Unavailable, "%d of %d rows do not fit: %s%s", r.BadRows, r.Rows+r.BadRows,
		strings.Join(shown, "; "), more).
		WithHint("%s", hint)
}

// SaysNothing reports whether a run failed only because its files show no columns, and nothing else does yet.
func SaysNothing(err error) bool { return errors.Is(err, textfile.ErrUnknown) }

// ConfigError returns the fault of a config as an error that users see.
func ConfigError(e *dag.ConfigError) error {
	if e.Key == "" {
		return fault.New(fault.Invalid, "config: %s", e.Message)
	}
	return fault.New(fault.Invalid, "config.%s: %s", e.Key, e.Message)
}
