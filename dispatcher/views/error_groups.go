package views

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// ErrorGroup is a group of failed tasks whose errors differ only in ids, dates and numbers.
type ErrorGroup struct {
	Group     string    `json:"error_group" doc:"Its name, for filters"`
	Error     string    `json:"error" doc:"The error of the newest of the tasks; those of the others differ from it in ids, dates and numbers"`
	Count     int64     `json:"count"`
	Jobs      []string  `json:"jobs" nullable:"false" doc:"DAG/JOB, at most ten"`
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"`
	Example   uuid.UUID `json:"example" doc:"The newest of the tasks"`
	Retryable int64     `json:"retryable" doc:"Those of a definition that a version runs or builds: a retry refuses the others"`
}

// maxErrorGroups is how many groups ErrorGroups returns at most.
const maxErrorGroups = 200

// groupOf is the error group of the failed task of row w of the waiting set.
const groupOf = `coalesce(w.error_group, (SELECT error_group(t.error_message) FROM tasks t WHERE t.id = w.task_id))`

// failedSet returns the conditions on rows w of the waiting set under which their tasks are failed ones of the
// selection, and whether they are all of its conditions.
func (s TaskSelection) failedSet(org uuid.UUID, origins []uuid.UUID) (c *conditions, all bool) {
	c = &conditions{}
	c.add("w.org_id = ?", org)
	reasons := []tasks.Wait{tasks.WaitDead}
	if !s.Dead {
		reasons = append(reasons, tasks.WaitBackoff)
	}
	c.add("w.reason = ANY(?)", reasons)
	if s.DAG != "" || s.Job != "" {
		c.add("w.origin_job_id = ANY(?)", origins)
	}
	if s.ErrorGroup != "" {
		c.add(groupOf+" = ?", s.ErrorGroup)
	}

	set := TaskSelection{DAG: s.DAG, Job: s.Job, Dead: s.Dead, Status: s.Status, ErrorGroup: s.ErrorGroup}
	return c, reflect.DeepEqual(s, set) && (s.Status == "" || s.Status == string(tasks.Failed))
}

// ErrorGroups groups the failed tasks of a selection by error, the largest group first. It leaves out tasks whose error
// the caller may not read.
func (vs *Views) ErrorGroups(ctx context.Context, caller authz.Caller, s TaskSelection) ([]ErrorGroup, error) {
	groups := []ErrorGroup{}
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		c, err := vs.failedOf(ctx, tx, caller, s)
		if err != nil {
			return err
		}

		c.args = append(c.args, maxErrorGroups, "\n"+fault.Traceback)
		most, trace := len(c.args)-1, len(c.args)
		rows, err := tx.Query(ctx, fmt.Sprintf(`
			WITH failed AS MATERIALIZED (
				SELECT w.task_id, w.origin_job_id, w.failed_at, %s AS name FROM waiting w WHERE %s),
			run AS MATERIALIZED (%s),
			groups AS MATERIALIZED (
				SELECT f.name, count(*) AS n, array_agg(f.origin_job_id) AS jobs, min(f.failed_at) AS first,
				       max(f.failed_at) AS last, max(f.task_id::text)::uuid AS example,
				       count(*) FILTER (WHERE f.origin_job_id IN (SELECT origin_job_id FROM run)) AS retryable
				FROM failed f WHERE f.name IS NOT NULL GROUP BY f.name
				ORDER BY 2 DESC, 1 LIMIT $%d),
			listed AS MATERIALIZED (
				SELECT name, job FROM (
					SELECT name, job, row_number() OVER (PARTITION BY name ORDER BY job) AS n
					FROM (SELECT DISTINCT g.name, job FROM groups g, unnest(g.jobs) AS job) AS once) AS numbered
				WHERE n <= 100),
			named AS MATERIALIZED ( -- each job once: groups have many of them in common
				SELECT job, job_address(job) AS address FROM (SELECT DISTINCT job FROM listed) AS once),
			addresses AS (
				SELECT l.name, (array_agg(DISTINCT n.address))[1:10] AS jobs
				FROM listed l JOIN named n ON n.job = l.job GROUP BY l.name)
			SELECT g.name,
			       coalesce(btrim(regexp_replace(left(split_part(t.error_message, $%d, 1), 600), '\s+', ' ', 'g')), ''),
			       g.n, a.jobs,
			       coalesce(g.first, t.completed_at, t.created_at), coalesce(g.last, t.completed_at, t.created_at),
			       g.example, g.retryable
			FROM groups g JOIN addresses a ON a.name = g.name JOIN tasks t ON t.id = g.example
			ORDER BY g.n DESC, 1`, groupOf, c.where(), registry.WorkingOrigins("$1"), most, trace), c.args...)
		if err != nil {
			return err
		}
		groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ErrorGroup])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group tasks by error: %w", err)
	}
	return append([]ErrorGroup{}, groups...), nil
}

// failedOf returns the conditions on rows w of the waiting set under which their tasks are failed ones of a selection
// whose errors the caller may read.
func (vs *Views) failedOf(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, s TaskSelection,
) (c *conditions, err error) {
	var origins []uuid.UUID
	if s.DAG != "" || s.Job != "" {
		if origins, err = vs.registry.Origins(ctx, tx, caller, s.DAG, s.Job); err != nil {
			return nil, err
		}
	}
	c, all := s.failedSet(caller.OrgID, origins)
	hidden, err := vs.hiddenOf(ctx, tx, caller, `SELECT DISTINCT w.origin_job_id FROM waiting w WHERE `+c.where(), c.args)
	if err != nil {
		return nil, err
	}
	c.add("w.origin_job_id <> ALL(?)", hidden)
	if all {
		return c, nil
	}

	s.Status = string(tasks.Failed)
	where, args, err := vs.Selected(ctx, tx, caller, s)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT t.id FROM tasks t WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	selected, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	c.add("w.task_id = ANY(?)", selected)
	return c, err
}

// failedInGroup lists the failed tasks of the error group of a selection, in its DAG and job, whose errors the caller
// may read; never nil.
func (vs *Views) failedInGroup(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, s TaskSelection,
) ([]uuid.UUID, error) {
	set := TaskSelection{DAG: s.DAG, Job: s.Job, Dead: s.Dead, ErrorGroup: s.ErrorGroup}
	c, err := vs.failedOf(ctx, tx, caller, set)
	if err != nil {
		return nil, err
	}
	return c.waiting(ctx, tx)
}

// failedAmong lists the failed tasks of origins, only dead ones if the selection says so; never nil. To look them up in
// their set, which is small, is the way that no planner can miss.
func failedAmong(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, s TaskSelection, origins []uuid.UUID,
) ([]uuid.UUID, error) {
	c, _ := TaskSelection{DAG: s.DAG, Job: s.Job, Dead: s.Dead}.failedSet(caller.OrgID, origins)
	return c.waiting(ctx, tx)
}

// waiting lists the tasks of rows w of the waiting set that meet the conditions, never nil.
func (c *conditions) waiting(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `SELECT w.task_id FROM waiting w WHERE `+c.where(), c.args...)
	if err != nil {
		return nil, fmt.Errorf("failed tasks: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return append([]uuid.UUID{}, ids...), err
}
