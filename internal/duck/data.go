package duck

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A Data session reads rows of users, by their SQL or by the platform's own. Every place that does so opens it by
// OpenData, so that a row means the same in a job, in its checks and in what its programs read.
type Data struct {
	Scope  Scope // required
	Limits Limits
	Files  []string // that it may read and write, absolute
	Dirs   []string // folders that it may read and write, absolute
	Spill  string   // one of Dirs, where it may spill; empty: it does not spill
}

// Limits are what a session may use.
type Limits struct {
	Memory  int64 // bytes; 0: 1 GiB
	Threads int   // 0: as many as the machine has
}

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

// variables returns the variables for getvariable(). All are set, so that a query may use any.
func (s Scope) variables() map[string]any {
	v := map[string]any{"partition": nil, "start": nil, "end": nil}
	if s.Partition != nil {
		v["partition"] = *s.Partition
	}
	if s.Start != nil && s.End != nil {
		v["start"], v["end"] = *s.Start, *s.End
	}
	return v
}

// OpenData starts a session over data of users.
func OpenData(ctx context.Context, d Data) (*Session, error) {
	if d.Scope.Zone == "" {
		return nil, errors.New("a session over data needs a scope")
	}
	return Open(ctx, Config{AllowedPaths: d.Files, AllowedDirs: slices.Clone(d.Dirs), TempDir: d.Spill,
		MemoryLimit: d.Limits.Memory, Threads: d.Limits.Threads, TimeZone: d.Scope.Zone,
		Variables: d.Scope.variables()})
}
