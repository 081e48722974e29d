package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// examine gathers the facts about targets, in a number of statements that does not depend on how many there are, and
// decides on each.
func (d *Dispatcher) examine(ctx context.Context, tx pgx.Tx, targets []target) ([]finding, error) {
	wants, made, err := d.facts(ctx, tx, targets)
	if err != nil {
		return nil, err
	}
	findings := make([]finding, len(targets))
	for i, t := range targets {
		findings[i] = decide(t, wants[i], made[i])
	}
	return findings, nil
}

// facts tells for each target what its inputs have of what it is made of, and what it was last made from.
func (d *Dispatcher) facts(ctx context.Context, tx pgx.Tx, targets []target) (wants [][]inputFacts, made []*registry.Made, err error) {
	if len(targets) == 0 {
		return nil, nil, nil
	}
	if wants, err = d.wants(ctx, tx, targets); err != nil {
		return nil, nil, err
	}
	if err := publishedFor(ctx, tx, wants); err != nil {
		return nil, nil, err
	}
	if err := knowSlices(ctx, tx, wants); err != nil {
		return nil, nil, err
	}
	if err := d.knowCursors(ctx, tx, targets, wants); err != nil {
		return nil, nil, err
	}
	if made, err = lastMade(ctx, tx, targets); err != nil {
		return nil, nil, err
	}
	return wants, made, knowInherited(ctx, tx, wants, made)
}

// wants tells for each target what it is made of, by input; what is published of it is still to be found.
func (d *Dispatcher) wants(ctx context.Context, tx pgx.Tx, targets []target) ([][]inputFacts, error) {
	jobs := make([]*registry.Job, len(targets))
	for i, t := range targets {
		jobs[i] = t.job
	}
	generations, err := d.Registry.InputGenerations(ctx, tx, jobs...)
	if err != nil {
		return nil, err
	}
	wants := make([][]inputFacts, len(targets))
	for i, t := range targets {
		for n, in := range t.job.Inputs {
			f := inputFacts{index: n, def: in.Def, dataset: in.Dataset, generation: generations[t.job.ID][n].Version, producer: in.Producer}
			var err error
			f.wanted, f.all, err = in.Def.Map.InputKeys(in.PartitionBy, t.job.Def.PartitionBy, t.key)
			if err != nil {
				return nil, fmt.Errorf("inputs of %s partition %q: %w", t.job.Address(), t.key, err)
			}
			if f.slice, err = sliceOf(t, f); err != nil {
				return nil, err
			}
			f.all = f.all && f.slice == nil
			wants[i] = append(wants[i], f)
		}
	}
	return wants, nil
}

// publishedFor fills in what is published: whole generations where an input takes all there is, otherwise by partition.
func publishedFor(ctx context.Context, tx pgx.Tx, wants [][]inputFacts) error {
	var (
		whole []uuid.UUID
		refs  []registry.Ref
	)
	seen := map[registry.Ref]bool{}
	for _, inputs := range wants {
		for _, in := range inputs {
			if in.all {
				whole = append(whole, in.generation)
				continue
			}
			for _, key := range in.wanted {
				if r := (registry.Ref{Version: in.generation, Key: key}); !seen[r] {
					seen[r] = true
					refs = append(refs, r)
				}
			}
		}
	}
	all, err := registry.Published(ctx, tx, dedupeIDs(whole))
	if err != nil {
		return err
	}
	some, err := registry.PublishedAt(ctx, tx, refs)
	if err != nil {
		return err
	}
	for _, inputs := range wants {
		for n := range inputs {
			in := &inputs[n]
			if in.all {
				in.published = all[in.generation]
				continue
			}
			in.published = make(map[string]int64, len(in.wanted))
			for _, key := range in.wanted {
				if revision, ok := some[registry.Ref{Version: in.generation, Key: key}]; ok {
					in.published[key] = revision
				}
			}
		}
	}
	return nil
}

// lastMade tells what each target was last made from, nil where it never was.
func lastMade(ctx context.Context, tx pgx.Tx, targets []target) ([]*registry.Made, error) {
	var replaced, appended []registry.Ref
	for _, t := range targets {
		if r, ok := t.ref(); !ok {
			continue
		} else if readsNew(t.job) {
			appended = append(appended, r)
		} else {
			replaced = append(replaced, r)
		}
	}
	last, err := lastMadeOf(ctx, tx, replaced, appended)
	if err != nil {
		return nil, err
	}
	made := make([]*registry.Made, len(targets))
	for i, t := range targets {
		r, _ := t.ref()
		if t.job.Acts() {
			if made[i], err = effectsDone(ctx, tx, t); err != nil {
				return nil, err
			}
			continue
		}
		if m, ok := last[r]; ok {
			made[i] = &m
		}
	}
	return made, nil
}

// lastMadeOf tells of output partitions what was made last: of replaced ones by the newest revision, of appended ones by
// all that they hold. A partition is in one of the two lists.
func lastMadeOf(ctx context.Context, tx pgx.Tx, replaced, appended []registry.Ref) (map[registry.Ref]registry.Made, error) {
	last, err := registry.LastMade(ctx, tx, replaced, false)
	if err != nil {
		return nil, err
	}
	joined, err := registry.LastMade(ctx, tx, appended, true)
	if err != nil {
		return nil, err
	}
	maps.Copy(last, joined)
	return last, nil
}

// knowInherited has what was made from a revision count as made from its copy in the generation that is read now, and from
// its original: a forward-only deploy, and a rollback of it, make nobody read again what stayed as it was.
func knowInherited(ctx context.Context, tx pgx.Tx, wants [][]inputFacts, made []*registry.Made) error {
	var asked []registry.Revised
	each := func(with func(p *registry.Pin, was, is registry.Revised)) {
		for i, m := range made {
			if m == nil {
				continue
			}
			for n := range m.Pins {
				p := &m.Pins[n]
				if p.Compared && p.Input < len(wants[i]) && wants[i][p.Input].generation != p.Version {
					was := registry.Revised{Ref: registry.Ref{Version: p.Version, Key: p.Key}, Revision: p.Revision}
					is := was
					is.Version = wants[i][p.Input].generation
					with(p, was, is)
				}
			}
		}
	}
	each(func(_ *registry.Pin, was, is registry.Revised) { asked = append(asked, was, is) })
	if len(asked) == 0 {
		return nil
	}
	originals, err := registry.Originals(ctx, tx, asked)
	if err != nil {
		return err
	}
	each(func(p *registry.Pin, was, is registry.Revised) {
		if originals.Same(was, is) {
			p.Version = is.Version
		}
	})
	return nil
}

// effectsDone tells what a job that acts has acted on already. Positions are kept by the job's name, so that no
// edit, deploy or rollback makes it act twice on the same partition.
func effectsDone(ctx context.Context, tx pgx.Tx, t target) (*registry.Made, error) {
	datasets := make([]uuid.UUID, len(t.job.Inputs))
	index := map[uuid.UUID]int{}
	for i, in := range t.job.Inputs {
		datasets[i], index[in.Dataset] = in.Dataset, i
	}
	rows, err := tx.Query(ctx, `
		SELECT dataset_uuid, dataset_version, partition_key, revision FROM effect_positions
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND dataset_uuid = ANY($4)`, t.job.OrgID, t.job.DAG, t.job.Name, datasets)
	if err != nil {
		return nil, fmt.Errorf("effect positions of %s: %w", t.job.Address(), err)
	}
	made := &registry.Made{}
	var p registry.Pin
	_, err = pgx.ForEachRow(rows, []any{&p.Dataset, &p.Version, &p.Key, &p.Revision}, func() error {
		p.Input = index[p.Dataset]
		p.Compared = t.job.Inputs[p.Input].Def.Triggers()
		if t.job.Def.ExecutionStrategy == dag.PerUpdate || p.Key == t.key {
			made.Pins = append(made.Pins, p)
		}
		return nil
	})
	if err != nil || len(made.Pins) == 0 {
		return nil, err
	}
	return made, nil
}

// examineAll decides on every output partition of the reactive ones among the jobs.
func (d *Dispatcher) examineAll(ctx context.Context, tx pgx.Tx, jobs []*registry.Job) ([]finding, error) {
	targets, err := d.allTargets(ctx, tx, jobs...)
	if err != nil {
		return nil, err
	}
	return d.examine(ctx, tx, targets)
}

// allTargets lists every output partition of reactive jobs that their inputs feed by now.
func (d *Dispatcher) allTargets(ctx context.Context, tx pgx.Tx, jobs ...*registry.Job) ([]target, error) {
	reactive := slices.DeleteFunc(slices.Clone(jobs), func(j *registry.Job) bool { return j.Def.Activation != dag.ActivationReactive })
	inputs, err := d.Registry.InputGenerations(ctx, tx, reactive...)
	if err != nil {
		return nil, err
	}
	var ids []uuid.UUID
	for _, job := range reactive {
		for i, in := range job.Inputs {
			if in.Def.Triggers() {
				ids = append(ids, inputs[job.ID][i].Version)
			}
		}
	}
	published, err := registry.Published(ctx, tx, dedupeIDs(ids))
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, job := range reactive {
		keys, err := outputKeys(job, inputs[job.ID], published)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			targets = append(targets, target{job, key})
		}
	}
	return targets, nil
}

func dedupeIDs(ids []uuid.UUID) []uuid.UUID {
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}
