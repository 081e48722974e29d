// Package textfile reads CSV, JSON and NDJSON files as rows of exact values, and writes them as Parquet.
//
// Vocabulary: a Declaration is what a job's config says of its files. A Reading is how all files of a dataset are read:
// dialect, columns and types. What is not declared is inferred once, from the first content that says something; from
// then on the Reading stands, and every file has to fit it. A Bad row is one that does not fit. A type is Open while
// only NULLs were seen. It is pure but for the files that it reads and writes, and it owns no tables.
package textfile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/itchyny/timefmt-go"
)

// Column is a column of a Reading, with DuckDB's name of its type. In an inferred type, "?" stands where only NULLs
// were seen so far.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Declaration is what a job's config says of its files.
type Declaration struct {
	Format           string            `json:"format"` // csv, json or ndjson
	Delimiter        string            `json:"delimiter,omitempty"`
	Quote            *string           `json:"quote,omitempty"`  // empty: no quoting
	Header           *bool             `json:"header,omitempty"` // whether the first line names the columns
	Encoding         string            `json:"encoding,omitempty"`
	SkipLines        int               `json:"skip_lines,omitempty"`
	Comment          string            `json:"comment,omitempty"` // lines that begin with it are no rows
	NullString       *string           `json:"null_string,omitempty"`
	DateFormat       string            `json:"date_format,omitempty"` // as in DuckDB's strptime
	TimestampFormat  string            `json:"timestamp_format,omitempty"`
	DecimalSeparator string            `json:"decimal_separator,omitempty"`
	Records          string            `json:"records,omitempty"`
	Types            map[string]string `json:"types,omitempty"`
	Columns          []string          `json:"columns,omitempty"`
	OptionalColumns  []string          `json:"optional_columns,omitempty"`
}

// Reading is how the files of a dataset are read.
type Reading struct {
	Format    string   `json:"format"`
	Delimiter string   `json:"delimiter,omitempty"`
	Quote     string   `json:"quote,omitempty"`
	Header    bool     `json:"header,omitempty"`
	Encoding  string   `json:"encoding,omitempty"`
	Columns   []Column `json:"columns"`
	// The file that showed what was not declared; empty: everything was declared
	InferredFrom string `json:"inferred_from,omitempty"`
}

// Equal reports whether both readings give every file the same rows.
func (r Reading) Equal(o Reading) bool {
	return r.Format == o.Format && r.Delimiter == o.Delimiter && r.Quote == o.Quote && r.Header == o.Header &&
		r.Encoding == o.Encoding && slices.Equal(r.Columns, o.Columns)
}

// Database is the format of readings of what a database answers: its columns have types already.
const Database = "database"

// formatsRead are those that a reading is for.
var formatsRead = []string{"csv", "json", "ndjson", "parquet", Database}

// typed reports whether what is read names the types of its columns, which may be more than those of text.
func (r Reading) typed() bool { return r.Format == "parquet" || r.Format == Database }

// Check checks a reading that somebody else made.
func (r Reading) Check() error {
	for _, c := range r.Columns {
		if r.typed() { // they are checked where they are used
			continue
		}
		if _, err := ParseType(c.Type); err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	if len(r.Columns) == 0 || !slices.Contains(formatsRead, r.Format) || len(r.Quote) > 1 {
		return fmt.Errorf("a reading has columns, a format of files, and a quote of one character")
	}
	return checkEncoding(r.Encoding)
}

// File is a file to read. Name is what people call it; Path is a local copy, whose name ends in .gz or .zst if it is
// compressed. Without a Path, the file is its Text.
type File struct {
	Name, Path string
	Text       []byte `json:"-"`
}

// Bad is a row that does not fit the reading.
type Bad struct {
	File   string
	Line   int64  // in the file, from 1; where the row begins
	Column string // empty: the row as a whole
	Value  string // at most 200 characters of it
	Reason string
	Row    string // the row as the file has it, 64 KiB of it at most
}

func (b Bad) String() string {
	text := fmt.Sprintf("%s line %d", b.File, b.Line)
	if b.Column != "" {
		text += ", column " + b.Column
	}
	switch {
	case b.Value == "":
		text += ":"
	case b.Value[0] == '"' && json.Valid([]byte(b.Value)): // a text of JSON, which has its quotes
		text += ": " + b.Value
	default:
		text += fmt.Sprintf(": %q", b.Value)
	}
	return text + " " + b.Reason
}

// Skipped reports whether the value is a time that the clocks of the zone skip.
func (b Bad) Skipped() bool { return strings.HasSuffix(b.Reason, putForward) }

// Untyped reports whether the value may fit another type.
func (b Bad) Untyped() bool { return !b.Skipped() && b.Reason != isMissing }

const (
	maxShown = 200
	maxKept  = 64 << 10
	// MaxRow is the longest row that is read, in bytes.
	MaxRow = 32 << 20
)

// cut returns the first n bytes of a text at most, without a character that this breaks.
func cut[T string | []byte](text T, n int) string {
	if len(text) <= n {
		return string(text)
	}
	end := n
	for end > n-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return string(text[:end]) + "…"
}

// Check checks what a declaration says.
func (d Declaration) Check() error {
	if d.Encoding != "" {
		if err := checkEncoding(d.Encoding); err != nil {
			return err
		}
	}
	if len(d.Delimiter) > 0 && d.Quote != nil && *d.Quote != "" && strings.Contains(d.Delimiter, *d.Quote) {
		return fmt.Errorf("the delimiter %q and the quote %q must differ", d.Delimiter, *d.Quote)
	}
	if strings.ContainsAny(d.Delimiter, "\r\n") {
		return fmt.Errorf("the delimiter cannot be the end of a line")
	}

	for _, format := range []string{d.DateFormat, d.TimestampFormat} {
		if format == "" {
			continue
		}
		example := time.Date(2026, 11, 23, 13, 14, 15, 0, time.UTC)
		if back, err := timefmt.Parse(timefmt.Format(example, format), format); err != nil || back.IsZero() {
			return fmt.Errorf("%q is not a format of dates, such as %%d/%%m/%%Y", format)
		}
	}
	return nil
}
