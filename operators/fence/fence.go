// Package fence says which of two writes to a target outside of the platform is the newer one. An attempt that was
// taken for dead may still be on its way when the next revision is written: the target keeps the last write, and an
// older one is refused there.
//
// Vocabulary: the pins of a write are the revisions that it is made from, by dataset version and partition key. It owns
// no tables.
package fence

import (
	"bytes"
	"cmp"
	"maps"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/operators"
)

// Write is one write as its target keeps it. A task's id ascends with the time of the task.
type Write struct {
	Pins    map[string]int64 `json:"revisions"`
	Task    uuid.UUID        `json:"task"`
	Attempt int              `json:"attempt"`
}

// Of returns the write of a task that writes its first input.
func Of(t *operators.Task) Write {
	w := Write{map[string]int64{}, t.TaskID, t.Attempt}
	for _, p := range t.Inputs[0].Partitions {
		w.Pins[t.Inputs[0].Generation.Version.String()+"/"+p.Key] = p.Revision
	}
	return w
}

// Same reports whether both are made from the same revisions.
func (w Write) Same(o Write) bool { return maps.Equal(w.Pins, o.Pins) }

// Before reports whether w is made from older data than o. Revisions of the same dataset version decide; where they
// cannot, as after a deploy, the later task does, and of one task the later attempt.
func (w Write) Before(o Write) bool {
	newer := false
	for key, revision := range w.Pins {
		was, shared := o.Pins[key]
		if shared && revision < was {
			return true
		}
		newer = newer || shared && revision > was
	}
	if newer || w.Same(o) {
		return false
	}
	return w.Earlier(o)
}

// Earlier reports whether w is of an earlier task than o, or of an earlier attempt of its task.
func (w Write) Earlier(o Write) bool {
	return cmp.Or(bytes.Compare(w.Task[:], o.Task[:]), cmp.Compare(w.Attempt, o.Attempt)) < 0
}
