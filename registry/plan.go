package registry

import (
	"fmt"
	"sort"

	"github.com/google/uuid"
)

// The actions of a plan.
const (
	Create   = "create"
	Rebuild  = "rebuild"
	Reuse    = "reuse"
	SwapOnly = "swap-only"
	Remove   = "remove"
)

// planned is one output of a version, as far as the plan is concerned.
type planned struct {
	job        string
	output     int
	dataset    string // for people
	generation uuid.UUID
	configHash string // of the job alone, without its upstream
	exists     bool   // the generation holds revisions already
}

// plan compares the pointer set that is live with the one that is to follow it: what each dataset of the DAG is in for,
// and why. It is pure; live is empty where nothing is.
func plan(live, next []planned) []Change {
	type key struct {
		job    string
		output int
	}
	before := make(map[key]planned, len(live))
	for _, p := range live {
		before[key{p.job, p.output}] = p
	}
	changes := make([]Change, 0, len(next))
	for _, n := range next {
		c := Change{Job: n.job, Output: n.output, Dataset: n.dataset}
		l, was := before[key{n.job, n.output}]
		delete(before, key{n.job, n.output})
		switch {
		case !was && n.exists:
			c.Action, c.Reason = SwapOnly, "an earlier version made it"
		case !was:
			c.Action, c.Reason = Create, "new"
		case l.generation == n.generation:
			c.Action, c.Reason = Reuse, "same definition"
		case n.exists:
			c.Action, c.Reason = SwapOnly, "an earlier version made it"
		case l.configHash != n.configHash:
			c.Action, c.Reason = Rebuild, "definition changed"
		default:
			c.Action, c.Reason = Rebuild, "upstream changed"
		}
		changes = append(changes, c)
	}
	removed := make([]Change, 0, len(before))
	for k, l := range before {
		removed = append(removed, Change{Job: k.job, Output: k.output, Dataset: l.dataset, Action: Remove,
			Reason: fmt.Sprintf("job %s is no longer in the document", k.job)})
	}
	sort.Slice(removed, func(i, j int) bool {
		return removed[i].Job < removed[j].Job || removed[i].Job == removed[j].Job && removed[i].Output < removed[j].Output
	})
	return append(changes, removed...)
}
