package stale

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// targetFacts are the facts about a target.
type targetFacts struct {
	inputs []InputFacts
	made   *registry.Made // what the target was last made from; nil: it was never made
}

// Examine gathers the facts about targets, in a number of statements that does not depend on how many there are, and
// decides on each.
func (e *Examiner) Examine(ctx context.Context, tx pgx.Tx, targets []Target) ([]Finding, error) {
	if len(targets) == 0 {
		return nil, nil
	}
	wants, err := e.Wants(ctx, tx, targets)
	if err != nil {
		return nil, err
	}
	facts, err := e.Facts(new(pg.Batch), targets, wants).Get(ctx, tx)
	if err != nil {
		return nil, err
	}
	return DecideAll(targets, facts), nil
}

// DecideAll returns the finding on each target.
func DecideAll(targets []Target, facts []targetFacts) []Finding {
	findings := make([]Finding, len(targets))
	for i, t := range targets {
		findings[i] = decide(t, facts[i].inputs, facts[i].made)
	}
	return findings
}

// Facts returns, for each target, the input revisions that exist and those its output was built from. It fills in
// wants, which Wants returned for the same targets.
func (e *Examiner) Facts(b *pg.Batch, targets []Target, wants [][]InputFacts) *pg.Later[[]targetFacts] {
	inputs := publishedFor(b, targets, wants)
	lastMade := lastMadeOf(b, targets)
	asked := pg.Answer(b, &wants) // sends the batch before the statements below
	return pg.Then(asked, func(ctx context.Context, tx pgx.Tx, wants [][]InputFacts) ([]targetFacts, error) {
		published, err := inputs.Get(ctx, tx)
		if err != nil {
			return nil, err
		}
		published.fillIn(wants)
		if err := addSegments(ctx, tx, wants); err != nil {
			return nil, err
		}
		if err := addUnknown(ctx, tx, targets, wants); err != nil {
			return nil, err
		}
		made, err := lastMade.Get(ctx, tx)
		if err != nil {
			return nil, err
		}
		if err := e.addCursors(ctx, tx, targets, wants, made); err != nil {
			return nil, err
		}
		if err := countInherited(ctx, tx, wants, made); err != nil {
			return nil, err
		}
		if err := e.noteArrivals(ctx, tx, targets, wants, made); err != nil {
			return nil, err
		}

		facts := make([]targetFacts, len(targets))
		for i := range targets {
			facts[i] = targetFacts{wants[i], made[i]}
		}
		return facts, nil
	})
}

// Wants returns, for each target and input, the partitions that the target is made of. Facts adds the published
// revisions.
func (e *Examiner) Wants(ctx context.Context, tx pgx.Tx, targets []Target) ([][]InputFacts, error) {
	jobs := make([]*registry.Job, len(targets))
	for i, t := range targets {
		jobs[i] = t.Job
	}
	generations, err := e.registry.InputGenerations(ctx, tx, jobs...)
	if err != nil {
		return nil, err
	}

	wants := make([][]InputFacts, len(targets))
	for i, t := range targets {
		for n := range t.Job.Inputs {
			wants[i] = append(wants[i], wantedOf(t, n, generations[t.Job.ID][n]))
		}
	}
	return wants, nil
}

// wantedOf returns the partitions of an input that a target is made of.
func wantedOf(t Target, n int, reads registry.InputGeneration) InputFacts {
	in := t.Job.Inputs[n]
	f := InputFacts{Index: n, Def: in.Def, Dataset: in.Dataset, Producer: in.Producer, Generation: reads.Version}
	if f.Unmapped = Unmapped(t.Job, in, reads.PartitionBy); f.Unmapped != "" {
		return f
	}

	wanted, all, err := in.Def.Map.InputKeys(reads.PartitionBy, t.Job.Def.TasksBy(), t.Key)
	if err == nil {
		f.Slice, err = sliceOf(t, f)
	}
	if err != nil {
		f.Unmapped = unmappable(t.Job, in, t.Key, err)
		return f
	}
	f.Wanted, f.All = wanted, all && f.Slice == nil
	return f
}

// publishedInputs holds the published revisions of inputs.
type publishedInputs struct {
	whole map[uuid.UUID]map[string]int64 // by generation and partition
	some  map[registry.Ref]int64
}

// publishedFor returns the published revisions: of whole generations for inputs that take everything, of the wanted
// partitions for the others. addCursors adds those of inputs that are followed.
func publishedFor(b *pg.Batch, targets []Target, wants [][]InputFacts) *pg.Later[publishedInputs] {
	var (
		whole []uuid.UUID
		refs  []registry.Ref
	)
	seen := map[registry.Ref]bool{}
	for i, inputs := range wants {
		for n, in := range inputs {
			if Follows(targets[i].Job, targets[i].Job.Inputs[n]) {
				continue
			}
			if in.All {
				whole = append(whole, in.Generation)
				continue
			}
			for _, key := range in.Wanted {
				if r := (registry.Ref{Version: in.Generation, Key: key}); !seen[r] {
					seen[r] = true
					refs = append(refs, r)
				}
			}
		}
	}

	all, some := registry.Published(b, tasks.SortedIDs(whole)), registry.PublishedAt(b, refs)
	type revisions = map[uuid.UUID]map[string]int64
	return pg.Then(all, func(ctx context.Context, tx pgx.Tx, all revisions) (publishedInputs, error) {
		at, err := some.Get(ctx, tx)
		return publishedInputs{all, at}, err
	})
}

// fillIn adds to each input its published revisions.
func (p publishedInputs) fillIn(wants [][]InputFacts) {
	for _, inputs := range wants {
		for n := range inputs {
			in := &inputs[n]
			if in.All {
				in.Published = p.whole[in.Generation]
				continue
			}
			in.Published = make(map[string]int64, len(in.Wanted))
			for _, key := range in.Wanted {
				if revision, ok := p.some[registry.Ref{Version: in.Generation, Key: key}]; ok {
					in.Published[key] = revision
				}
			}
		}
	}
}

// lastMadeOf returns what each target was last made from; nil: it was never made.
func lastMadeOf(b *pg.Batch, targets []Target) *pg.Later[[]*registry.Made] {
	var replaced, appended []registry.Ref
	for _, t := range targets {
		if r, ok := t.Ref(); !ok {
			continue
		} else if ReadsNew(t.Job) && !OnlyFollows(t.Job) {
			appended = append(appended, r)
		} else {
			replaced = append(replaced, r)
		}
	}

	last, effects := registry.LastMade(b, replaced, appended), effectsOfActing(b, targets)
	type madeByRef = map[registry.Ref]registry.Made
	return pg.Then(last, func(ctx context.Context, tx pgx.Tx, last madeByRef) ([]*registry.Made, error) {
		done, err := effects.Get(ctx, tx)
		if err != nil {
			return nil, err
		}
		made := make([]*registry.Made, len(targets))
		for i, t := range targets {
			if t.Job.Acts() {
				made[i] = done.of(t)
				continue
			}
			r, _ := t.Ref()
			if m, ok := last[r]; ok {
				made[i] = &m
			}
		}
		return made, nil
	})
}

// effectsDone holds the revisions that jobs with effects have acted on. Positions are kept by the job's name, so that
// no edit, deploy or rollback makes a job act twice on the same partition.
type effectsDone map[actor][]registry.Pin

// actor names a job across all its versions.
type actor struct {
	org      uuid.UUID
	dag, job string
}

// actorOf returns the name under which a job's positions are kept.
func actorOf(job *registry.Job) actor { return actor{job.OrgID, job.DAG, job.Name} }

// effectsOfActing returns the revisions that those of the targets' jobs that have effects have acted on: all of them
// for a job that runs per update, those of the targets' own partitions for the others.
func effectsOfActing(b *pg.Batch, targets []Target) *pg.Later[effectsDone] {
	var (
		orgs, datasets []uuid.UUID
		dags, jobs     []string
		keys           []*string
	)
	seen := map[actor]bool{}
	for _, t := range targets {
		if !t.Job.Acts() {
			continue
		}
		a, key := actorOf(t.Job), &t.Key
		if t.Job.Def.ExecutionStrategy == dag.PerUpdate {
			if seen[a] {
				continue
			}
			seen[a], key = true, nil
		}
		for _, in := range t.Job.Inputs {
			orgs, dags, jobs = append(orgs, a.org), append(dags, a.dag), append(jobs, a.job)
			datasets, keys = append(datasets, in.Dataset), append(keys, key)
		}
	}

	done := effectsDone{}
	if len(orgs) == 0 {
		return pg.Known(done)
	}

	var (
		a actor
		p registry.Pin
	)
	into := []any{&a.org, &a.dag, &a.job, &p.Dataset, &p.Version, &p.Key, &p.Revision}
	b.Query(fmt.Sprintf("effect positions of %d partitions", len(orgs)), into, func() error {
		done[a] = append(done[a], p)
		return nil
	}, `
		WITH w AS (
			SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[])
				AS w(org, dag, job, dataset, key))
		SELECT e.org_id, e.dag_name, e.job_name, e.dataset_uuid, e.dataset_version, e.partition_key, e.revision
		FROM w JOIN effect_positions e ON e.org_id = w.org AND e.dag_name = w.dag AND e.job_name = w.job
			AND e.dataset_uuid = w.dataset AND e.partition_key = w.key
		UNION ALL
		SELECT e.org_id, e.dag_name, e.job_name, e.dataset_uuid, e.dataset_version, e.partition_key, e.revision
		FROM w JOIN effect_positions e ON e.org_id = w.org AND e.dag_name = w.dag AND e.job_name = w.job
			AND e.dataset_uuid = w.dataset
		WHERE w.key IS NULL`, orgs, dags, jobs, datasets, keys)
	return pg.Answer(b, &done)
}

// of returns what a target was last made from, or nil if its job has acted on none of it.
func (e effectsDone) of(t Target) *registry.Made {
	made := &registry.Made{}
	for i, in := range t.Job.Inputs {
		for _, p := range e[actorOf(t.Job)] {
			if p.Dataset == in.Dataset && (t.Job.Def.ExecutionStrategy == dag.PerUpdate || p.Key == t.Key) {
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

// ExamineAll decides on every output partition of those jobs that are reactive.
func (e *Examiner) ExamineAll(ctx context.Context, tx pgx.Tx, jobs []*registry.Job) ([]Finding, error) {
	targets, err := e.AllTargets(ctx, tx, jobs...)
	if err != nil {
		return nil, err
	}
	return e.Examine(ctx, tx, targets)
}

// AllTargets lists every output partition that the published inputs of reactive jobs feed.
func (e *Examiner) AllTargets(ctx context.Context, tx pgx.Tx, jobs ...*registry.Job) ([]Target, error) {
	reactive := slices.DeleteFunc(slices.Clone(jobs), func(j *registry.Job) bool {
		return j.Def.Activation != dag.ActivationReactive
	})
	whole := func(j *registry.Job) bool { return j.Def.TasksBy().Kind == dag.Unpartitioned }
	parted := slices.DeleteFunc(slices.Clone(reactive), whole)
	inputs, err := e.registry.InputGenerations(ctx, tx, parted...)
	if err != nil {
		return nil, err
	}
	ids, err := e.triggering(ctx, tx, parted...)
	if err != nil {
		return nil, err
	}
	published, err := registry.Published(new(pg.Batch), ids).Get(ctx, tx)
	if err != nil {
		return nil, err
	}

	var targets []Target
	for _, job := range reactive {
		if whole(job) { // one output, which any partition feeds
			none, err := e.none(ctx, tx, job)
			if err != nil {
				return nil, err
			}
			if !none {
				targets = append(targets, Target{job, dag.WholeKey})
			}
			continue
		}
		for _, key := range outputKeys(job, inputs[job.ID], published) {
			targets = append(targets, Target{job, key})
		}
	}
	return targets, nil
}
