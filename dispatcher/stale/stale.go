// Package stale decides whether an output partition has to be made again.
//
// Vocabulary: a target is one output partition of a job. Facts are the input revisions that exist for a target and
// those its output was built from. A finding is the verdict on a target: incomplete, current or stale. Deciding is
// pure; gathering facts takes a number of statements that does not depend on how many targets there are.
//
// The package reads and writes dataset_cursors and effect_positions, which record how far jobs that read only new data
// have come.
package stale

import "github.com/dagctl/dagctl/registry"

// Examiner gathers facts about targets and decides on them.
type Examiner struct {
	registry *registry.Registry
}

// New returns an Examiner.
func New(r *registry.Registry) *Examiner { return &Examiner{registry: r} }
