package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
)

// tabular describes how to read a source's bytes as rows. file_source and http_source share its fields and schema.
type tabular struct {
	Format     string            `json:"format"`
	Delimiter  string            `json:"delimiter"`
	Header     *bool             `json:"header"`
	NullString *string           `json:"null_string"`
	Records    string            `json:"records"`
	Types      map[string]string `json:"types"`
	Columns    []string          `json:"columns"`
}

// tabularSchema is the part of a config schema that describes a tabular.
const tabularSchema = `
    "format": {"enum": ["csv", "json", "ndjson", "parquet"],
      "description": "How to read the bytes. A name that ends in .gz or .zst is decompressed first."},
    "delimiter": {"type": "string", "minLength": 1, "maxLength": 4,
      "description": "csv: the separator of the fields; detected by default."},
    "header": {"type": "boolean",
      "description": "csv: whether the first line names the columns; detected by default."},
    "null_string": {"type": "string", "description": "csv: the text for NULL; the empty field by default."},
    "records": {"type": "string", "minLength": 1,
      "description": "json: path of the list of rows, with dots between its parts; \"features\" for GeoJSON."},
    "types": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1000},
      "description": "DuckDB types of columns, instead of detected ones."},
    "columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns to keep, in this order; all by default."}`

// decodeConfig reads a config that has passed its schema into a struct.
func decodeConfig(config map[string]any, into any) error {
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
		if !duck.IsType(f.Types[column]) { // it goes into statements as it is
			return &dag.ConfigError{Key: "types", Message: fmt.Sprintf("%s: %q is not the name of a DuckDB type",
				column, f.Types[column])}
		}
	}

	only := func(set bool, key string, formats ...string) *dag.ConfigError {
		if set && !slices.Contains(formats, f.Format) {
			return &dag.ConfigError{Key: key, Message: fmt.Sprintf("%s is for format %s, not %s", key,
				strings.Join(formats, " or "), f.Format)}
		}
		return nil
	}

	for _, fault := range []*dag.ConfigError{
		only(f.Delimiter != "", "delimiter", "csv"), only(f.Header != nil, "header", "csv"),
		only(f.NullString != nil, "null_string", "csv"), only(f.Records != "", "records", "json"),
	} {
		if fault != nil {
			return fault
		}
	}
	return nil
}

// query returns the SELECT that reads the files. They must be local and have the extension of their compression.
func (f tabular) query(files []string) (string, error) {
	var from string
	list := make([]string, len(files))
	for i, file := range files {
		list[i] = duck.Literal(file)
	}

	source := "[" + strings.Join(list, ", ") + "]"
	casts := f.Types
	switch f.Format {
	case "csv":
		from, casts = "SELECT * FROM "+f.csv(source, len(files) > 1), nil
	case "json", "ndjson":
		size, err := objectSize(files)
		if err != nil {
			return "", err
		}
		layout := "auto"
		if f.Format == "ndjson" {
			layout = "newline_delimited"
		}
		from = fmt.Sprintf("SELECT * FROM read_json(%s, format = '%s', sample_size = -1, maximum_object_size = %d, "+
			"union_by_name = true, hive_partitioning = false)",
			source, layout, size)
		if f.Records != "" {
			parts := strings.Split(f.Records, ".")
			for i, p := range parts {
				parts[i] = duck.Quote(p)
			}
			from = fmt.Sprintf("SELECT record.* FROM (SELECT unnest(%s) AS record FROM (%s))", strings.Join(parts, "."),
				from)
		}
	case "parquet":
		from = "SELECT * FROM " + duck.ReadParquet(files)
	default:
		return "", fault.New(fault.Invalid, "unknown format %q", f.Format)
	}
	return "SELECT " + f.columns(casts) + " FROM (" + from + ")", nil
}

// csv reads the whole file to detect types: a value that does not fit must not turn up halfway through.
func (f tabular) csv(source string, several bool) string {
	options := []string{source, "sample_size = -1", "hive_partitioning = false",
		fmt.Sprintf("union_by_name = %t", several)}
	if f.Delimiter != "" {
		options = append(options, "delim = "+duck.Literal(f.Delimiter))
	}
	if f.Header != nil {
		options = append(options, fmt.Sprintf("header = %t", *f.Header))
	}
	if f.NullString != nil {
		options = append(options, "nullstr = "+duck.Literal(*f.NullString))
	}

	if len(f.Types) > 0 {
		var types []string
		for _, column := range sortedKeys(f.Types) {
			types = append(types, duck.Literal(column)+": "+duck.Literal(f.Types[column]))
		}
		options = append(options, "types = {"+strings.Join(types, ", ")+"}")
	}
	return "read_csv(" + strings.Join(options, ", ") + ")"
}

func (f tabular) columns(casts map[string]string) string {
	as := func(column string) string {
		if t, ok := casts[column]; ok {
			return fmt.Sprintf("CAST(%[1]s AS %[2]s) AS %[1]s", duck.Quote(column), t)
		}
		return duck.Quote(column)
	}

	if len(f.Columns) > 0 {
		list := make([]string, len(f.Columns))
		for i, column := range f.Columns {
			list[i] = as(column)
		}
		return strings.Join(list, ", ")
	}

	if len(casts) == 0 {
		return "*"
	}
	var list []string
	for _, column := range sortedKeys(casts) {
		list = append(list, as(column))
	}
	return "* REPLACE (" + strings.Join(list, ", ") + ")"
}

// objectSize is the largest JSON object to expect, which may be a whole file. DuckDB reserves a buffer of that size.
func objectSize(files []string) (int64, error) {
	const least, most = 16 << 20, 256 << 20
	size := int64(least)
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		n := info.Size()
		if compression(file) != "" {
			n *= 20
		}
		size = max(size, n)
	}
	return min(size, most), nil
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

// convert writes the rows of local files to one Parquet file.
func (f tabular) convert(ctx context.Context, scratch string, o Options, local []string, target string) (int64, error) {
	// A local time in a column of instants is one in UTC, for text says no zone, and its source may have no partition.
	session, err := duck.OpenData(ctx, duck.Data{Scope: duck.UTC, Limits: o.limits(),
		Files: append(slices.Clone(local), target), Dirs: []string{scratch}, Spill: scratch})
	if err != nil {
		return 0, err
	}
	defer session.Close()

	query, err := f.query(local)
	if err != nil {
		return 0, err
	}
	rows, err := session.CopyToParquet(ctx, query, target)
	if err != nil && ctx.Err() == nil {
		// The error is not wrapped: for DuckDB a broken row is a permanent error of the input, but here the file may
		// still be being written, and the next attempt finds it complete.
		message := strings.ReplaceAll(err.Error(), scratch+string(os.PathSeparator), "")
		return 0, fault.New(fault.Unavailable, "the input cannot be read as %s: %s", f.Format, message)
	}
	return rows, err
}

func configError(e *dag.ConfigError) error {
	if e.Key == "" {
		return fault.New(fault.Invalid, "config: %s", e.Message)
	}
	return fault.New(fault.Invalid, "config.%s: %s", e.Key, e.Message)
}
