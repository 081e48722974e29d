package engine

import "github.com/dagctl/dagctl/dag/names"

// Bind asks an engine of kind Parse to bind the statements of jobs; it is answered by a Bound.
type Bind struct{ Jobs []names.Job }

// Bound is the answer to Bind.
type Bound struct{ Jobs []names.Bound }

// Verb implements Question.
func (Bind) Verb() string { return "bind" }
