package deploy

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
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
	job         string
	output      int
	id          uuid.UUID // of the dataset: a job may have been renamed
	dataset     string    // for people
	published   bool      // dataset is the name that it is published under
	generation  uuid.UUID
	origin      uuid.UUID
	configHash  string // of the job alone, without its upstream
	epoch       int    // build epoch
	reset       bool   // its job begins anew with every version
	exists      bool   // the generation holds revisions already
	bytes       int64  // what the generation holds
	partitionBy dag.Partitioning
	continues   *uuid.UUID // the generation that it takes partitions over from, unless it has served
}

// plan compares the live pointer set with the one that is to follow it, and returns what happens to each dataset of the
// DAG, and why. It is pure; live is empty where nothing serves.
func plan(live, next []planned) []registry.Change {
	before := byDataset(live)
	changes := make([]registry.Change, 0, len(next))
	for _, n := range next {
		c := registry.Change{Job: n.job, Output: n.output, Dataset: n.dataset, Origin: n.origin, ID: n.id}
		if l, was := before[n.id]; was {
			c.Action, c.Reason = replace(l, n)
			if c.Action == Rebuild || c.Action == ForwardOnly {
				c.Bytes = l.bytes
			}
			delete(before, n.id)
		} else {
			c.Action, c.Reason = introduce(n)
		}
		changes = append(changes, c)
	}

	return append(changes, removals(before)...)
}

// byDataset returns a pointer set by dataset.
func byDataset(set []planned) map[uuid.UUID]planned {
	by := make(map[uuid.UUID]planned, len(set))
	for _, p := range set {
		by[p.id] = p
	}
	return by
}

// introduce returns the action for an output that is not live, and the reason.
func introduce(next planned) (action, reason string) {
	if next.exists {
		return SwapOnly, "an earlier version made it"
	}
	return Create, "new"
}

// replace returns the action for an output whose dataset is live, and the reason.
func replace(live, next planned) (action, reason string) {
	switch {
	case live.generation == next.generation:
		return Reuse, "same definition"
	case next.exists && next.continues == nil:
		return SwapOnly, "an earlier version made it"
	}

	action = Rebuild
	if next.continues != nil && *next.continues == live.generation {
		action = ForwardOnly
	}
	switch {
	case live.configHash != next.configHash:
		return action, DefinitionChanged
	case live.epoch != next.epoch && next.reset:
		return action, "outputs reset"
	case live.epoch != next.epoch && next.continues == nil:
		return action, Forced
	}
	return action, UpstreamChanged
}

// DefinitionChanged is the reason of what is rebuilt because its own definition is another one.
const DefinitionChanged = "definition changed"

// UpstreamChanged is the reason of what is rebuilt although its own definition is the same.
const UpstreamChanged = "upstream changed"

// Forced is the reason of what is rebuilt because somebody asked for it.
const Forced = "forced"

// upstream returns the outputs of the DAG that a job reads.
func (d *deploy) upstream(name string) (refs []outputRef) {
	job, ok := d.doc.Job(name)
	if !ok {
		return nil
	}
	for _, in := range job.Inputs {
		if in.Job != "" {
			refs = append(refs, outputRef{in.Job, in.Output})
		}
	}
	return refs
}

// noteColumns says which columns the jobs that are reused read of inputs that get another generation, and which jobs
// are rebuilt because their checks read other columns than before.
func (d *deploy) noteColumns(changes []registry.Change, live, next []planned) {
	before, moved := byDataset(live), map[outputRef]bool{}
	for _, n := range next {
		moved[outputRef{n.job, n.output}] = before[n.id].generation != n.generation
	}
	for i := range changes {
		c := &changes[i]
		if c.Reason == Forced && !slices.Contains(d.force, c.Job) && slices.ContainsFunc(d.upstream(c.Job),
			func(ref outputRef) bool { return moved[ref] }) {
			c.Reason = UpstreamChanged // the epoch is that of a version that never served
		}
		reads := d.definitions.ColumnsRead(c.Job)
		if reads == nil || c.Action != Reuse && c.Reason != UpstreamChanged {
			continue
		}

		job, _ := d.doc.Job(c.Job)
		if c.Action != Reuse {
			same := func(in dag.Input) bool { return in.Job != "" && !moved[outputRef{in.Job, in.Output}] }
			if !slices.ContainsFunc(job.Inputs, func(in dag.Input) bool { return !same(in) }) {
				c.Reason = "its checks read other columns"
			}
			continue
		}
		var columns, inputs []string
		for n, in := range job.Inputs {
			if in.Job != "" && moved[outputRef{in.Job, in.Output}] {
				columns, inputs = append(columns, reads[n]...), append(inputs, in.As)
			}
		}
		if len(inputs) > 0 {
			c.Reason = unchangedReason(columns, inputs)
		}
	}
}

// unchangedReason returns why a job is reused that reads some columns of inputs that changed.
func unchangedReason(columns, inputs []string) string {
	slices.Sort(columns)
	columns = slices.Compact(columns)
	if len(columns) == 0 {
		return "reads only the number of rows of " + strings.Join(inputs, ", ") + ", which did not change"
	}
	return "reads " + strings.Join(columns, ", ") + ", which did not change"
}

// removals returns the changes for live outputs that the next version does not have, ordered by job and output.
func removals(left map[uuid.UUID]planned) []registry.Change {
	removed := make([]registry.Change, 0, len(left))
	for _, l := range left {
		removed = append(removed, registry.Change{Job: l.job, Output: l.output, ID: l.id, Dataset: l.dataset,
			Action: Remove,
			Reason: fmt.Sprintf("job %s is no longer in the document", l.job)})
	}
	sort.Slice(removed, func(i, j int) bool {
		return removed[i].Job < removed[j].Job || removed[i].Job == removed[j].Job &&
			removed[i].Output < removed[j].Output
	})
	return removed
}

// partitions are the keys that an output has, or will have once a plan is carried out; unknown if only its source
// knows.
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
	kept    map[string][]string         // by job name: what a job has already, or takes over
	gone    map[string]map[string]bool  // by job name: what was purged, and does not come back by itself
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
	switch {
	case job.Splits(): // its rows say which partitions there are, once it has run
		p = partitions{unknown: len(f.kept[name]) == 0}
	case !reads:
		p = f.reactive(job)
	}
	p.keys = slices.DeleteFunc(union(p.keys, f.kept[name]), func(key string) bool { return f.gone[name][key] })
	f.done[name] = p
	return p
}

// union returns the keys of all lists, sorted and each once.
func union(lists ...[]string) []string {
	keys := slices.Concat(lists...)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// reactive returns the partitions that the inputs of a job without a source will make it compute.
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

// complete reports whether the inputs will have what the output partition is made of: every one that does not trigger,
// and one of those that trigger, or all of them where the job says so.
func (f *forecast) complete(job *dag.Job, key string) bool {
	met := 0
	for _, in := range job.Inputs {
		ok, err := f.enough(in, job.PartitionBy, key)
		switch {
		case err != nil:
			return false
		case ok && in.Triggers():
			met++
		case !ok && (!in.Triggers() || job.Trigger == dag.TriggerAll):
			return false
		}
	}
	return met > 0
}

// enough reports whether one input will have what the output partition key is made of. An input whose partitions only
// its source knows is taken to have it.
func (f *forecast) enough(in dag.Input, outputBy dag.Partitioning, key string) (bool, error) {
	have, by := f.input(in)
	wanted, all, err := in.Map.InputKeys(by, outputBy, key)
	if err != nil {
		return false, err
	}
	if have.unknown {
		return true, nil
	}
	if in.Map.Kind == dag.MapSlice {
		_, reached, err := outputBy.Slice(key, have.keys)
		return err == nil && reached, nil
	}

	found := 0
	for _, k := range wanted {
		if _, there := slices.BinarySearch(have.keys, k); there {
			found++
		}
	}
	if all {
		found = len(have.keys)
	}
	if in.Map.Kind == dag.MapWindow && in.Map.Require != "available" {
		return found == len(wanted), nil
	}
	return found > 0, nil
}

// input returns the partitions that an input will have, and their partitioning.
func (f *forecast) input(in dag.Input) (partitions, dag.Partitioning) {
	if in.Job == "" {
		return f.foreign[in.Dataset], f.shapes[in.Dataset]
	}
	upstream, _ := f.doc.Job(in.Job)
	return f.of(in.Job), upstream.PartitionBy
}
