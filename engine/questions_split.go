package engine

import "github.com/dagctl/dagctl/dag"

// The questions to engines of kind Job about rows that belong to many partitions of time. All files are inside the
// engine's folder.
type (
	// Parts asks which partitions the rows of files belong to by a column; it is answered by a Parted. Without a
	// column, all rows are of one part, which has no key.
	Parts struct {
		Files  []string
		Column string
		By     dag.Partitioning
		Most   int // partitions
	}

	// Cut writes the rows of some partitions to a file each, in their order. Sorted is a file that it needs meanwhile.
	Cut struct {
		Files   []string
		Column  string
		By      dag.Partitioning
		Keys    []string
		Targets []string
		Sorted  string
	}
)

// Parted is the answer to Parts. If anything but Parts and Rows is set, the rows cannot be split, and there are no
// Parts.
type Parted struct {
	Parts    []Part // by their keys
	Rows     int64
	Missing  bool   // there is no such column
	Type     string // of the column, if rows are not split by it
	Nulls    int64  // rows without a value
	Infinite int64  // rows with an infinite one
	Outside  string // a value that lies in no partition
	Count    int    // of partitions, if there are more than may be
}

// Part is a partition that some rows belong to.
type Part struct {
	Key  string
	Rows int64
	Hash string // of the rows, in whatever order
}

// Verb implements Question.
func (Parts) Verb() string { return "parts" }

// Verb implements Question.
func (Cut) Verb() string { return "cut" }
