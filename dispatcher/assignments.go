package dispatcher

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// claimInputs holds the inputs and operator states of a batch of claimed tasks, loaded for all of them at once.
type claimInputs struct {
	generations map[uuid.UUID][]registry.InputGeneration // by job row: the generation that each input reads
	contents    map[registry.Pin]registry.Content
	columns     map[uuid.UUID][]storage.Column // of generations of which a task reads no partition
	states      map[stateSlot]operatorState
	readings    map[uuid.UUID]json.RawMessage // how files are read, by job row
	cursor      *operators.CursorPosition     // where the attempt began, if it is loaded again after its claim
}

// loadInputs returns the inputs of taken tasks. loaded holds them without their generations, unless it is nil.
func (d *Dispatcher) loadInputs(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, loaded *pg.Later[claimInputs],
) (claimInputs, error) {
	var (
		pins  []registry.Pin
		slots []stateSlot
		jobs  []*registry.Job
	)
	for _, c := range taken {
		pins, slots, jobs = append(pins, c.Pins...), append(slots, slotOfTaken(c)), append(jobs, c.Job)
	}

	generations, err := d.Registry.InputGenerations(ctx, tx, jobs...)
	if err != nil {
		return claimInputs{}, err
	}
	if loaded == nil {
		loaded = queryInputs(new(pg.Batch), pins, slots)
	}
	inputs, err := loaded.Get(ctx, tx)
	if err != nil {
		return inputs, err
	}
	inputs.generations = generations
	if inputs.readings, err = registry.Readings(ctx, tx, d.readingsOf(jobs)); err != nil {
		return inputs, err
	}
	inputs.columns, err = columnsOfUnread(ctx, tx, taken, generations, inputs.contents)
	return inputs, err
}

// columnsOfUnread returns the columns of those generations that taken tasks have as inputs, and read nothing of: where
// one of several inputs suffices, the others may lack the partition, and what a check reads may be purged by then.
func columnsOfUnread(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken,
	generations map[uuid.UUID][]registry.InputGeneration, contents map[registry.Pin]registry.Content,
) (map[uuid.UUID][]storage.Column, error) {
	var unread []uuid.UUID
	for _, c := range taken {
		for i, g := range generations[c.Job.ID] {
			reads := func(p registry.Pin) bool { return p.Input == i && p.Content(contents).Schema != nil }
			if !slices.ContainsFunc(c.Pins, reads) {
				unread = append(unread, g.Version)
			}
		}
	}
	if len(unread) == 0 {
		return nil, nil
	}
	return registry.ColumnsOf(ctx, tx, unread)
}

// queryInputs returns the contents of pins, and operator states.
func queryInputs(b *pg.Batch, pins []registry.Pin, slots []stateSlot) *pg.Later[claimInputs] {
	var (
		states        = map[stateSlot]operatorState{}
		slot          stateSlot
		state         operatorState
		orgs, origins = make([]uuid.UUID, len(slots)), make([]uuid.UUID, len(slots))
		keys          = make([]string, len(slots))
	)
	for i, s := range slots {
		orgs[i], origins[i], keys[i] = s.org, s.origin, s.key
	}

	contents := registry.Contents(b, pins)
	to := []any{&slot.org, &slot.origin, &slot.key, &state.text, &state.version}
	b.Query("operator states", to, func() error {
		states[slot] = operatorState{slices.Clone(state.text), state.version}
		return nil
	}, `SELECT org_id, job_id, state_key, state, version FROM operator_state
		WHERE (org_id, job_id, state_key) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]))
		  AND version > 0`, // 0: nobody has written it yet
		orgs, origins, keys)

	return pg.Then(pg.Answer(b, &states),
		func(ctx context.Context, tx pgx.Tx, states map[stateSlot]operatorState) (claimInputs, error) {
			found, err := contents.Get(ctx, tx)
			return claimInputs{contents: found, states: states}, err
		})
}

// stamp returns pins with the times at which their revisions were made.
func (g claimInputs) stamp(pins []registry.Pin) []registry.Pin {
	stamped := make([]registry.Pin, len(pins))
	for i, p := range pins {
		stamped[i] = p
		stamped[i].At = p.Content(g.contents).At
	}
	return stamped
}

// slotOfTaken returns the slot of the operator state that a taken task reads and writes.
func slotOfTaken(c tasks.Taken) stateSlot {
	partition := ""
	if len(c.Partitions) > 0 {
		partition = c.Partitions[0]
	}
	return slotOfState(c.Job, partition, c.Payload)
}

// partitionOf returns the key of the output partition that a run makes.
func partitionOf(a operators.Assignment) string {
	if a.Partition == nil {
		return dag.WholeKey
	}
	return a.Partition.Key
}

// assign returns everything that a run needs: config, pinned inputs with their committed files, outputs at the
// generations of the job's version, operator state. For a check task it also returns the revision to check.
func (d *Dispatcher) assign(
	ctx context.Context, tx pgx.Tx, t Claimed, c tasks.Taken, g claimInputs,
) (operators.Assignment, *revisionCheck, error) {
	job := t.Job
	a := operators.Assignment{TaskID: t.TaskID, Attempt: t.Attempt, OrgID: job.OrgID, OrgSlug: job.OrgSlug,
		DAG: job.DAG, Job: job.Name, Operator: job.Def.Operator, OperatorVersion: job.Def.OperatorVersion,
		Config: job.Def.Config, Payload: c.Payload, Metadata: tasks.WithoutTrace(c.Metadata),
		PartitionBy: job.Def.PartitionBy, SplitBy: job.Def.SplitBy, Asked: job.Def.Asked(),
		Roots: d.Roots(job.OrgSlug, job.DAG), TimeoutAt: t.TimeoutAt}
	if c.Kind == tasks.KindCheck {
		check, err := d.assignCheck(ctx, tx, &a, job, c)
		return a, check, err
	}

	var err error
	cursor := g.cursor
	if cursor == nil {
		if cursor, err = stale.CursorPosition(ctx, tx, job); err != nil {
			return a, nil, err
		}
	}
	a.Cursor = cursor
	if len(c.Partitions) > 0 && cursor == nil && !job.Def.Splits() {
		if err := setPartition(&a, job, c.Partitions[0]); err != nil {
			return a, nil, err
		}
	}

	assignInputs(&a, job, c.Pins, g)
	a.Outputs, err = assignOutputs(ctx, tx, job, partitionOf(a))
	a.State, a.Reading = g.states[slotOfTaken(c)].text, g.readings[job.ID]
	if err != nil || len(a.State) == 0 || job.Def.Source == nil {
		return a, nil, err
	}
	return a, nil, assignPurged(ctx, tx, &a)
}

// assignPurged tells a source that remembers what it has read which of its outputs are gone.
func assignPurged(ctx context.Context, tx pgx.Tx, a *operators.Assignment) error {
	versions := make([]uuid.UUID, len(a.Outputs))
	for i, o := range a.Outputs {
		versions[i] = o.Generation.Version
	}
	purged, err := registry.PurgedOf(ctx, tx, versions, partitionOf(*a))
	for i := range a.Outputs {
		a.Outputs[i].Purged = purged[versions[i]]
	}
	return err
}

// assignOutputs returns the outputs of a run; those that append come with the revision that they add to.
func assignOutputs(
	ctx context.Context, tx pgx.Tx, job *registry.Job, key string,
) (outputs []operators.AssignedOutput, err error) {
	for i, o := range job.Outputs {
		out := operators.AssignedOutput{Index: i, Name: o.Name, Generation: o.Generation,
			UpdateStrategy: job.Def.UpdateStrategy}

		if job.Def.UpdateStrategy == dag.Append {
			ref := registry.Ref{Version: o.Generation.Version, Key: key}
			if out.Base, err = publishedPartition(ctx, tx, ref); err != nil {
				return nil, err
			}
		}
		if operators.AnyColumns(job.Def.Operator) {
			if out.Standing, err = registry.StandingColumns(ctx, tx, o.Generation, key); err != nil {
				return nil, err
			}
		}
		outputs = append(outputs, out)
	}
	return outputs, nil
}

// setPartition sets the output partition that a task makes and, where the job is partitioned by time, its bounds.
func setPartition(a *operators.Assignment, job *registry.Job, key string) error {
	a.Partition = &operators.PartitionRange{Key: key}
	if job.Def.PartitionBy.Kind != dag.ByTime {
		return nil
	}
	start, end, err := job.Def.PartitionBy.Bounds(key)
	a.Partition.Start, a.Partition.End = &start, &end
	return err
}

// assignInputs adds the inputs, each with its pinned partitions.
func assignInputs(a *operators.Assignment, job *registry.Job, pins []registry.Pin, g claimInputs) {
	schemas := maps.Clone(g.columns)
	if schemas == nil {
		schemas = map[uuid.UUID][]storage.Column{}
	}
	kept, mixed := map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	for _, p := range pins {
		content := p.Content(g.contents)
		if content.Schema != nil && (content.Mixed || !mixed[p.Version]) {
			schemas[p.Version] = content.Schema
		}
		kept[p.Version] = kept[p.Version] || content.Kept
		mixed[p.Version] = mixed[p.Version] || content.Mixed
	}
	generations := g.generations[job.ID]

	for i, in := range job.Inputs {
		version := generations[i].Version
		a.Inputs = append(a.Inputs, operators.AssignedInput{Index: i, As: in.Def.As, Map: in.Def.Map.Kind,
			Where: in.Def.Where, PartitionBy: generations[i].PartitionBy, Generation: generations[i].Generation,
			Schema: schemas[version], Kept: kept[version], Mixed: mixed[version]})
	}

	for _, p := range pins {
		in := &a.Inputs[p.Input]
		in.Partitions = append(in.Partitions, p.Content(g.contents).Partition)
	}
}
