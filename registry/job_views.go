package registry

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// JobView is one job of a DAG version, with its edges.
type JobView struct {
	Name        string       `json:"name"`
	Origin      uuid.UUID    `json:"-"`
	Activation  string       `json:"activation"`
	Source      string       `json:"source,omitempty" doc:"cron, poll, webhook, manual, timer or always_on"`
	Operator    string       `json:"operator"`
	Runtime     string       `json:"runtime"`
	Description string       `json:"description,omitempty"`
	Inputs      []InputView  `json:"inputs"`
	Outputs     []OutputView `json:"outputs"`
}

// InputView is one edge into a job.
type InputView struct {
	As      string `json:"as,omitempty" doc:"As the job names it; absent where the caller may not read a dataset of another DAG, whose name it may be"`
	DAG     string `json:"dag"`
	Job     string `json:"job"`
	Output  int    `json:"output"`
	Map     string `json:"map"`
	Dataset string `json:"dataset,omitempty" doc:"Its name, if the caller may read it"`
}

// OutputView is one output of a job.
type OutputView struct {
	Name    string `json:"name"`
	Dataset string `json:"dataset,omitempty" doc:"Its name, if the caller may read it"`

	ID uuid.UUID `json:"-"` // of the dataset
}

// JobsOf returns the jobs of a version in the order of its document.
func (r *Registry) JobsOf(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID) ([]JobView, error) {
	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE org_id = $1 AND dag_version_id = $2 ORDER BY id`,
		caller.OrgID, version)
	if err != nil {
		return nil, fmt.Errorf("list jobs of version %s: %w", version, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("list jobs of version %s: %w", version, err)
	}
	return r.jobViews(ctx, tx, caller, ids)
}

// JobOf returns one job of a version, and how the caller sees it; the job is nil if the version has none of the name.
func (r *Registry) JobOf(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID, name string,
) (*Job, JobView, error) {
	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE org_id = $1 AND dag_version_id = $2 AND name = $3`,
		caller.OrgID, version, name)
	if err != nil {
		return nil, JobView{}, fmt.Errorf("find job %s: %w", name, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(ids) == 0 {
		return nil, JobView{}, fault.Wrap(err, "find job "+name)
	}

	views, err := r.jobViews(ctx, tx, caller, ids)
	if err != nil {
		return nil, JobView{}, err
	}
	jobs, err := r.Jobs(ctx, tx, ids)
	return jobs[ids[0]], views[0], err
}

// jobViews returns jobs as the caller sees them, in the order of their ids.
func (r *Registry) jobViews(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, ids []uuid.UUID,
) ([]JobView, error) {
	jobs, err := r.Jobs(ctx, tx, ids)
	if err != nil {
		return nil, err
	}

	var datasets []uuid.UUID
	for _, id := range ids {
		for _, out := range jobs[id].Outputs {
			datasets = append(datasets, out.Generation.Dataset)
		}
		for _, in := range jobs[id].Inputs {
			datasets = append(datasets, in.Dataset)
		}
	}

	known, err := r.producers(ctx, tx, caller, datasets)
	if err != nil {
		return nil, err
	}

	hidden, err := r.HiddenAmong(ctx, tx, caller, ids)
	if err != nil {
		return nil, err
	}

	views := make([]JobView, len(ids))
	for i, id := range ids {
		if views[i] = jobView(jobs[id], known); hidden[id] {
			views[i] = views[i].outline()
		}
	}
	return views, nil
}

// outline returns the view without what may say what the job reads and makes.
func (v JobView) outline() JobView {
	v.Description = ""
	v.Outputs = slices.DeleteFunc(v.Outputs, func(out OutputView) bool { return out.Dataset == "" })
	return v
}

func jobView(j *Job, known map[uuid.UUID]producer) JobView {
	v := JobView{
		Name: j.Name, Origin: j.Origin, Activation: string(j.Def.Activation), Description: j.Def.Description,
		Operator: j.Def.Operator, Runtime: j.Def.Runtime, Inputs: []InputView{}, Outputs: []OutputView{},
	}

	if j.Def.Source != nil {
		v.Source = j.Def.Source.Kind
	}

	for _, in := range j.Inputs {
		p := known[in.Dataset]
		edge := InputView{Map: string(in.Def.Map.Kind), Dataset: p.readable}
		// A producer in another DAG is shown only to those who may read its dataset.
		if in.InDAG || p.readable != "" {
			edge.As, edge.DAG, edge.Job, edge.Output = in.Def.As, p.dag, p.job, p.output
		}
		v.Inputs = append(v.Inputs, edge)
	}

	for _, out := range j.Outputs {
		v.Outputs = append(v.Outputs, OutputView{Name: out.Name, Dataset: known[out.Generation.Dataset].readable,
			ID: out.Generation.Dataset})
	}
	return v
}

// producer is the job that makes a dataset. readable is the dataset's name, empty if the caller may not read it.
type producer struct {
	dag, job string
	output   int
	readable string
}

func (r *Registry) producers(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	datasets []uuid.UUID) (map[uuid.UUID]producer, error) {
	args := []any{caller.OrgID, datasets}
	visible := VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT o.id, o.producer_dag_name, o.producer_job_name, o.producer_output_index, coalesce(d.name, '')
		FROM dataset_outlines o LEFT JOIN datasets d ON d.id = o.id AND `+visible+`
		WHERE o.org_id = $1 AND o.id = ANY($2)`, args...)
	if err != nil {
		return nil, fmt.Errorf("find producers of %d datasets: %w", len(datasets), err)
	}

	known := make(map[uuid.UUID]producer, len(datasets))
	var (
		id uuid.UUID
		p  producer
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &p.dag, &p.job, &p.output, &p.readable}, func() error {
		known[id] = p
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find producers of %d datasets: %w", len(datasets), err)
	}
	return known, nil
}
