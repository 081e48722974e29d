package engine

import (
	"encoding/json"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators/textfile"
)

// The questions to engines of kind Parse. None of them reads a row.
type (
	// Canonical asks for the form of a statement that does not depend on layout and comments. It is answered by a Form,
	// and fails for everything that is not one SELECT that users may run.
	Canonical struct{ SQL string }

	// Expand asks for statements with the macros that they call written out, which files of CREATE MACRO statements
	// define. It is answered by a dag.Expanded, which has no statements where a file has faults.
	Expand struct{ Files, Statements []string }

	// Shape asks for the columns that statements read and write; it is answered by a Shaped.
	Shape struct {
		Queries   []string
		Bind      []bool // whether the columns of the query's result are asked for
		Relations map[string][]relations.Column
		Checks    []string // SQL checks
	}

	// Derive asks what decides the result of a statement; it is answered by a Derived.
	Derive struct {
		SQL       string
		Relations map[string][]string // columns; nil: not known
	}

	// Explain asks where the values of a statement's columns come from; it is answered by an Explained.
	Explain struct {
		SQL       string
		Relations map[string][]relations.Column
	}

	// Counted asks for the columns of a relation that decide whether a check finds any row; it is answered by a
	// CountedColumns.
	Counted struct {
		SQL      string
		Relation string
		Columns  []string
	}
)

// Form is the answer to Canonical.
type Form struct {
	Hash  string
	Reads []Mention // the relations that it reads and does not define itself
	Names []string  // of its result's columns, as far as the text alone says them; nil: it does not
}

// Mention is a name in a statement.
type Mention struct {
	Name  string
	Place string // such as " (line 1, column 15)"; empty: not known
}

// Shaped is the answer to Shape.
type Shaped struct {
	Read   map[string][]string   // the columns that the queries may read, by relation
	Named  bool                  // they name all that they read
	Writes [][]relations.Column  // by query, as they are stored; nil: not known
	Failed []*Failure            // by query: a column that no storage can hold
	Lacks  []*relations.Lack     // by query: a column that it names and that is not there
	Checks []map[string][]string // the columns that each check names, by relation
}

// Derived is the answer to Derive.
type Derived struct {
	relations.Derivation

	Sure bool // otherwise the statement is not followed
}

// Explained is the answer to Explain.
type Explained struct{ Columns []relations.ColumnLineage }

// CountedColumns is the answer to Counted.
type CountedColumns struct {
	Names []string
	Sure  bool // otherwise it may be all columns
}

// The questions to engines of kind Job. All files are inside the engine's folder.
type (
	// Open begins the work for one partition: relations are created, and all of the work before is forgotten. It is
	// answered by an Opened.
	Open struct {
		Scope     relations.Scope
		Relations []relations.Relation
	}

	// Add creates one more relation, in place of one of the same name; it is answered by its columns.
	Add struct{ Relation relations.Relation }

	// Select runs a user's statement over the open relations, and writes its rows; it is answered by a Selected.
	Select struct {
		SQL    string
		Target string
	}

	// Export writes the rows of an open relation, as parquet, arrow, csv or ndjson.
	Export struct{ Relation, Target, Format string }

	// Convert writes the rows of Parquet files as rows of the given columns, by casts that lose nothing; what a file
	// lacks is NULL. It is answered by a Converted.
	Convert struct {
		Files   []string
		Columns []relations.Column
		Target  string
	}

	// Empty writes a file without rows.
	Empty struct {
		Columns []relations.Column
		Target  string
	}

	// Positions asks where a cursor column of files begins and ends; it is answered by a Positioned.
	Positions struct {
		Files  []string
		Column string
	}

	// Merge joins the rows of two lists of files, with one row per key, the last one; it is answered by a Merged.
	Merge struct {
		Key         []string
		Base, Added []string
		Keep        bool   // write nothing if they can be kept as they are
		Target      string // otherwise
	}

	// Text reads text files as rows; it is answered by a TextRead.
	Text struct {
		Declaration textfile.Declaration
		Zone        string
		Standing    *textfile.Reading
		Required    string // the column in which every row has a value; empty: none
		Files       []textfile.File
		Target      string
		Quarantine  string // where rows go that do not fit; empty: nowhere
	}

	// Fit looks for a value that does not fit the column of its name, in files by part; it is answered by the first
	// Misfit, or by null.
	Fit struct {
		Parts   [][]string
		Columns []relations.Column
	}

	// Check runs checks over the open relations, of which Output is the one that is checked; it is answered by one
	// CheckOutcome for each.
	Check struct {
		Checks []dag.Check
		Now    time.Time // that freshness is measured from
	}
)

// Output is the name of the relation that checks are about.
const Output = "output"

// Opened is the answer to Open: the columns of each relation, in the order of the question.
type Opened struct{ Columns [][]relations.Column }

// Selected is the answer to Select.
type Selected struct {
	Rows    int64
	Columns []relations.Column
	Origins []relations.Origin
}

// Converted is the answer to Convert: Rows were written, or nothing because of Misfit, whose Part is the file.
type Converted struct {
	Rows   int64
	Misfit *relations.Misfit
}

// Positioned is the answer to Positions. Without rows, there are no lowest and highest.
type Positioned struct {
	Lowest, Highest *int64
	Nulls           int64
}

// Merged is the answer to Merge.
type Merged struct {
	Apart bool // no key is in both, and none repeats: nothing was written
	Rows  int64
}

// TextRead is the answer to Text.
type TextRead struct {
	Result  textfile.Result
	Unknown bool // nobody knows the columns: there is no file
}

// CheckOutcome is the outcome of one check.
type CheckOutcome struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Passed   bool   `json:"passed"`
	// Failures counts the failing rows; a check of the whole revision (row_count, freshness) fails once.
	Failures int64 `json:"failures"`
	// Sample is {"columns": [...], "rows": [[...]]}, at most 20 failing rows. It contains data: show it only to people
	// who may read the dataset.
	Sample json.RawMessage `json:"sample,omitempty"`
	// Error says why the check could not run. A check that could not run has not passed.
	Error string `json:"error,omitempty"`
}

// Verbs implement Question.

func (Canonical) Verb() string { return "canonical" }
func (Expand) Verb() string    { return "expand" }
func (Shape) Verb() string     { return "shape" }
func (Derive) Verb() string    { return "derive" }
func (Explain) Verb() string   { return "explain" }
func (Counted) Verb() string   { return "counted" }
func (Open) Verb() string      { return "open" }
func (Add) Verb() string       { return "add" }
func (Select) Verb() string    { return "select" }
func (Export) Verb() string    { return "export" }
func (Convert) Verb() string   { return "convert" }
func (Empty) Verb() string     { return "empty" }
func (Positions) Verb() string { return "positions" }
func (Merge) Verb() string     { return "merge" }
func (Text) Verb() string      { return "text" }
func (Fit) Verb() string       { return "fit" }
func (Check) Verb() string     { return "check" }
