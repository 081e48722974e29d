package registry

import (
	"fmt"
	"sort"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
)

// The actions of a plan.
const (
	Create      = "create"
	Rebuild     = "rebuild"
	ForwardOnly = "forward-only" // a rebuild that takes over what was before a bound
	Reuse       = "reuse"
	SwapOnly    = "swap-only"
	Remove      = "remove"
)

// planned is one output of a version, as far as the plan is concerned.
type planned struct {
	job        string
	output     int
	id         uuid.UUID // of the dataset: a job may have been renamed
	dataset    string    // for people
	generation uuid.UUID
	origin     uuid.UUID
	configHash string     // of the job alone, without its upstream
	epoch      int        // build epoch
	reset      bool       // its job begins anew with every version
	exists     bool       // the generation holds revisions already
	bytes      int64      // what the generation holds
	continues  *uuid.UUID // the generation that it takes partitions over from, unless it has served
}

// plan compares the pointer set that is live with the one that is to follow it: what each dataset of the DAG is in for,
// and why. It is pure; live is empty where nothing is.
func plan(live, next []planned) []Change {
	before := make(map[uuid.UUID]planned, len(live))
	for _, p := range live {
		before[p.id] = p
	}
	changes := make([]Change, 0, len(next))
	for _, n := range next {
		c := Change{Job: n.job, Output: n.output, Dataset: n.dataset, Origin: n.origin, id: n.id}
		l, was := before[n.id]
		delete(before, n.id)
		switch {
		case !was && n.exists:
			c.Action, c.Reason = SwapOnly, "an earlier version made it"
		case !was:
			c.Action, c.Reason = Create, "new"
		case l.generation == n.generation:
			c.Action, c.Reason = Reuse, "same definition"
		case n.exists && n.continues == nil:
			c.Action, c.Reason = SwapOnly, "an earlier version made it"
		case l.configHash != n.configHash:
			c.Action, c.Reason, c.Bytes = Rebuild, "definition changed", l.bytes
		case l.epoch != n.epoch && n.reset:
			c.Action, c.Reason, c.Bytes = Rebuild, "outputs reset", l.bytes
		case l.epoch != n.epoch && n.continues == nil:
			c.Action, c.Reason, c.Bytes = Rebuild, "forced", l.bytes
		default:
			c.Action, c.Reason, c.Bytes = Rebuild, "upstream changed", l.bytes
		}
		if was && n.continues != nil && *n.continues == l.generation {
			c.Action = ForwardOnly
		}
		changes = append(changes, c)
	}
	removed := make([]Change, 0, len(before))
	for _, l := range before {
		removed = append(removed, Change{Job: l.job, Output: l.output, id: l.id, Dataset: l.dataset, Action: Remove,
			Reason: fmt.Sprintf("job %s is no longer in the document", l.job)})
	}
	sort.Slice(removed, func(i, j int) bool {
		return removed[i].Job < removed[j].Job || removed[i].Job == removed[j].Job && removed[i].Output < removed[j].Output
	})
	return append(changes, removed...)
}

// partitions are the keys an output has, or will have when a plan is done; unknown where only the source can tell.
type partitions struct {
	keys    []string
	unknown bool
}

// forecast works out which partitions each output will have, from those that sources and other DAGs have now, by the
// same mappings that routing uses. It is pure.
type forecast struct {
	doc     *dag.Document
	sources map[string]partitions       // by job name
	foreign map[string]partitions       // by dataset name
	shapes  map[string]dag.Partitioning // of foreign datasets, by name
	done    map[string]partitions       // by job name
}

// of returns the partitions that a job's outputs will have.
func (f *forecast) of(name string) partitions {
	if p, ok := f.done[name]; ok {
		return p
	}
	job, ok := f.doc.Job(name)
	if !ok {
		return partitions{unknown: true}
	}
	p, reads := f.sources[name]
	if !reads {
		p = f.reactive(job)
	}
	f.done[name] = p
	return p
}

func (f *forecast) reactive(job *dag.Job) partitions {
	fed := map[string]bool{}
	for _, in := range job.Inputs {
		if !in.Triggers() {
			continue
		}
		have, by := f.input(in)
		if have.unknown {
			return partitions{unknown: true}
		}
		for _, key := range have.keys {
			outputs, err := in.Map.OutputKeys(by, job.PartitionBy, key)
			if err != nil {
				return partitions{unknown: true}
			}
			for _, k := range outputs {
				fed[k] = true
			}
		}
	}
	var p partitions
	for key := range fed {
		if f.complete(job, key) {
			p.keys = append(p.keys, key)
		}
	}
	sort.Strings(p.keys)
	return p
}

// complete reports whether every input will have what the output partition is made of.
func (f *forecast) complete(job *dag.Job, key string) bool {
	met := 0
	for _, in := range job.Inputs {
		have, by := f.input(in)
		wanted, all, err := in.Map.InputKeys(by, job.PartitionBy, key)
		if err != nil {
			return false
		}
		found := 0
		for _, k := range wanted {
			if i := sort.SearchStrings(have.keys, k); i < len(have.keys) && have.keys[i] == k {
				found++
			}
		}
		if all {
			found = len(have.keys)
		}
		ok := found > 0 || have.unknown
		if in.Map.Kind == dag.MapSlice {
			_, reached, err := job.PartitionBy.Slice(key, have.keys)
			ok = err == nil && reached || have.unknown
		}
		if in.Map.Kind == dag.MapWindow && in.Map.Require != "available" {
			ok = found == len(wanted) || have.unknown
		}
		switch {
		case ok && in.Triggers():
			met++
		case !ok && (!in.Triggers() || job.Trigger == dag.TriggerAll):
			return false
		}
	}
	return met > 0
}

func (f *forecast) input(in dag.Input) (partitions, dag.Partitioning) {
	if in.Job == "" {
		return f.foreign[in.Dataset], f.shapes[in.Dataset]
	}
	upstream, _ := f.doc.Job(in.Job)
	return f.of(in.Job), upstream.PartitionBy
}
