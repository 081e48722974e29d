package why

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/registry"
)

// unfed explains a job none of whose inputs has anything.
func (e *explainer) unfed(ctx context.Context, job *registry.Job) ([]Reason, error) {
	return e.conditions(ctx, job, allInputs(job))
}

// allInputs are the inputs of a job, each with all that it has.
func allInputs(job *registry.Job) []stale.InputFacts {
	inputs := make([]stale.InputFacts, len(job.Inputs))
	for i, in := range job.Inputs {
		inputs[i] = stale.InputFacts{Index: i, Def: in.Def, Dataset: in.Dataset, Producer: in.Producer, All: true}
	}
	return inputs
}

// deadBehind lists the dead tasks of the jobs that make what a job reads, as far as the caller may see it: it is up to
// date with what is there, and they would have brought more.
func (e *explainer) deadBehind(
	ctx context.Context, job *registry.Job, inputs []stale.InputFacts,
) (reasons []Reason, err error) {
	datasets := make([]uuid.UUID, len(inputs))
	for i, in := range inputs {
		datasets[i] = in.Dataset
	}
	names, err := e.d.registry.ReadableNames(ctx, e.tx, e.caller, datasets)
	if err != nil {
		return nil, err
	}

	seen := map[uuid.UUID]bool{}
	for _, in := range inputs {
		producer, err := e.producer(ctx, job, in)
		if err != nil {
			return nil, err
		}
		if producer == nil || names[in.Dataset] == "" || seen[producer.Origin] {
			continue
		}
		seen[producer.Origin] = true
		dead, err := e.someOpen(ctx, []uuid.UUID{producer.Origin}, true)
		if err != nil {
			return nil, err
		}
		for _, r := range dead {
			if in.All || r.Partition == "" || slices.Contains(in.Wanted, r.Partition) {
				reasons = append(reasons, r)
			}
		}
	}
	return reasons, nil
}
