package registry

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

// behind tells which partitions of a version's own generations have to be computed: those that are not there, and those
// that were made from other revisions than the ones their inputs have, or will have once the version is built. A plan that
// swaps to what an earlier version made says by it what that catches up on. The engine decides by the same comparison
// when the time has come; only what arrives in between tells the two apart. It is pure.
type behind struct {
	*forecast
	generations map[outputRef]uuid.UUID        // of the version
	elsewhere   map[string]uuid.UUID           // of other DAGs' datasets, by name
	published   map[uuid.UUID]map[string]int64 // revisions by generation and key
	made        map[Ref]Made                   // what first outputs were last made from
	known       map[Ref]bool
}

// wants reports whether a partition of a job's outputs is to be computed. Whether a source has something newer, nothing but
// reading it tells.
func (b *behind) wants(job *dag.Job, key string) bool {
	ref := Ref{b.generations[outputRef{job.Name, 0}], key}
	if job.Source != nil {
		_, there := b.published[ref.Version][key]
		return !there
	}
	wanted, known := b.known[ref]
	if !known {
		wanted = b.differs(job, ref)
		b.known[ref] = wanted
	}
	return wanted
}

// differs compares what a partition was made from with what there is to make it from.
func (b *behind) differs(job *dag.Job, ref Ref) bool {
	made, there := b.made[ref]
	if !there {
		return true
	}
	type pinned struct {
		input int
		Ref
	}
	read, present := map[pinned]int64{}, 0
	for _, p := range made.Pins {
		if at := (pinned{p.Input, Ref{p.Version, p.Key}}); p.Compared {
			read[at] = max(read[at], p.Revision)
		}
	}
	inherited := made.Inherited && !job.ReadsNew() // stale by what it was made from alone
	for i, in := range job.Inputs {
		if !in.Triggers() && !in.Refresh {
			continue
		}
		upcoming, by := b.input(in)
		keys, all, err := in.Map.InputKeys(by, job.PartitionBy, ref.Key)
		if err != nil {
			return true // as with all that is wrong, the build will tell
		}
		if all {
			keys = upcoming.keys
		}
		generation, upstream := b.reads(in)
		for _, key := range keys {
			if _, comes := slices.BinarySearch(upcoming.keys, key); comes && in.Job != "" && b.wants(upstream, key) {
				return true
			}
			revision, ok := b.published[generation][key]
			if !ok {
				continue
			}
			present++
			if inherited && !slices.ContainsFunc(made.Pins, func(p Pin) bool { return p.Compared && p.Input == i && p.Key == key }) {
				continue
			}
			if seen, ok := read[pinned{i, Ref{generation, key}}]; !ok || seen < revision || seen > revision && !job.ReadsNew() {
				return true
			}
		}
	}
	return present != len(read) && !job.ReadsNew() && !inherited
}

// reads resolves an input to the generation that it reads and, within the DAG, the job that makes it.
func (b *behind) reads(in dag.Input) (generation uuid.UUID, upstream *dag.Job) {
	if in.Job == "" {
		return b.elsewhere[in.Dataset], nil
	}
	upstream, _ = b.doc.Job(in.Job)
	return b.generations[outputRef{in.Job, in.Output}], upstream
}

// loadMade reads what the outputs that are there were made from, of the jobs that wants may be asked about: those that an
// earlier version made, and all that is upstream of them.
func (b *behind) loadMade(ctx context.Context, tx pgx.Tx, changes []Change) error {
	asked := map[string]bool{}
	var ask func(name string)
	ask = func(name string) {
		job, ok := b.doc.Job(name)
		if !ok || asked[name] || job.Source != nil {
			return
		}
		asked[name] = true
		for _, in := range job.Inputs {
			ask(in.Job)
		}
	}
	for _, c := range changes {
		if c.Action == SwapOnly || c.Action == ForwardOnly {
			ask(c.Job)
		}
	}
	var replaced, appended []Ref
	for name := range asked {
		job, _ := b.doc.Job(name)
		for _, key := range b.of(name).keys {
			ref := Ref{b.generations[outputRef{name, 0}], key}
			if job.ReadsNew() {
				appended = append(appended, ref)
			} else {
				replaced = append(replaced, ref)
			}
		}
	}
	b.made = map[Ref]Made{}
	for _, some := range []struct {
		refs []Ref
		all  bool
	}{{replaced, false}, {appended, true}} {
		if len(some.refs) == 0 {
			continue
		}
		made, err := LastMade(ctx, tx, some.refs, some.all)
		if err != nil {
			return err
		}
		for ref, m := range made {
			b.made[ref] = m
		}
	}
	return b.knowInherited(ctx, tx)
}

// knowInherited has a revision and its copies count as one, as the engine does.
func (b *behind) knowInherited(ctx context.Context, tx pgx.Tx) error {
	jobs := map[uuid.UUID]*dag.Job{}
	for ref, generation := range b.generations {
		jobs[generation], _ = b.doc.Job(ref.job)
	}
	var asked []Revised
	each := func(with func(p *Pin, was, is Revised)) {
		for ref, m := range b.made {
			for n := range m.Pins {
				p := &m.Pins[n]
				if !p.Compared || p.Input >= len(jobs[ref.Version].Inputs) {
					continue
				}
				if reads, _ := b.reads(jobs[ref.Version].Inputs[p.Input]); reads != p.Version {
					with(p, Revised{Ref{p.Version, p.Key}, p.Revision}, Revised{Ref{reads, p.Key}, p.Revision})
				}
			}
		}
	}
	each(func(_ *Pin, was, is Revised) { asked = append(asked, was, is) })
	if len(asked) == 0 {
		return nil
	}
	originals, err := Originals(ctx, tx, asked)
	if err != nil {
		return err
	}
	each(func(p *Pin, was, is Revised) {
		if originals.Same(was, is) {
			p.Version = is.Version
		}
	})
	return nil
}
