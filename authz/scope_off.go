//go:build noscope

package authz

// ReadsAll lets the conditions of statements leave nothing out, so that only row-level security keeps readers from what
// they may not read. No release is built with this tag.
func (c Caller) ReadsAll() bool { return true }
