package engine

import (
	"encoding/json"

	"github.com/dagctl/dagctl/internal/relations"
)

// The questions to engines of kind Query. All files are inside the engine's folder.
type (
	// Reads asks for the relations that a statement reads. It is answered by a list of Reading.
	Reads struct{ SQL string }

	// Rows runs a statement over relations, of which nothing else exists. Its rows are streamed, each as a JSON list in
	// a line of its own; it is answered by a RowsRead.
	Rows struct {
		Scope     relations.Scope
		SQL       string
		Relations []relations.Relation
		Rows      int   // the most that are streamed
		Bytes     int64 // of them
		Arrow     bool  // they are streamed in Arrow's IPC format instead
	}

	// Compare compares the rows of two lists of files by their key. It is answered by a Compared.
	Compare struct {
		From, To []string
		Key      []string
		Shared   []string // columns whose values are compared
		Sample   int      // the most keys of the sample
	}
)

// Reading is a relation that a statement reads.
type Reading struct {
	Name  string // in lower case, like names of datasets
	Place string // where it is first named, for people
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
