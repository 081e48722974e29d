package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// examine gathers the facts about targets, in a number of statements that does not depend on how many there are, and
// decides on each.
func (d *Dispatcher) examine(ctx context.Context, tx pgx.Tx, targets []target) ([]finding, error) {
	return d.examineWith(ctx, tx, targets, nil)
}

// examineWith is examine, together with what else is asked once it is known what the targets are made of.
func (d *Dispatcher) examineWith(ctx context.Context, tx pgx.Tx, targets []target, ask func(*pg.Batch, [][]inputFacts)) ([]finding, error) {
	wants, made, err := d.facts(ctx, tx, targets, ask)
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
func (d *Dispatcher) facts(ctx context.Context, tx pgx.Tx, targets []target, ask func(*pg.Batch, [][]inputFacts)) (wants [][]inputFacts, made []*registry.Made, err error) {
	if len(targets) == 0 {
		return nil, nil, nil
	}
	if wants, err = d.wants(ctx, tx, targets); err != nil {
		return nil, nil, err
	}
	var b pg.Batch
	filled := queuePublishedFor(&b, wants)
	known := queueLastMadeTargets(&b, targets)
	if ask != nil {
		ask(&b, wants)
	}
	if err := b.Send(ctx, tx); err != nil {
		return nil, nil, err
	}
	filled()
	if err := knowSlices(ctx, tx, wants); err != nil {
		return nil, nil, err
	}
	if err := d.knowCursors(ctx, tx, targets, wants); err != nil {
		return nil, nil, err
	}
	made = known()
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

// queuePublishedFor asks what is published: whole generations where an input takes all there is, otherwise by partition.
// What it returns fills that in once b is sent.
func queuePublishedFor(b *pg.Batch, wants [][]inputFacts) (fill func()) {
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
	all, some := registry.QueuePublished(b, dedupeIDs(whole)), registry.QueuePublishedAt(b, refs)
	return func() {
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
	}
}

// queueLastMadeTargets asks what each target was last made from. What it returns tells that, nil where it never was, once b
// is sent.
func queueLastMadeTargets(b *pg.Batch, targets []target) (told func() []*registry.Made) {
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
	last, done := queueLastMadeOf(b, replaced, appended), queueEffectsDone(b, targets)
	return func() []*registry.Made {
		made := make([]*registry.Made, len(targets))
		for i, t := range targets {
			if t.job.Acts() {
				made[i] = done.of(t)
				continue
			}
			r, _ := t.ref()
			if m, ok := last[r]; ok {
				made[i] = &m
			}
		}
		return made
	}
}

// queueLastMadeOf asks, of output partitions, what was made last: of replaced ones by the newest revision, of appended ones by
// all that they hold. A partition is in one of the two lists.
func queueLastMadeOf(b *pg.Batch, replaced, appended []registry.Ref) map[registry.Ref]registry.Made {
	last := make(map[registry.Ref]registry.Made, len(replaced)+len(appended))
	registry.QueueLastMade(b, replaced, false, last)
	registry.QueueLastMade(b, appended, true, last)
	return last
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

// effectsDone is what jobs that act have acted on already, by the address of the job. Positions are kept by the job's name,
// so that no edit, deploy or rollback makes it act twice on the same partition.
type effectsDone map[actor][]registry.Pin

// actor names a job over all of its versions.
type actor struct {
	org      uuid.UUID
	dag, job string
}

func actorOf(job *registry.Job) actor { return actor{job.OrgID, job.DAG, job.Name} }

// queueEffectsDone asks what those of the targets' jobs that act have acted on. One that follows what is new in its inputs
// is asked about all of it, others about the targets' own partitions.
func queueEffectsDone(b *pg.Batch, targets []target) effectsDone {
	var (
		orgs, datasets []uuid.UUID
		dags, jobs     []string
		keys           []*string
	)
	seen := map[actor]bool{}
	for _, t := range targets {
		if !t.job.Acts() {
			continue
		}
		a, key := actorOf(t.job), &t.key
		if t.job.Def.ExecutionStrategy == dag.PerUpdate {
			if seen[a] {
				continue
			}
			seen[a], key = true, nil
		}
		for _, in := range t.job.Inputs {
			orgs, dags, jobs = append(orgs, a.org), append(dags, a.dag), append(jobs, a.job)
			datasets, keys = append(datasets, in.Dataset), append(keys, key)
		}
	}
	done := effectsDone{}
	if len(orgs) == 0 {
		return done
	}
	var (
		a actor
		p registry.Pin
	)
	b.Query(fmt.Sprintf("effect positions of %d partitions", len(orgs)), []any{&a.org, &a.dag, &a.job, &p.Dataset, &p.Version, &p.Key, &p.Revision}, func() error {
		done[a] = append(done[a], p)
		return nil
	}, `
		WITH w AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[]) AS w(org, dag, job, dataset, key))
		SELECT e.org_id, e.dag_name, e.job_name, e.dataset_uuid, e.dataset_version, e.partition_key, e.revision
		FROM w JOIN effect_positions e ON e.org_id = w.org AND e.dag_name = w.dag AND e.job_name = w.job AND e.dataset_uuid = w.dataset
			AND e.partition_key = w.key
		UNION ALL
		SELECT e.org_id, e.dag_name, e.job_name, e.dataset_uuid, e.dataset_version, e.partition_key, e.revision
		FROM w JOIN effect_positions e ON e.org_id = w.org AND e.dag_name = w.dag AND e.job_name = w.job AND e.dataset_uuid = w.dataset
		WHERE w.key IS NULL`, orgs, dags, jobs, datasets, keys)
	return done
}

// of is what a target was last made from; nil where its job has acted on none of it.
func (e effectsDone) of(t target) *registry.Made {
	made := &registry.Made{}
	for i, in := range t.job.Inputs {
		for _, p := range e[actorOf(t.job)] {
			if p.Dataset == in.Dataset && (t.job.Def.ExecutionStrategy == dag.PerUpdate || p.Key == t.key) {
				p.Input, p.Compared = i, in.Def.Triggers()
				made.Pins = append(made.Pins, p)
			}
		}
	}
	if len(made.Pins) == 0 {
		return nil
	}
	return made
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
