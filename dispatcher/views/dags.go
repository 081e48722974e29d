package views

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/flow"
)

// Counts is how many tasks are in each state.
type Counts struct {
	Queued    int64 `json:"queued"`
	Running   int64 `json:"running"`
	Retrying  int64 `json:"retrying" doc:"Failed, and waiting for their next attempt"`
	Dead      int64 `json:"dead" doc:"Out of attempts, waiting for a person"`
	Completed int64 `json:"completed,omitempty" doc:"Where a single DAG is asked for: of the tasks made in the last day, counted up to 10,000 a job; of a build: of those made since its version was"`
	Skipped   int64 `json:"skipped,omitempty" doc:"Given up by somebody; where a single DAG is asked for"`
}

// Open returns how many tasks are still to be done.
func (c Counts) Open() int64 { return c.Queued + c.Running + c.Retrying }

// DAGStatus is a DAG with the counts of its tasks.
type DAGStatus struct {
	registry.DAG
	Paused     *tasks.Pause `json:"paused,omitempty" doc:"Where the whole DAG, or the org, is paused"`
	PausedJobs int          `json:"paused_jobs,omitempty" doc:"How many of its jobs are paused by themselves"`
	Tasks      Counts       `json:"tasks" doc:"Of the active version and of the one being built"`
	// WithheldJobs has the same by job.
	WithheldJobs map[string]int64 `json:"-"`
	Withheld     int64            `json:"withheld,omitempty" doc:"Partitions of the active version whose newest revisions readers do not see, because checks rejected them or are still to run"`
	// Blocked jobs keep what they have, so the DAG is not fresh, whenever it was updated.
	Blocked []BlockedJob `json:"blocked,omitempty" doc:"Jobs of the active version of which nothing is made, because an input from another DAG cannot be mapped to their partitions any more"`
}

// DAGDetail is a DAG with the jobs of the version it shows, and its sources.
type DAGDetail struct {
	DAGStatus
	Build     *BuildProgress  `json:"build,omitempty" doc:"Of the version being built"`
	Jobs      []JobStatus     `json:"jobs"`
	Consumers []ForeignReader `json:"consumers" nullable:"false" doc:"Jobs of other DAGs that read its datasets, in the versions that serve; of those that the caller may look into"`
	Sources   []SourceStatus  `json:"sources"`
}

// JobStatus is a job with its tasks.
type JobStatus struct {
	registry.JobView
	Tasks    Counts       `json:"tasks"`
	Withheld int64        `json:"withheld,omitempty" doc:"Partitions whose newest revisions readers do not see"`
	Paused   *tasks.Pause `json:"paused,omitempty" doc:"Where it, its DAG or the org is paused"`
}

// ForeignReader is a job of another DAG that reads a dataset.
type ForeignReader struct {
	Dataset string `json:"dataset"`
	DAG     string `json:"dag"`
	Job     string `json:"job"`
}

// SourceStatus is the state of a source job.
type SourceStatus struct {
	DAG        string     `json:"dag"`
	Job        string     `json:"job"`
	Kind       string     `json:"kind"`
	State      string     `json:"state"`
	NextFireAt *time.Time `json:"next_fire_at,omitempty"`
	LastFireAt *time.Time `json:"last_fire_at,omitempty"`
	Error      string     `json:"error,omitempty"`
	ErrorSince *time.Time `json:"error_since,omitempty" doc:"When it first failed after it worked"`
	LeftOut    string     `json:"left_out,omitempty" doc:"What it found last and cannot read, while it reads the rest"`

	Failing      string     `json:"failing,omitempty" doc:"What its tasks fail with, each of which begins anew what the one before it could not do"`
	FailingSince *time.Time `json:"failing_since,omitempty" doc:"When the first of them failed for good"`

	Paused *tasks.Pause `json:"paused,omitempty" doc:"Where it, its DAG or the org is paused"`
}

// DAGs lists the org's DAGs in the order of their names, from the first one after the given name.
func (vs *Views) DAGs(ctx context.Context, caller authz.Caller, after string, limit int) ([]DAGStatus, error) {
	var list []DAGStatus
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		dags, err := vs.registry.DAGs(ctx, tx, caller, after, limit)
		if err != nil {
			return err
		}
		if list, err = vs.states(ctx, tx, caller, dags); err != nil {
			return err
		}

		origins, err := vs.registry.OriginsOf(ctx, tx, caller, withTasks(dags...))
		if err != nil {
			return err
		}
		open, err := countOpen(ctx, tx, caller.OrgID, flatten(origins))
		if err != nil {
			return err
		}
		pauses, err := PausesOf(ctx, tx, caller)
		if err != nil {
			return err
		}
		for i, dag := range dags {
			list[i].Paused, list[i].PausedJobs = tasks.WidestPause(pauses, dag.Name, ""), pausedJobs(pauses, dag.Name)
			list[i].Tasks = sum(open, origins, withTasks(dag))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list DAGs: %w", err)
	}
	return list, nil
}

// States is like DAGs, and leaves out what counts: their tasks, pauses, and when they were updated.
func (vs *Views) States(ctx context.Context, caller authz.Caller, after string, limit int) ([]DAGStatus, error) {
	var list []DAGStatus
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		dags, err := vs.registry.DAGStates(ctx, tx, caller, after, limit)
		if err != nil {
			return err
		}
		list, err = vs.states(ctx, tx, caller, dags)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list DAGs: %w", err)
	}
	return list, nil
}

// states returns DAGs with what is blocked and withheld of them.
func (vs *Views) states(ctx context.Context, tx pgx.Tx, caller authz.Caller, dags []registry.DAG) ([]DAGStatus, error) {
	blocked, err := vs.blocked(ctx, tx, caller, dags...)
	if err != nil {
		return nil, err
	}
	withheld, err := registry.WithheldOf(ctx, tx, caller.OrgID, serving(dags...))
	if err != nil {
		return nil, err
	}

	list := make([]DAGStatus, len(dags))
	for i, dag := range dags {
		list[i] = DAGStatus{DAG: dag, Withheld: withheldOf(dag, withheld), WithheldJobs: withheldJobs(dag, withheld),
			Blocked: blockedOf(dag, blocked)}
	}
	return list, nil
}

// DAG returns one DAG with its jobs, sources and tasks.
func (vs *Views) DAG(ctx context.Context, caller authz.Caller, name string) (DAGDetail, error) {
	var detail DAGDetail
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		dag, err := vs.registry.UpdatedDAG(ctx, tx, caller, name)
		if err != nil {
			return err
		}
		detail.DAG = dag

		origins, err := vs.registry.OriginsOf(ctx, tx, caller, withTasks(dag))
		if err != nil {
			return err
		}
		since := clock.Now().Add(-Lately)
		counts, err := countTasks(ctx, tx, caller.OrgID, flatten(origins), since, CompletedAtMost)
		if err != nil {
			return err
		}
		former, err := doneBefore(ctx, tx, caller.OrgID, name, since)
		if err != nil {
			return err
		}

		pauses, err := PausesOf(ctx, tx, caller)
		if err != nil {
			return err
		}
		detail.Paused, detail.PausedJobs = tasks.WidestPause(pauses, name, ""), pausedJobs(pauses, name)
		detail.Tasks = sum(counts, origins, withTasks(dag))
		for _, n := range former {
			detail.Tasks.Completed += n
		}

		blocked, err := vs.blocked(ctx, tx, caller, dag)
		if err != nil {
			return err
		}
		detail.Blocked = blockedOf(dag, blocked)

		if dag.Building != nil {
			if detail.Build, err = vs.buildProgress(ctx, tx, caller, *dag.Building, clock.Now()); err != nil {
				return err
			}
		}

		withheld, err := registry.WithheldOf(ctx, tx, caller.OrgID, serving(dag))
		if err != nil {
			return err
		}
		detail.Withheld = withheldOf(dag, withheld)
		if detail.Jobs, err = vs.jobs(ctx, tx, caller, dag, counts, pauses); err != nil {
			return err
		}
		for i, job := range detail.Jobs {
			detail.Jobs[i].Tasks.Completed += former[job.Name]
			if dag.Active != nil {
				detail.Jobs[i].Withheld = withheld[dag.Active.ID][job.Name]
			}
		}
		if detail.Consumers, err = consumers(ctx, tx, caller, name, detail.Jobs); err != nil {
			return err
		}
		detail.Sources, err = vs.sources(ctx, tx, caller, name)
		detail.Sources = slices.DeleteFunc(detail.Sources, neverFires)
		return err
	})
	if err != nil {
		return DAGDetail{}, fmt.Errorf("DAG %s: %w", name, err)
	}
	return detail, nil
}

// consumers lists the jobs of other DAGs that read what the jobs of a DAG make, never nil.
func consumers(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string, jobs []JobStatus,
) ([]ForeignReader, error) {
	list, names := []ForeignReader{}, map[uuid.UUID]string{}
	for _, j := range jobs {
		for _, out := range j.Outputs {
			if out.Dataset != "" {
				names[out.ID] = out.Dataset
			}
		}
	}
	live, err := flow.ServingAt(ctx, tx, caller, dagName, registry.Live)
	if err != nil || len(names) == 0 {
		return list, err
	}

	readers, err := flow.Abroad(ctx, tx, caller, live, slices.Collect(maps.Keys(names)))
	if err != nil {
		return nil, err
	}
	for _, r := range readers {
		for _, id := range r.Reads {
			if name := names[id]; name != "" && r.DAG != dagName && !r.Hidden {
				list = append(list, ForeignReader{Dataset: name, DAG: r.DAG, Job: r.Name})
			}
		}
	}
	return list, nil
}

// serving lists the versions that DAGs serve.
func serving(dags ...registry.DAG) (ids []uuid.UUID) {
	for _, d := range dags {
		if d.Active != nil {
			ids = append(ids, d.Active.ID)
		}
	}
	return ids
}

// withheldOf sums the withheld partitions of the version that a DAG serves.
func withheldOf(d registry.DAG, withheld map[uuid.UUID]map[string]int64) (n int64) {
	if d.Active == nil {
		return 0
	}
	for _, count := range withheld[d.Active.ID] {
		n += count
	}
	return n
}

// withheldJobs returns the same by job.
func withheldJobs(d registry.DAG, withheld map[uuid.UUID]map[string]int64) map[string]int64 {
	if d.Active == nil {
		return nil
	}
	return withheld[d.Active.ID]
}

// pausedJobs counts the pauses of single jobs of a DAG.
func pausedJobs(pauses []tasks.Pause, dagName string) (n int) {
	for _, p := range pauses {
		if p.DAG == dagName && p.Job != "" {
			n++
		}
	}
	return n
}

// jobs lists the jobs of the version that a DAG shows, never nil.
func (vs *Views) jobs(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dag registry.DAG,
	counts map[uuid.UUID]Counts, pauses []tasks.Pause,
) ([]JobStatus, error) {
	list := []JobStatus{}
	shown := dag.Shown()
	if shown == nil {
		return list, nil
	}

	jobs, err := vs.registry.JobsOf(ctx, tx, caller, shown.ID)
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		paused := tasks.WidestPause(pauses, dag.Name, j.Name)
		list = append(list, JobStatus{JobView: j, Tasks: counts[j.Origin], Paused: paused})
	}
	return list, nil
}

// withTasks lists the versions that have open tasks: those that tasks are made for, and those that failed, whose dead
// tasks are there.
func withTasks(dags ...registry.DAG) []uuid.UUID {
	ids := workedFor(dags...)
	for _, d := range dags {
		if d.Failed != nil {
			ids = append(ids, d.Failed.ID)
		}
	}
	return ids
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

// flatten returns all origins, whatever they are by.
func flatten[K comparable](by map[K][]uuid.UUID) []uuid.UUID {
	var all []uuid.UUID
	for _, ids := range by {
		all = append(all, ids...)
	}
	return all
}

// sum adds up the counts of the versions' origins. An origin that several versions share counts once.
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

// many is how many origins are counted together with all others of their org: to look up each takes longer.
const many = 1000

// countOpen counts the open tasks of origins. Every open task is in one of three small sets, so it reads no history.
func countOpen(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID) (map[uuid.UUID]Counts, error) {
	of, args := `org_id = $1 AND origin_job_id = ANY($2)`, []any{org, origins}
	if len(origins) > many {
		of, args = `org_id = $1`, args[:1]
	}
	rows, err := tx.Query(ctx, `
		SELECT origin_job_id, sum(queued)::bigint, sum(running)::bigint, sum(retrying)::bigint, sum(dead)::bigint
		FROM (
			SELECT origin_job_id, count(*) AS queued, 0 AS running, 0 AS retrying, 0 AS dead
			FROM ready WHERE `+of+` GROUP BY origin_job_id
			UNION ALL
			SELECT origin_job_id, count(*) FILTER (WHERE reason NOT IN ('backoff', 'dead')), 0,
			       count(*) FILTER (WHERE reason = 'backoff'), count(*) FILTER (WHERE reason = 'dead')
			FROM waiting WHERE `+of+` GROUP BY origin_job_id
			UNION ALL
			SELECT origin_job_id, 0, count(*), 0, 0
			FROM leases WHERE `+of+` GROUP BY origin_job_id) AS sets
		GROUP BY origin_job_id`, args...)
	if err != nil {
		return nil, fmt.Errorf("count open tasks: %w", err)
	}

	counts := map[uuid.UUID]Counts{}
	var (
		origin uuid.UUID
		c      Counts
	)
	if _, err := pgx.ForEachRow(rows, []any{&origin, &c.Queued, &c.Running, &c.Retrying, &c.Dead}, func() error {
		counts[origin] = c
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count open tasks: %w", err)
	}
	return counts, nil
}

// A year of history, or a job of a thousand tasks a second, must not make it slow to look at a DAG.
const (
	// Lately is the age of the oldest tasks whose completion DAG counts.
	Lately = 24 * time.Hour
	// CompletedAtMost is how many completed tasks DAG counts for a job at most.
	CompletedAtMost = 10_000
)

// doneBefore counts the completed tasks that the jobs of a DAG had, made at since or later, by the definitions that no
// version has any more: a deploy does not undo what was done. It returns them by the jobs' names.
func doneBefore(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, since time.Time,
) (map[string]int64, error) {
	former, err := registry.FormerOrigins(ctx, tx, org, dagName, since)
	if err != nil || len(former) == 0 {
		return nil, err
	}
	counts := map[uuid.UUID]Counts{}
	if err := addCompleted(ctx, tx, org, flatten(former), since, CompletedAtMost, counts); err != nil {
		return nil, err
	}

	done := map[string]int64{}
	for name, origins := range former {
		for _, origin := range origins {
			done[name] += counts[origin].Completed
		}
	}
	return done, nil
}

// addCompleted counts the completed tasks that were made at since or later, up to most for each origin. It relies on
// idx_tasks_job and reads only the end of that, because ids begin with their time.
func addCompleted(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID, since time.Time, most int64,
	counts map[uuid.UUID]Counts,
) error {
	rows, err := tx.Query(ctx, `
		SELECT o.id, done.n FROM unnest($2::uuid[]) AS o(id),
			LATERAL (SELECT count(*) AS n FROM (
				SELECT FROM task_outlines t
				WHERE t.org_id = $1 AND t.job_id = o.id AND t.id >= $3 AND t.status = 'Completed'
				LIMIT $4) AS newest) AS done
		WHERE done.n > 0`, org, origins, tasks.LowestIDAt(since), most)
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
