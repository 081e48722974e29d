package deploy

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// behind finds the partitions of a version's own generations that have to be computed: those that do not exist, and
// those that were made from other revisions than their inputs have, or will have once the version is built. With it, a
// plan that swaps to what an earlier version made says what still has to be caught up on. The engine makes the same
// comparison when the build runs; the two differ only by what arrives in between. It is pure.
type behind struct {
	*forecast
	generations map[outputRef]uuid.UUID        // of the version
	elsewhere   map[string]uuid.UUID           // of other DAGs' datasets, by name
	datasets    map[uuid.UUID]uuid.UUID        // by generation
	published   map[uuid.UUID]map[string]int64 // revisions by generation and key
	made        map[registry.Ref]registry.Made // what first outputs were last made from
	known       map[registry.Ref]bool
	purged      map[uuid.UUID]map[string]bool // partitions of generations that were purged and not made again
}

// wants reports whether a partition of a job's outputs has to be computed. For a source, and for a job that splits its
// rows, that is only if the partition does not exist: whether there is something newer is known only after reading it.
func (b *behind) wants(job *dag.Job, key string) bool {
	ref := registry.Ref{Version: b.generations[outputRef{job.Name, 0}], Key: key}
	if job.Source != nil || job.Splits() {
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

// differs reports whether a partition does not exist, or was made from other inputs than it would be made from now.
func (b *behind) differs(job *dag.Job, ref registry.Ref) bool {
	made, there := b.made[ref]
	if !there {
		return true
	}

	was, present := readBy(job, made), 0
	for i, in := range job.Inputs {
		if !in.Triggers() && !in.Refresh {
			continue
		}
		upcoming, by := b.input(in)
		keys, all, err := in.Map.InputKeys(by, job.TasksBy(), ref.Key)
		if err != nil {
			return true // the build will report it
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
			if was.differs(pinned{i, registry.Ref{Version: generation, Key: key}}, revision) {
				return true
			}
		}
	}
	return present != len(was.read) && !was.readsNew && !was.inherited
}

// pinned is a partition that a job reads through one of its inputs.
type pinned struct {
	input int
	registry.Ref
}

// reading is what a partition was made from, as far as it is compared.
type reading struct {
	pins      []registry.Pin
	read      map[pinned]int64 // the newest revision that was read
	readsNew  bool             // its job reads only what is newer, so having read more is no difference
	inherited bool             // taken over: only what it was made from can make it stale
}

func readBy(job *dag.Job, made registry.Made) reading {
	r := reading{pins: made.Pins, read: map[pinned]int64{}, readsNew: job.ReadsNew(),
		inherited: made.Inherited && !job.ReadsNew()}
	for _, p := range made.Pins {
		if at := (pinned{p.Input, registry.Ref{Version: p.Version, Key: p.Key}}); p.Compared {
			r.read[at] = max(r.read[at], p.Revision)
		}
	}
	return r
}

// differs reports whether an input partition has another revision now than the one that was read.
func (r reading) differs(at pinned, revision int64) bool {
	isAt := func(p registry.Pin) bool { return p.Compared && p.Input == at.input && p.Key == at.Key }
	if r.inherited && !slices.ContainsFunc(r.pins, isAt) {
		return false
	}
	seen, ok := r.read[at]
	return !ok || seen < revision || seen > revision && !r.readsNew
}

// reads resolves an input to the generation that it reads and, within the DAG, the job that makes it.
func (b *behind) reads(in dag.Input) (generation uuid.UUID, upstream *dag.Job) {
	if in.Job == "" {
		return b.elsewhere[in.Dataset], nil
	}
	upstream, _ = b.doc.Job(in.Job)
	return b.generations[outputRef{in.Job, in.Output}], upstream
}

// loadMade reads what existing outputs were made from. It does so for the jobs that wants may be called with: those
// whose outputs an earlier version made, and all jobs upstream of them.
func (b *behind) loadMade(
	ctx context.Context, tx pgx.Tx, r *registry.Registry, changes []registry.Change,
) error {
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

	var replaced, appended []registry.Ref
	for name := range asked {
		job, _ := b.doc.Job(name)
		for _, key := range b.of(name).keys {
			ref := registry.Ref{Version: b.generations[outputRef{name, 0}], Key: key}
			if job.ReadsNew() {
				appended = append(appended, ref)
			} else {
				replaced = append(replaced, ref)
			}
		}
	}
	made, err := registry.LastMade(new(pg.Batch), replaced, appended).Get(ctx, tx)
	if err != nil {
		return err
	}
	b.made = made
	if err := b.knowInherited(ctx, tx); err != nil {
		return err
	}
	return b.noteArrivals(ctx, tx, r)
}

// noteArrivals has what was taken over count as any other revision where it is to be made again, as the engine does.
func (b *behind) noteArrivals(ctx context.Context, tx pgx.Tx, r *registry.Registry) error {
	jobs := b.jobs()
	var kept []Kept
	for ref, m := range b.made {
		if job := jobs[ref.Version]; m.Inherited && !job.ReadsNew() {
			kept = append(kept, Kept{Revised{ref, m.Revision}, m.Pins, b.pins(job, ref.Key)})
		}
	}

	outdated, err := Overtaken(ctx, tx, r, kept)
	for _, n := range outdated {
		m := b.made[kept[n].Ref]
		m.Inherited = false
		b.made[kept[n].Ref] = m
	}
	return err
}

// pins lists what a partition would be made from, of what is published now and compared.
func (b *behind) pins(job *dag.Job, key string) (pins []registry.Pin) {
	for i, in := range job.Inputs {
		if !in.Triggers() && !in.Refresh {
			continue
		}
		upcoming, by := b.input(in)
		keys, all, err := in.Map.InputKeys(by, job.TasksBy(), key)
		if err != nil {
			continue // the build will report it
		}
		if all {
			keys = upcoming.keys
		}

		generation, _ := b.reads(in)
		for _, k := range keys {
			if revision, ok := b.published[generation][k]; ok {
				pins = append(pins, registry.Pin{Input: i, Dataset: b.datasets[generation], Version: generation, Key: k,
					Revision: revision, Compared: true})
			}
		}
	}
	return pins
}

// jobs returns the jobs by the generations of their outputs.
func (b *behind) jobs() map[uuid.UUID]*dag.Job {
	jobs := map[uuid.UUID]*dag.Job{}
	for ref, generation := range b.generations {
		jobs[generation], _ = b.doc.Job(ref.job)
	}
	return jobs
}

// knowInherited makes a revision and its copies count as the same one, as the engine does.
func (b *behind) knowInherited(ctx context.Context, tx pgx.Tx) error {
	jobs := b.jobs()
	var asked []Revised
	each := func(with func(p *registry.Pin, was, is Revised)) {
		for ref, m := range b.made {
			for n := range m.Pins {
				p := &m.Pins[n]
				if !p.Compared || p.Input >= len(jobs[ref.Version].Inputs) {
					continue
				}
				if reads, _ := b.reads(jobs[ref.Version].Inputs[p.Input]); reads != p.Version {
					with(p, Revised{registry.Ref{Version: p.Version, Key: p.Key}, p.Revision},
						Revised{registry.Ref{Version: reads, Key: p.Key}, p.Revision})
				}
			}
		}
	}

	each(func(_ *registry.Pin, was, is Revised) { asked = append(asked, was, is) })
	if len(asked) == 0 {
		return nil
	}

	originals, err := Originals(ctx, tx, asked)
	if err != nil {
		return err
	}
	each(func(p *registry.Pin, was, is Revised) {
		if originals.Same(was, is) {
			p.Version = is.Version
		}
	})
	return nil
}
