// Package relations describes named sets of rows: what a query reads, by its files, its columns and the conditions on
// its rows, and the scope that it is read in. Both sides of an engine speak of relations: the server, which has no
// DuckDB, and the process that runs queries.
package relations

import (
	"cmp"
	"time"

	"github.com/dagctl/dagctl/internal/late"
)

// Column is a column of a relation, with DuckDB's name of its type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Misfit is a value that a column cannot hold.
type Misfit struct {
	Part   int // of what was looked at
	Column Column
	Value  string // its text, at most 200 characters
	Row    int64  // its place in a file, from 1; 0: nobody asked
}

// Condition keeps the rows whose Column is one of Values (JSON scalars; nil stands for NULL).
type Condition struct {
	Column string `json:"column"`
	Values []any  `json:"values"`
}

// Relation is one named input of a query.
type Relation struct {
	Name   string
	Files  []string    // Parquet
	Schema []Column    // its columns if there are no files
	Fill   bool        // it has the columns of Schema with their types: what files lack is NULL
	Only   bool        // with Fill: it has no other columns, whatever the files have
	Where  []Condition // ANDed
	Range  *Range      // nil: all rows
	Rows   *Rows       // of one file, which has no column file_row_number; nil: all rows
	Alike  bool        // all files have the same columns, so that one footer gives them
	Keyed  bool        // statements may ask for Partition
	Keys   []string    // with Keyed: the partition of each file
}

// Partition is the column of a keyed relation that has the key of each row's partition. No star shows it.
const Partition = "_partition"

var namesPartition = late.Pattern(`(?i)(^|[^a-z0-9_])` + Partition + `($|[^a-z0-9_])`)

// NamesPartition reports whether a statement may ask for Partition.
func NamesPartition(statement string) bool { return namesPartition.MatchString(statement) }

// Rows keeps the rows of a file from the place From up to, but without, To; the first one is at 0.
type Rows struct{ From, To int64 }

// Range keeps the rows in which From ≤ Column < To.
type Range struct {
	Column   string
	From, To int64
}

// Limits are what a session may use.
type Limits struct {
	Memory  int64 // bytes; 0: 1 GiB
	Threads int   // 0: as many as the machine has
}

// MostMemory returns what DuckDB may hold, in bytes.
func (l Limits) MostMemory() int64 { return cmp.Or(l.Memory, 1<<30) }

// Scope is the zone in which a session shows and truncates instants and reads local times, and what getvariable()
// returns of the partition that the session works for. It never changes an instant.
type Scope struct {
	Zone       string     // IANA name; required
	Partition  *string    // its key; nil: the session works for no partition
	Start, End *time.Time // nil unless it is a partition of time
}

// UTC is the scope of sessions that work for no partition: previews, diffs and queries of datasets, which may have
// several zones.
var UTC = Scope{Zone: "UTC"}
