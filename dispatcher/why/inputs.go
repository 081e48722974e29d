package why

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/internal/fault"
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

// conditions lists the inputs of a target: which have what it needs and, behind those that have not, why not.
func (e *explainer) conditions(ctx context.Context, job *registry.Job, inputs []stale.InputFacts) ([]Reason, error) {
	datasets := make([]uuid.UUID, len(inputs))
	for i, in := range inputs {
		datasets[i] = in.Dataset
	}
	names, err := e.d.registry.ReadableNames(ctx, e.tx, e.caller, datasets)
	if err != nil {
		return nil, err
	}

	var list []Reason
	for _, in := range inputs {
		r := Reason{Code: whyInputMet, Input: in.Def.As, Dataset: names[in.Dataset], Hidden: names[in.Dataset] == ""}
		pins := in.Pins()
		if r.Count = len(pins); !in.Satisfied(len(pins)) {
			if err := e.lacks(ctx, job, in, &r); err != nil {
				return nil, err
			}
		}
		if r.Hidden {
			r.Input, r.Partition, r.Count = "", "", 0
		} else {
			r.Job = in.Producer
		}
		list = append(list, r)
	}
	return list, nil
}

// lacks says what an input has not got, and why not where the caller may see it.
func (e *explainer) lacks(ctx context.Context, job *registry.Job, in stale.InputFacts, r *Reason) error {
	var lacking []string
	for _, key := range in.Wanted {
		if _, ok := in.Published[key]; !ok {
			lacking = append(lacking, key)
		}
	}

	r.Code, r.Count = whyInputMissing, len(lacking)
	if in.Slice != nil && !r.Hidden {
		r.Detail = in.Slice.Missing(in.Producer)
	}
	switch {
	case in.Unknown && !r.Hidden:
		r.Detail = "nothing of it was published yet, so nobody knows its columns"
	case len(lacking) > 0:
		r.Partition = lacking[0]
	}
	if r.Hidden {
		return nil
	}

	producer, err := e.producer(ctx, job, in)
	if err != nil {
		return err
	}
	if producer == nil {
		r.Because = []Reason{{Code: whyNoLiveVersion}}
		return nil
	}
	if len(lacking) == 0 {
		r.Because, err = e.activity(ctx, producer, missingKeys)
		return err
	}
	for _, key := range lacking[:min(len(lacking), missingKeys)] {
		because, err := e.partition(ctx, producer, key)
		if err != nil {
			return err
		}
		r.Because = append(r.Because, because...)
	}
	return nil
}

// producer returns the job that makes an input: a job of the same version, or of another DAG's live version. nil
// where none does.
func (e *explainer) producer(ctx context.Context, job *registry.Job, in stale.InputFacts) (*registry.Job, error) {
	if job.Inputs[in.Index].InDAG {
		jobs, err := e.d.registry.VersionJobs(ctx, e.tx, job.VersionID)
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			if slices.ContainsFunc(j.Outputs,
				func(o registry.OutputGeneration) bool { return o.Generation.Dataset == in.Dataset }) {
				return j, nil
			}
		}
		return nil, nil
	}

	dagName, name, _ := strings.Cut(in.Producer, "/")
	found, err := e.d.registry.ActiveJob(ctx, e.tx, e.caller.OrgID, dagName, name)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return found, err
}
