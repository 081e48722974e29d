package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Rematerialized is one DAG that a rematerialize rebuilds.
type Rematerialized struct {
	Plan    registry.Plan     `json:"plan" doc:"What it rebuilds: the job, and everything downstream of it in its DAG"`
	Version *registry.Version `json:"version,omitempty" doc:"The version that is being built; absent if it was only planned"`
}

// Rematerialize computes a whole dataset anew, beside what serves, from the active document. It raises the build epoch
// of the dataset's job, so that the DAG gets a version with new generations of the dataset and of everything downstream
// of it. With Downstream, jobs of other DAGs that read any of those are rebuilt as well, each DAG in a version of its
// own; otherwise they follow in place. With DryRun it only returns what would be rebuilt. If one of the DAGs refuses,
// none is rebuilt.
func (dp *Deployer) Rematerialize(ctx context.Context, caller authz.Caller, name string,
	asked RematerializeRequest) ([]Rematerialized, error) {
	dataset, err := dp.registry.Dataset(ctx, caller, name)
	if err != nil {
		return nil, err
	}

	var planned []Rematerialized
	var requests []registry.DeployRequest
	waiting, seen := []string{dataset.DAG}, map[string]bool{dataset.DAG: true}
	jobs := map[string][]string{dataset.DAG: {dataset.Job}} // by DAG
	base := map[string]*int{dataset.DAG: asked.Base}
	for len(waiting) > 0 {
		dagName := waiting[0]
		waiting = waiting[1:]
		asked.Base = base[dagName]
		plan, req, err := dp.planRebuild(ctx, caller, dagName, jobs[dagName], asked)
		if err != nil {
			return nil, fmt.Errorf("rematerialize %s: %w", name, err)
		}
		planned, requests = append(planned, Rematerialized{Plan: plan}), append(requests, req)
		if !asked.Downstream {
			break
		}

		for _, consumer := range consumersOf(plan.Changes) {
			reader, job, _ := strings.Cut(consumer, "/")
			if seen[reader] && slices.Contains(jobs[reader], job) {
				continue
			}
			jobs[reader] = append(jobs[reader], job)
			if !seen[reader] {
				seen[reader] = true
				waiting = append(waiting, reader)
			}
		}
	}

	if asked.DryRun {
		return planned, nil
	}
	for i, req := range requests {
		deployed, err := dp.Deploy(ctx, caller, planned[i].Plan.DAG, req)
		if err != nil {
			return planned[:i], fmt.Errorf("rematerialize %s: %w", name, err)
		}
		planned[i].Version = &deployed.Version
	}
	return planned, nil
}

// consumersOf returns the jobs of other DAGs that read rebuilt datasets.
func consumersOf(changes []registry.Change) (consumers []string) {
	for _, c := range changes {
		if c.Action == Rebuild || c.Action == Create {
			consumers = append(consumers, c.ReadBy...)
		}
	}
	return consumers
}

// planRebuild plans to deploy a DAG's active document with the build epochs of some of its jobs raised, and returns the
// plan with the request that carries it out. Unless it is only asked what would be rebuilt, it refuses what the deploy
// would refuse.
func (dp *Deployer) planRebuild(ctx context.Context, caller authz.Caller, dagName string, jobs []string,
	asked RematerializeRequest) (registry.Plan, registry.DeployRequest, error) {
	req, err := dp.activeRequest(ctx, caller, dagName)
	if err != nil {
		return registry.Plan{}, req, err
	}
	doc, err := dp.parse(ctx, caller, dagName, req)
	if err != nil {
		return registry.Plan{}, req, err
	}

	for _, name := range jobs {
		job, ok := doc.Job(name)
		if !ok {
			return registry.Plan{}, req, fault.New(fault.Conflict, "the active version of %s has no job %s", dagName,
				name)
		}
		if job.ForwardOnly(dp.catalog.Operators[job.Operator]) {
			return registry.Plan{}, req, fault.New(fault.Invalid,
				"%s/%s cannot be computed anew: its past inputs or effects cannot be repeated", dagName, name)
		}
	}

	req.Force = jobs
	if asked.Base != nil {
		req.Base = asked.Base
	}
	req.Supersede, req.CancelTasks = asked.Supersede, asked.CancelTasks
	req.AllowRemovals, req.AllowBreaking = asked.AllowRemovals, asked.AllowBreaking
	plan, err := dp.plan(ctx, caller, dagName, req, asked.DryRun)
	return plan, req, err
}

// activeRequest returns a request to deploy the active version again, which is refused if another version becomes
// active before.
func (dp *Deployer) activeRequest(ctx context.Context, caller authz.Caller,
	dagName string) (registry.DeployRequest, error) {
	var (
		req    registry.DeployRequest
		files  []byte
		number int
	)
	err := pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT v.yaml, v.files, v.vars, coalesce(v.source_ref, ''), v.number
			FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
			WHERE c.org_id = $1 AND c.dag_name = $2`, caller.OrgID, dagName).Scan(&req.YAML, &files, &req.Vars,
			&req.SourceRef, &number)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return req, fault.New(fault.Conflict, "no version of %s is active", dagName).WithHint("deploy it first")
	}
	if err != nil {
		return req, fmt.Errorf("active document of %s: %w", dagName, err)
	}

	req.Base = &number
	return req, json.Unmarshal(files, &req.Files)
}
