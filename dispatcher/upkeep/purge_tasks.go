package upkeep

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// PurgeTasksRequest selects the tasks whose contents to delete, and gives the reason.
type PurgeTasksRequest struct {
	Filter      views.TaskSelection `json:"filter,omitzero" doc:"Which tasks; filter or where needs a condition"`
	Where       map[string]string   `json:"where,omitempty" maxProperties:"20" doc:"Values in their payload, metadata or result, by path: {\"payload.customer.id\": \"17\"}"`
	Reason      string              `json:"reason" minLength:"1" maxLength:"1000" doc:"Goes into the audit log"`
	BreakWindow bool                `json:"break_window,omitempty" doc:"Purge even tasks that a rollback would make queued again"`
	DryRun      bool                `json:"dry_run,omitempty" doc:"Only count the tasks"`
}

// PurgedTasks is what a purge deleted, or would delete.
type PurgedTasks struct {
	DryRun bool `json:"dry_run"`
	Tasks  int  `json:"tasks"`
}

// PurgeTasks deletes the contents of tasks for good: payloads, metadata, results, errors, audit trails, idempotency
// keys, and what their attempts left in staging. It keeps the tasks' rows without their contents, and the partitions
// that they made (Purge deletes those). It refuses open tasks, which still need their payloads.
func (u *Upkeep) PurgeTasks(
	ctx context.Context, caller authz.Caller, req PurgeTasksRequest, now time.Time,
) (PurgedTasks, error) {
	if req.Filter.Empty() && len(req.Where) == 0 {
		return PurgedTasks{}, fault.New(fault.Invalid,
			"neither filter nor where says anything, which would mean every task").
			WithHint("name a DAG, ids, a time, or what the payload says")
	}

	var tasks []uuid.UUID
	err := pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if tasks, err = u.purgeable(ctx, tx, caller, req); err != nil || req.DryRun {
			return err
		}
		if err := forgetAll(ctx, tx, caller, tasks, now); err != nil {
			return err
		}
		// The values in Where may be what has to go, so the audit log keeps only the paths.
		detail := map[string]any{
			"reason": req.Reason, "dag": req.Filter.DAG, "job": req.Filter.Job,
			"where": slices.Sorted(maps.Keys(req.Where)), "break_window": req.BreakWindow, "tasks": len(tasks),
		}
		return authz.Audit(ctx, tx, caller, "task.purge", caller.OrgSlug, detail)
	})

	purged := PurgedTasks{DryRun: req.DryRun, Tasks: len(tasks)}
	if err != nil || req.DryRun {
		return purged, fault.Wrap(err, "purge tasks")
	}

	u.log.Warn("purged tasks", "tasks", len(tasks), "actor", caller.Actor)
	if err := u.purgeStaging(ctx, caller.OrgID, tasks); err != nil {
		return purged, fmt.Errorf(
			"purge tasks: their contents are gone, but not all that they left in staging; gc goes on with it: %w", err)
	}
	return purged, nil
}

// purgeable locks and returns the tasks that a request selects. It returns an error if one of them may still run.
func (u *Upkeep) purgeable(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, req PurgeTasksRequest,
) ([]uuid.UUID, error) {
	where, args, err := u.views.Selected(ctx, tx, caller, req.Filter)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(req.Where)) {
		condition, fields, err := valueCondition(path)
		if err != nil {
			return nil, err
		}
		args = append(args, fields, req.Where[path])
		where += fmt.Sprintf(" AND "+condition, len(args)-1, len(args))
	}

	rows, err := tx.Query(ctx, `
		SELECT t.id, t.status NOT IN ('Completed', 'Canceled'),
		       t.status = 'Canceled' AND coalesce(t.reason IN ('superseded', 'abandoned', 'merged'), false)
		FROM tasks t LEFT JOIN task_results r ON r.task_id = t.id
		WHERE `+where+` ORDER BY t.id FOR UPDATE OF t`, args...)
	if err != nil {
		return nil, err
	}

	var (
		tasks, open, wanted []uuid.UUID
		id                  uuid.UUID
		isOpen, mayReturn   bool
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &isOpen, &mayReturn}, func() error {
		tasks = append(tasks, id)
		if isOpen {
			open = append(open, id)
		}
		if mayReturn {
			wanted = append(wanted, id)
		}
		return nil
	}); err != nil {
		return nil, err
	}

	switch {
	case len(tasks) == 0:
		return nil, fault.New(fault.NotFound, "there are no such tasks").
			WithHint("`dagctl tasks list` shows those there are")
	case len(open) > 0:
		return nil, fault.New(fault.Conflict,
			"%d of %d tasks are open, and need what they were given; the first is %s", len(open), len(tasks), open[0]).
			WithHint("cancel them first: `dagctl tasks cancel` with the same filter, " +
				"then wait until those that run have ended")
	case len(wanted) > 0 && !req.BreakWindow:
		return nil, fault.New(fault.Conflict, "a rollback would take up %d of %d tasks again, "+
			"and could not without what they were given; the first is %s", len(wanted), len(tasks), wanted[0]).
			WithHint("pass --break-window to purge them all the same")
	}
	return tasks, nil
}

// valueCondition returns the condition that a task has a value at a path. Its placeholders are for the fields of the
// path and for the value.
func valueCondition(path string) (condition string, fields []string, err error) {
	of, rest, found := strings.Cut(path, ".")
	columns := map[string]string{"payload": "t.payload", "metadata": "t.metadata", "result": "r.payload"}
	column, known := columns[of]
	fields = strings.Split(rest, ".")
	if !found || !known || slices.Contains(fields, "") {
		return "", nil, fault.New(fault.Invalid, "where: %q names no field", path).
			WithHint("write payload.FIELD, metadata.FIELD or result.FIELD, with more dots for what is inside")
	}
	return column + " #>> $%d = $%d", fields, nil
}

// forgetAll empties the rows of tasks. A canceled task that a rollback could queue again loses its key, so that a new
// task does the work if it is wanted again. Idempotency keys are removed too, for they may be what has to go; a key
// that is used again makes another task.
func forgetAll(ctx context.Context, tx pgx.Tx, caller authz.Caller, tasks []uuid.UUID, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH results AS (DELETE FROM task_results WHERE org_id = $1 AND task_id = ANY($2)),
		tried AS (UPDATE task_attempts SET error = NULL WHERE org_id = $1 AND task_id = ANY($2)),
		trail AS (DELETE FROM task_events WHERE org_id = $1 AND task_id = ANY($2)),
		told AS (`+dispatcher.KeepTriggered(
		`SELECT * FROM tasks WHERE org_id = $1 AND id = ANY($2) AND status = 'Canceled'`)+`),
		filled AS (UPDATE backfill_partitions SET payload = NULL WHERE org_id = $1 AND task_id = ANY($2)),
		emptied AS (
			UPDATE tasks SET payload = NULL, error_message = NULL, outputs = NULL, metadata = '{}', state = 'purged',
				input_hash = NULL, completion_hash = NULL, concurrency_key = NULL, version = version + 1,
				dedupe_key = CASE
					WHEN kind IN ('manual', 'timer')
						OR status = 'Canceled' AND reason IN ('superseded', 'abandoned', 'merged') THEN NULL
					ELSE dedupe_key END
			WHERE org_id = $1 AND id = ANY($2) RETURNING id, attempt, status)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), $1, id, attempt, status, status, $3, 'purged', $4 FROM emptied`,
		caller.OrgID, tasks, caller.Actor, now)
	if err != nil {
		return fmt.Errorf("empty %d tasks: %w", len(tasks), err)
	}
	return nil
}
