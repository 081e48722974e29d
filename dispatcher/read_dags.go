package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Counts is how many tasks are where.
type Counts struct {
	Queued    int64 `json:"queued"`
	Running   int64 `json:"running"`
	Retrying  int64 `json:"retrying" doc:"Failed, and waiting for their next attempt"`
	Dead      int64 `json:"dead" doc:"Out of attempts, waiting for a person"`
	Completed int64 `json:"completed,omitempty" doc:"Where a single DAG is asked for: of the tasks made in the last day, counted up to 10,000 a job; of a build: of those made since its version was"`
	Skipped   int64 `json:"skipped,omitempty" doc:"Given up by somebody; where a single DAG is asked for"`
}

// Open is how many tasks are still to be done.
func (c Counts) Open() int64 { return c.Queued + c.Running + c.Retrying }

// DAGStatus is a DAG as it stands, with what is to be done for it.
type DAGStatus struct {
	registry.DAG
	Paused *Pause `json:"paused,omitempty" doc:"Where the whole DAG, or the org, is paused"`
	Tasks  Counts `json:"tasks" doc:"Of the active version and of the one being built"`
}

// DAGDetail is a DAG with the jobs of the version it shows, and its sources.
type DAGDetail struct {
	DAGStatus
	Build   *BuildProgress `json:"build,omitempty" doc:"Of the version being built"`
	Jobs    []JobStatus    `json:"jobs"`
	Sources []SourceStatus `json:"sources"`
}

// JobStatus is a job with its tasks.
type JobStatus struct {
	registry.JobView
	Tasks  Counts `json:"tasks"`
	Paused *Pause `json:"paused,omitempty" doc:"Where it, its DAG or the org is paused"`
}

// DAGs lists the org's DAGs by name, beginning after the given one.
func (d *Dispatcher) DAGs(ctx context.Context, caller authz.Caller, after string, limit int) ([]DAGStatus, error) {
	var list []DAGStatus
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		dags, err := d.Registry.DAGs(ctx, tx, caller, after, limit)
		if err != nil {
			return err
		}
		origins, err := d.Registry.OriginsOf(ctx, tx, caller, workedFor(dags...))
		if err != nil {
			return err
		}
		open, err := countOpen(ctx, tx, caller.OrgID, flatten(origins))
		if err != nil {
			return err
		}
		pauses, err := pausesOf(ctx, tx, caller.OrgID)
		if err != nil {
			return err
		}
		list = make([]DAGStatus, len(dags))
		for i, dag := range dags {
			list[i] = DAGStatus{DAG: dag, Paused: coveredBy(pauses, dag.Name, ""), Tasks: sum(open, origins, workedFor(dag))}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list DAGs: %w", err)
	}
	return list, nil
}

// DAG returns one DAG with its jobs, sources and tasks.
func (d *Dispatcher) DAG(ctx context.Context, caller authz.Caller, name string) (DAGDetail, error) {
	var detail DAGDetail
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		dag, err := d.Registry.DAG(ctx, tx, caller, name)
		if err != nil {
			return err
		}
		detail.DAG, detail.Jobs = dag, []JobStatus{}
		origins, err := d.Registry.OriginsOf(ctx, tx, caller, workedFor(dag))
		if err != nil {
			return err
		}
		counts, err := countTasks(ctx, tx, caller.OrgID, flatten(origins), time.Now().Add(-lately), CompletedAtMost)
		if err != nil {
			return err
		}
		pauses, err := pausesOf(ctx, tx, caller.OrgID)
		if err != nil {
			return err
		}
		detail.Paused = coveredBy(pauses, name, "")
		detail.Tasks = sum(counts, origins, workedFor(dag))
		if dag.Building != nil {
			if detail.Build, err = d.buildProgress(ctx, tx, caller, *dag.Building, time.Now()); err != nil {
				return err
			}
		}
		if shown := dag.Shown(); shown != nil {
			jobs, err := d.Registry.JobsOf(ctx, tx, caller, shown.ID)
			if err != nil {
				return err
			}
			for _, j := range jobs {
				detail.Jobs = append(detail.Jobs, JobStatus{JobView: j, Tasks: counts[j.Origin], Paused: coveredBy(pauses, name, j.Name)})
			}
		}
		detail.Sources, err = d.sources(ctx, tx, caller, name)
		return err
	})
	if err != nil {
		return DAGDetail{}, fmt.Errorf("DAG %s: %w", name, err)
	}
	return detail, nil
}

// workedFor lists the versions that tasks are made for.
func workedFor(dags ...registry.DAG) []uuid.UUID {
	var ids []uuid.UUID
	for _, d := range dags {
		for _, v := range []*registry.Version{d.Active, d.Building} {
			if v != nil {
				ids = append(ids, v.ID)
			}
		}
	}
	return ids
}

func flatten(byVersion map[uuid.UUID][]uuid.UUID) []uuid.UUID {
	var all []uuid.UUID
	for _, ids := range byVersion {
		all = append(all, ids...)
	}
	return all
}

// sum adds up the counts of the versions' origins, each once though versions share them.
func sum(counts map[uuid.UUID]Counts, origins map[uuid.UUID][]uuid.UUID, versions []uuid.UUID) Counts {
	var total Counts
	seen := map[uuid.UUID]bool{}
	for _, version := range versions {
		for _, origin := range origins[version] {
			if c := counts[origin]; !seen[origin] {
				seen[origin] = true
				total.Queued += c.Queued
				total.Running += c.Running
				total.Retrying += c.Retrying
				total.Dead += c.Dead
				total.Completed += c.Completed
				total.Skipped += c.Skipped
			}
		}
	}
	return total
}

// countOpen counts from the small sets, of which every open task is in one; it never reads history.
func countOpen(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID) (map[uuid.UUID]Counts, error) {
	rows, err := tx.Query(ctx, `
		SELECT job_id, sum(queued)::bigint, sum(running)::bigint, sum(retrying)::bigint, sum(dead)::bigint
		FROM (
			SELECT job_id, count(*) AS queued, 0 AS running, 0 AS retrying, 0 AS dead FROM ready WHERE org_id = $1 AND job_id = ANY($2) GROUP BY job_id
			UNION ALL
			SELECT job_id, count(*) FILTER (WHERE reason NOT IN ('backoff', 'dead')), 0,
			       count(*) FILTER (WHERE reason = 'backoff'), count(*) FILTER (WHERE reason = 'dead')
			FROM waiting WHERE org_id = $1 AND job_id = ANY($2) GROUP BY job_id
			UNION ALL
			SELECT job_id, 0, count(*), 0, 0 FROM leases WHERE org_id = $1 AND job_id = ANY($2) GROUP BY job_id) AS sets
		GROUP BY job_id`, org, origins)
	if err != nil {
		return nil, fmt.Errorf("count open tasks: %w", err)
	}
	counts := map[uuid.UUID]Counts{}
	var (
		id uuid.UUID
		c  Counts
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &c.Queued, &c.Running, &c.Retrying, &c.Dead}, func() error {
		counts[id] = c
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count open tasks: %w", err)
	}
	return counts, nil
}

// What is done of a DAG is told of the last day, and no further than somebody would read: a year of history, or a job of a
// thousand tasks a second, must not make looking at it slow.
const (
	lately = 24 * time.Hour
	// CompletedAtMost is how far the completed tasks of a job are counted where a DAG is looked at.
	CompletedAtMost = 10_000
)

// addCompleted counts what is done of the tasks made since a time, up to a number for each origin. It relies on idx_tasks_job,
// of which it reads the end: ids begin with their time.
func addCompleted(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID, since time.Time, most int64, counts map[uuid.UUID]Counts) error {
	rows, err := tx.Query(ctx, `
		SELECT o.id, done.n FROM unnest($2::uuid[]) AS o(id),
			LATERAL (SELECT count(*) AS n FROM (
				SELECT FROM tasks t WHERE t.org_id = $1 AND t.job_id = o.id AND t.id >= $3 AND t.status = 'Completed' LIMIT $4) AS newest) AS done
		WHERE done.n > 0`, org, origins, firstID(since), most)
	if err != nil {
		return fmt.Errorf("count completed tasks: %w", err)
	}
	var (
		id uuid.UUID
		n  int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		c := counts[id]
		c.Completed = n
		counts[id] = c
		return nil
	}); err != nil {
		return fmt.Errorf("count completed tasks: %w", err)
	}
	return nil
}

// Sources lists the source jobs of the active versions.
func (d *Dispatcher) Sources(ctx context.Context, caller authz.Caller) ([]SourceStatus, error) {
	var list []SourceStatus
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		list, err = d.sources(ctx, tx, caller, "")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list sources: %w", err)
	}
	return list, nil
}

// sources tells how the source jobs of one DAG stand, or of all.
func (d *Dispatcher) sources(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string) ([]SourceStatus, error) {
	jobs, err := d.Registry.SourceJobs(ctx, tx, caller)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		SELECT dag_name, job_name, state, next_fire_at, last_fire_at, coalesce(error, '')
		FROM sources WHERE org_id = $1 AND ($2 = '' OR dag_name = $2)`, caller.OrgID, dagName)
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	type key struct{ dag, job string }
	known := map[key]SourceStatus{}
	var s SourceStatus
	var next, last *time.Time
	if _, err := pgx.ForEachRow(rows, []any{&s.DAG, &s.Job, &s.State, &next, &last, &s.Error}, func() error {
		s.NextFireAt, s.LastFireAt = next, last
		known[key{s.DAG, s.Job}] = s
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	list := []SourceStatus{}
	for _, j := range jobs {
		if dagName != "" && j.DAG != dagName {
			continue
		}
		status := known[key{j.DAG, j.Job}]
		status.DAG, status.Job, status.Kind = j.DAG, j.Job, j.Kind
		if status.State == "" {
			status.State = "Pending" // the dispatcher has not come to it yet
		}
		if !caller.Is(authz.RoleWriter) {
			status.Error = "" // it may quote paths and rows
		}
		list = append(list, status)
	}
	return list, nil
}
