package engine

import (
	"encoding/json"

	"github.com/dagctl/dagctl/internal/relations"
)

// The questions to engines of kind Query. All files are inside the engine's folder.
type (
	// Reads asks for the relations that a statement reads. It is answered by a list of Reading.
	Reads struct{ SQL string }

	// Rows runs a statement over relations, of which nothing else exists. What it returns is streamed; it is answered
	// by a RowsRead.
	Rows struct {
		Scope     relations.Scope
		SQL       string
		Relations []relations.Relation
		Rows      int   // the most that are streamed; 0: all, but not of AsLines
		Bytes     int64 // of them, as Rows
		As        Streamed
	}

	// Compare compares the rows of two lists of files by their key. It is answered by a Compared.
	Compare struct {
		From, To []string
		Key      []string
		Shared   []string // columns whose values are compared
		Sample   int      // the most keys of the sample
	}
)

// Streamed is what is streamed of a statement.
type Streamed string

// What is streamed. A plan has no rows: the statement is not run.
const (
	AsLines   Streamed = ""        // each row is a JSON list in a line of its own
	AsArrow   Streamed = "arrow"   // a stream of Arrow's IPC format
	AsParquet Streamed = "parquet" // a file
	AsPlan    Streamed = "plan"    // text for people: how the statement would be run
	AsCSV     Streamed = "csv"     // with a line of names
	AsNDJSON  Streamed = "ndjson"  // each row is a JSON object in a line of its own
	AsNothing Streamed = "nothing" // the statement is not run, but its columns are known
)

// Reading is a relation that a statement reads.
type Reading struct {
	Name  string // in lower case, like names of datasets
	Place string // where it is first named, for people
	// Partitions says which of its partitions the statement reads; nil: it may read all.
	Partitions *relations.Keys
}

// RowsRead is the answer to Rows.
type RowsRead struct {
	Columns   []relations.Column
	Count     int                 // of rows
	Truncated bool                // there are more
	Read      map[string][]string // the columns that may have been read, by relation
	Failed    *Failure            // why the rows are not all there; what was read is known nevertheless
}

// Compared is the answer to Compare.
type Compared struct {
	OnlyFrom, OnlyTo, Changed int64
	Sample                    [][]json.RawMessage // the kind of change, and the key
}

func (Reads) Verb() string   { return "reads" }
func (Rows) Verb() string    { return "rows" }
func (Compare) Verb() string { return "compare" }
