package query

import (
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// Limits bound the resources that users' SQL may take.
type Limits struct {
	Concurrent int           // queries at once in this process
	Timeout    time.Duration // of one query, from request to answer
	Memory     int64         // bytes of DuckDB, of each query; it does not spill to disk
	Threads    int           // of each query
	Rows       int           // the most that one answer has
	Bytes      int64         // of the rows of one answer, as JSON
	// CopyBytes bounds the datasets in Postgres storage that one query may read, because their rows are copied first.
	CopyBytes int64
	// Exports are not bounded in rows and bytes, but in how many there are at once and in the time of each.
	Exports    int
	ExportTime time.Duration
}

// DefaultLimits suit a small server.
var DefaultLimits = Limits{
	Concurrent: 4, Timeout: 30 * time.Second, Memory: 512 << 20, Threads: 2, Rows: 10_000, Bytes: 16 << 20,
	CopyBytes: 1 << 30, Exports: 3, ExportTime: time.Hour,
}

// MaxSQL is how many bytes a statement may have.
const MaxSQL = 100_000

const (
	maxRelations = 100 // in one statement, at most
	defaultRows  = 1000
)

// Validate returns an error for the first limit that is too low or too high.
func (l Limits) Validate() error {
	for _, limit := range []struct {
		name               string
		value, least, most int64
	}{
		{"queries at once", int64(l.Concurrent), 1, 1000},
		{"seconds of a query", int64(l.Timeout / time.Second), 1, 3600},
		{"MB of memory of a query", l.Memory >> 20, 64, 1 << 20},
		{"threads of a query", int64(l.Threads), 1, 1000},
		{"rows of an answer", int64(l.Rows), 1, 1_000_000},
		{"MB of an answer", l.Bytes >> 20, 1, 1 << 10},
		{"MB of Postgres storage in a query", l.CopyBytes >> 20, 1, 1 << 20},
		{"exports at once", int64(l.Exports), 1, 1000},
		{"minutes of an export", int64(l.ExportTime / time.Minute), 1, 24 * 60},
	} {

		if limit.value < limit.least || limit.value > limit.most {
			return fault.New(fault.Invalid, "%s: %d is not between %d and %d",
				limit.name, limit.value, limit.least, limit.most)
		}
	}
	return nil
}
