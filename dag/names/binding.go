package names

import "github.com/dagctl/dagctl/dag"

// Binder binds statements over relations of which only the columns are known. It runs none of them.
type Binder interface {
	// Bind binds the statements of jobs. An input may be an output of an earlier job in the list. An error says that
	// nobody could look.
	Bind(jobs []Job) ([]Bound, error)
}

// Job is what a Binder is told of a job.
type Job struct {
	Inputs  []Input
	Queries []string       // of its outputs, by index; nil: Outputs has their columns
	Outputs [][]dag.Column // by index; nil: not known
	Checks  []Check        // statements over the inputs and one output
	// Timeless says that the start and the end of the job's partitions are NULL, whose types only a run knows.
	Timeless bool
}

// Input is a relation. Its columns are listed, or they are those of an output of an earlier job in the list. Where
// Columns is nil, they are not known; neither is the type of a column with an empty one.
type Input struct {
	Name    string
	Columns []dag.Column
	Earlier int // the place of the job in the list, from 1; 0: the columns are in Columns
	Output  int // of that job
}

// Check is a statement that reads an output as the relation "output".
type Check struct {
	SQL    string
	Output int
}

// Bound is what a Binder found of a job.
type Bound struct {
	Outputs [][]dag.Column // by index; nil: not known
	Queries [][]Fault      // by query
	Checks  [][]Fault      // by check
}

// Fault is why a statement cannot be bound.
type Fault struct {
	Offset, Width int // in bytes; Offset -1: somewhere in it
	Message, Hint string
	// Unknown is the name at fault, and Known are those there are; empty: no name is.
	Unknown string
	Known   []string
}
