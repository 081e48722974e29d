package views

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// SourceDetail is a source with its schedule and its position.
type SourceDetail struct {
	SourceStatus
	Task     *uuid.UUID  `json:"task_id,omitempty" doc:"Of an always_on source: the task that runs it"`
	Next     []time.Time `json:"next_fires,omitempty" doc:"When it is due next, at most five times"`
	Schedule *Schedule   `json:"schedule,omitempty" doc:"Absent for callers who may not read the job's definition"`

	Enumerated *time.Time      `json:"enumerated_at,omitempty" doc:"When the units that there are to read were last listed"`
	Units      int             `json:"units,omitempty" doc:"How many there were"`
	States     []OperatorState `json:"operator_states,omitempty" doc:"How far it has read, as its operator says"`
}

// Schedule says what makes a source fire.
type Schedule struct {
	Cron     string  `json:"cron,omitempty"`
	Timezone string  `json:"timezone,omitempty"`
	Start    string  `json:"start,omitempty"`
	Catchup  bool    `json:"catchup,omitempty" doc:"Times that were missed are made up for"`
	Every    float64 `json:"every_seconds,omitempty"`
	HookPath string  `json:"hook_path,omitempty" doc:"Deliveries go to /v1/hooks/ORG/PATH"`
	Secret   string  `json:"secret,omitempty" doc:"The name of the secret that signs deliveries"`
}

// nextFires is how many of its next times a source shows.
const nextFires = 5

// Source returns one source of an active version.
func (vs *Views) Source(ctx context.Context, caller authz.Caller, dagName, name string) (SourceDetail, error) {
	var detail SourceDetail
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		all, err := vs.sources(ctx, tx, caller, dagName)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(all, func(s SourceStatus) bool { return s.Job == name })
		if at < 0 {
			if _, err := vs.registry.ActiveJob(ctx, tx, caller.OrgID, dagName, name); err != nil {
				return err
			}
			return fault.New(fault.NotFound, "there is no source %s/%s", dagName, name).
				WithHint("`dagctl sources` lists them")
		}
		detail.SourceStatus = all[at]
		return vs.addSchedule(ctx, tx, caller, &detail)
	})
	return detail, fault.Wrap(err, fmt.Sprintf("source %s/%s", dagName, name))
}

// addSchedule adds when and what a source reads, where the caller may read its definition.
func (vs *Views) addSchedule(ctx context.Context, tx pgx.Tx, caller authz.Caller, s *SourceDetail) error {
	job, err := vs.registry.ActiveJob(ctx, tx, caller.OrgID, s.DAG, s.Job)
	if err != nil {
		return err
	}
	j := JobDetail{DAG: s.DAG}
	j.Origin = job.Origin
	if err := vs.addDefinition(ctx, tx, caller, job, &j); err != nil || j.Definition == nil {
		return err
	}

	def := job.Def.Source
	s.States, s.Schedule = j.States, &Schedule{Cron: def.Schedule, Timezone: def.Timezone, Start: def.Start,
		Catchup: def.Catchup, Every: def.Every.Seconds(), HookPath: def.Path, Secret: def.Secret}
	if s.NextFireAt != nil && s.State != "Draining" {
		s.Next = sources.NextTimes(def, *s.NextFireAt, nextFires)
	}

	err = tx.QueryRow(ctx, `
		SELECT CASE WHEN s.always_on THEN s.task_id END, e.enumerated_at, coalesce(e.units, 0)
		FROM (SELECT) AS one
		LEFT JOIN sources s ON s.org_id = $1 AND s.dag_name = $2 AND s.job_name = $3
		LEFT JOIN enumerations e ON e.org_id = $1 AND e.job_id = $4`, caller.OrgID, s.DAG, s.Job, job.ID).
		Scan(&s.Task, &s.Enumerated, &s.Units)
	return fault.Wrap(err, "position of source "+job.Address())
}

// Sources lists the source jobs of the active versions.
func (vs *Views) Sources(ctx context.Context, caller authz.Caller) ([]SourceStatus, error) {
	var list []SourceStatus
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		list, err = vs.sources(ctx, tx, caller, "")
		list = slices.DeleteFunc(list, neverFires)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list sources: %w", err)
	}
	return list, nil
}

// neverFires reports whether a source is read by builds only.
func neverFires(s SourceStatus) bool { return s.Kind == dag.SourceDeploy }

// sources lists the source jobs of the active version of a DAG or, without a name, of all DAGs.
func (vs *Views) sources(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string,
) ([]SourceStatus, error) {
	jobs, err := vs.registry.SourceJobs(ctx, tx, caller, dagName)
	if err != nil {
		return nil, err
	}

	rows, err := tx.Query(ctx, `
		SELECT s.dag_name, s.job_name, s.state, s.next_fire_at, s.last_fire_at, coalesce(s.error, ''), s.error_since,
			CASE WHEN f.fails THEN s.failing ELSE '' END, CASE WHEN f.fails THEN s.failing_since END
		FROM sources s CROSS JOIN LATERAL (
			SELECT s.failing IS NOT NULL AND (EXISTS (SELECT FROM waiting WHERE task_id = s.failing_task)
				OR EXISTS (SELECT FROM ready WHERE task_id = s.failing_task)
				OR EXISTS (SELECT FROM leases WHERE task_id = s.failing_task)) AS fails) AS f
		WHERE s.org_id = $1 AND ($2 = '' OR s.dag_name = $2)`, caller.OrgID, dagName)
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}

	type key struct{ dag, job string }
	known := map[key]SourceStatus{}
	var s SourceStatus
	var next, last, since, failing *time.Time
	columns := []any{&s.DAG, &s.Job, &s.State, &next, &last, &s.Error, &since, &s.Failing, &failing}
	if _, err := pgx.ForEachRow(rows, columns, func() error {
		s.NextFireAt, s.LastFireAt, s.ErrorSince, s.FailingSince = next, last, since, failing
		known[key{s.DAG, s.Job}] = s
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}

	left, err := leftOut(ctx, tx, caller.OrgID, jobs)
	if err != nil {
		return nil, err
	}
	pauses, err := PausesOf(ctx, tx, caller)
	if err != nil {
		return nil, err
	}

	list := []SourceStatus{}
	for _, j := range jobs {
		status := known[key{j.DAG, j.Job}]
		status.DAG, status.Job, status.Kind, status.LeftOut = j.DAG, j.Job, j.Kind, left[j.ID]
		status.Paused = tasks.WidestPause(pauses, j.DAG, j.Job)
		if status.State == "" {
			status.State = "Pending" // the dispatcher has not come to it yet
		}
		if j.Hidden || !caller.May(authz.Inspect, authz.OnDAG(j.DAG)) {
			status.Error, status.ErrorSince, status.LeftOut = "", nil, "" // they may quote paths and rows
			status.Failing, status.FailingSince = "", nil
		}
		list = append(list, status)
	}
	return list, nil
}

// leftOut returns what the last listings of sources left out, by job.
func leftOut(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, jobs []registry.SourceJob,
) (map[uuid.UUID]string, error) {
	ids := make([]uuid.UUID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	rows, err := tx.Query(ctx, `
		SELECT job_id, left_out FROM enumerations WHERE org_id = $1 AND job_id = ANY($2) AND left_out IS NOT NULL`,
		org, ids)
	if err != nil {
		return nil, fmt.Errorf("read what sources left out: %w", err)
	}

	found := map[uuid.UUID]string{}
	var id uuid.UUID
	var text string
	_, err = pgx.ForEachRow(rows, []any{&id, &text}, func() error {
		found[id] = text
		return nil
	})
	return found, fault.Wrap(err, "read what sources left out")
}
