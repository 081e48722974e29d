package duck

import (
	"context"
	"errors"
	"slices"

	"github.com/dagctl/dagctl/internal/relations"
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

// The scope and the limits of a session.
type (
	Scope  = relations.Scope
	Limits = relations.Limits
)

// variables returns the variables for getvariable(). All are set, so that a query may use any.
func variables(s Scope) map[string]any {
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
		Variables: variables(d.Scope)})
}
