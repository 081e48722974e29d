//go:build !noscope

package authz

// ReadsAll reports whether the caller reads every dataset of its org, whatever its read roles: then the conditions of
// statements leave nothing out. The build tag noscope makes every caller one, for the test of row-level security alone.
func (c Caller) ReadsAll() bool { return c.May(ReadAll, WholeOrg) }
