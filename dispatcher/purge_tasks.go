package dispatcher

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
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// PurgeTasksRequest says which tasks' contents to delete and why.
type PurgeTasksRequest struct {
	Filter      TaskSelection     `json:"filter,omitzero" doc:"Which tasks; it or where must say something"`
	Where       map[string]string `json:"where,omitempty" maxProperties:"20" doc:"What their payload, metadata or result says, by path: {\"payload.customer.id\": \"17\"}"`
	Reason      string            `json:"reason" minLength:"1" maxLength:"1000" doc:"Goes into the audit log"`
	BreakWindow bool              `json:"break_window,omitempty" doc:"Even tasks that a rollback would take up again"`
	DryRun      bool              `json:"dry_run,omitempty" doc:"Only say how many they are"`
}

// PurgedTasks is what a purge deleted, or would delete.
type PurgedTasks struct {
	DryRun bool `json:"dry_run"`
	Tasks  int  `json:"tasks"`
}

// PurgeTasks deletes for good what tasks were given, returned and failed with: payloads, metadata, results, errors, their
// audit trail, idempotency keys, and what their attempts left in staging. That there was such a task remains, and so do the
// partitions they made: what is there is told by partitions, never by task rows (to delete those, see Purge). Open tasks are
// refused: they still need what they were given.
func (d *Dispatcher) PurgeTasks(ctx context.Context, caller authz.Caller, req PurgeTasksRequest, now time.Time) (PurgedTasks, error) {
	if req.Filter.empty() && len(req.Where) == 0 {
		return PurgedTasks{}, fault.New(fault.Invalid, "neither filter nor where says anything, which would mean every task").
			WithHint("name a DAG, ids, a time, or what the payload says")
	}
	var tasks []uuid.UUID
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if tasks, err = d.purgeable(ctx, tx, caller, req); err != nil || req.DryRun {
			return err
		}
		if err := forgetAll(ctx, tx, caller, tasks, now); err != nil {
			return err
		}
		// What was searched for may be what has to go: the audit log keeps the paths alone.
		return authz.Audit(ctx, tx, caller, "task.purge", caller.OrgSlug, map[string]any{"reason": req.Reason, "dag": req.Filter.DAG, "job": req.Filter.Job,
			"where": slices.Sorted(maps.Keys(req.Where)), "break_window": req.BreakWindow, "tasks": len(tasks)})
	})
	purged := PurgedTasks{DryRun: req.DryRun, Tasks: len(tasks)}
	if err != nil || req.DryRun {
		return purged, wrap(err, "purge tasks")
	}
	d.Log.Warn("purged tasks", "tasks", len(tasks), "actor", caller.Actor)
	if err := d.discardStaging(ctx, caller.OrgID, tasks); err != nil {
		return purged, fmt.Errorf("purge tasks: their rows are gone, but not all that they left in staging; gc goes on with it: %w", err)
	}
	return purged, nil
}

// purgeable locks the tasks that a purge is about, and refuses those that may still run.
func (d *Dispatcher) purgeable(ctx context.Context, tx pgx.Tx, caller authz.Caller, req PurgeTasksRequest) ([]uuid.UUID, error) {
	where, args, err := d.selected(ctx, tx, caller, req.Filter)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(req.Where)) {
		condition, fields, err := saysCondition(path)
		if err != nil {
			return nil, err
		}
		args = append(args, fields, req.Where[path])
		where += fmt.Sprintf(" AND "+condition, len(args)-1, len(args))
	}
	rows, err := tx.Query(ctx, `
		SELECT t.id, t.status NOT IN ('Completed', 'Canceled'), t.status = 'Canceled' AND coalesce(t.reason IN ('superseded', 'abandoned', 'merged'), false)
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
		return nil, fault.New(fault.NotFound, "there are no such tasks").WithHint("`dagctl tasks list` shows those there are")
	case len(open) > 0:
		return nil, fault.New(fault.Conflict, "%d of %d tasks are open, and need what they were given; the first is %s", len(open), len(tasks), open[0]).
			WithHint("cancel them first: `dagctl tasks cancel` with the same filter, then wait until those that run have ended")
	case len(wanted) > 0 && !req.BreakWindow:
		return nil, fault.New(fault.Conflict, "a rollback would take up %d of %d tasks again, and could not without what they were given; the first is %s",
			len(wanted), len(tasks), wanted[0]).WithHint("pass --break-window to purge them all the same")
	}
	return tasks, nil
}

// saysCondition is the condition that a task says something at a path; its placeholders are the fields and the value.
func saysCondition(path string) (condition string, fields []string, err error) {
	of, rest, found := strings.Cut(path, ".")
	column, known := map[string]string{"payload": "t.payload", "metadata": "t.metadata", "result": "r.payload"}[of]
	fields = strings.Split(rest, ".")
	if !found || !known || slices.Contains(fields, "") {
		return "", nil, fault.New(fault.Invalid, "where: %q names no field", path).WithHint("write payload.FIELD, metadata.FIELD or result.FIELD, with more dots for what is inside")
	}
	return column + " #>> $%d = $%d", fields, nil
}

// forgetAll empties the rows of tasks. A task that could be taken up again is so no more: its work, wanted again, is another
// task's. Idempotency keys go with the rest, for they may be what has to go; one that is used again makes another task.
func forgetAll(ctx context.Context, tx pgx.Tx, caller authz.Caller, tasks []uuid.UUID, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH results AS (DELETE FROM task_results WHERE org_id = $1 AND task_id = ANY($2)),
		tried AS (UPDATE task_attempts SET error = NULL WHERE org_id = $1 AND task_id = ANY($2)),
		trail AS (DELETE FROM task_events WHERE org_id = $1 AND task_id = ANY($2)),
		told AS (`+keepTriggered(`SELECT * FROM tasks WHERE org_id = $1 AND id = ANY($2) AND status = 'Canceled'`)+`),
		filled AS (UPDATE backfill_partitions SET payload = NULL WHERE org_id = $1 AND task_id = ANY($2)),
		emptied AS (
			UPDATE tasks SET payload = NULL, error_message = NULL, outputs = NULL, metadata = '{}', state = 'purged', input_hash = NULL,
				completion_hash = NULL, concurrency_key = NULL, version = version + 1,
				dedupe_key = CASE WHEN kind IN ('manual', 'timer') OR status = 'Canceled' AND reason IN ('superseded', 'abandoned', 'merged') THEN NULL ELSE dedupe_key END
			WHERE org_id = $1 AND id = ANY($2) RETURNING id, attempt, status)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), $1, id, attempt, status, status, $3, 'purged', $4 FROM emptied`, caller.OrgID, tasks, caller.Actor, now)
	if err != nil {
		return fmt.Errorf("empty %d tasks: %w", len(tasks), err)
	}
	return nil
}
