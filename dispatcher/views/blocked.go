package views

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// BlockedJob is a job that makes nothing, because an input from another DAG no longer maps to its partitions.
type BlockedJob struct {
	Job   string `json:"job"`
	Input string `json:"input,omitempty" doc:"As the job names it; absent where the caller may not see the dataset"`
	Text  string `json:"text" doc:"What is wrong, and how to mend it"`
}

// blocked lists the blocked jobs of DAGs, by version.
func (vs *Views) blocked(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dags ...registry.DAG,
) (map[uuid.UUID][]BlockedJob, error) {
	inputs, err := deploy.BlockedInputs(ctx, tx, caller.OrgID, workedFor(dags...)...)
	if err != nil {
		return nil, err
	}
	lost, err := registry.LostAuthorityIn(ctx, tx, caller.OrgID, workedFor(dags...)...)
	if err != nil || len(inputs)+len(lost) == 0 {
		return nil, err
	}

	datasets := make([]uuid.UUID, len(inputs))
	for i, in := range inputs {
		datasets[i] = in.Dataset
	}
	names, err := vs.registry.ReadableNames(ctx, tx, caller, datasets)
	if err != nil {
		return nil, err
	}

	byVersion := map[uuid.UUID][]BlockedJob{}
	for _, in := range inputs {
		b := BlockedJob{Job: in.Job.Name, Text: "a dataset of another DAG, which you may not see, is partitioned " +
			"differently now; deploy " + in.DAG + " again"}
		if names[in.Dataset] != "" {
			b.Input, b.Text = in.Job.Inputs[in.Index].As, in.Blocked()
		}
		byVersion[in.VersionID] = append(byVersion[in.VersionID], b)
	}
	for version, l := range lost {
		for _, job := range slices.Sorted(maps.Values(l.Jobs)) {
			text := l.Why() + "; whoever may read it can deploy or promote the version again"
			byVersion[version] = append(byVersion[version], BlockedJob{Job: job, Text: text})
		}
	}
	return byVersion, nil
}

// blockedOf lists the blocked jobs of the version of a DAG that serves.
func blockedOf(dag registry.DAG, byVersion map[uuid.UUID][]BlockedJob) []BlockedJob {
	if dag.Active == nil {
		return nil
	}
	return byVersion[dag.Active.ID]
}

// PausesOf lists the pauses of the caller's org, in the order of tasks.PausesOf, without those that wait for a deleted
// DAG to come back. What people say about a pause is for those who may look into what is paused.
func PausesOf(ctx context.Context, tx pgx.Tx, caller authz.Caller) ([]tasks.Pause, error) {
	pauses, err := tasks.PausesOf(ctx, tx, caller.OrgID)
	if err != nil {
		return nil, err
	}

	var names []string
	for _, p := range pauses {
		if p.DAG != "" {
			names = append(names, p.DAG)
		}
	}
	stand, err := registry.StandingDAGs(ctx, tx, caller.OrgID, names)
	if err != nil {
		return nil, err
	}
	pauses = slices.DeleteFunc(pauses, func(p tasks.Pause) bool { return p.DAG != "" && !stand[p.DAG] })

	var dags, jobs []string
	for _, p := range pauses {
		if p.Job != "" {
			dags, jobs = append(dags, p.DAG), append(jobs, p.Job)
		}
	}
	hidden, err := registry.HiddenNames(ctx, tx, caller, dags, jobs)
	for i, p := range pauses {
		if hidden[p.What()] {
			pauses[i].Reason = ""
		}
	}
	return pauses, err
}
