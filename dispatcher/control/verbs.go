package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// The verbs by which people decide over tasks.
const (
	VerbRetry  = "retry"  // a failed or canceled task becomes claimable again, with all its attempts
	VerbCancel = "cancel" // an open task ends: at once or, if it runs, at its worker's next heartbeat
	VerbSkip   = "skip"   // a failed task is given up, so that a build goes on without it
)

// Act is a verb with its reason and the person who decided.
type Act struct {
	Verb   string
	Reason string // of skip
	actor  string
}

// applicable holds, for each verb, the condition on tasks t that it applies to when many are chosen.
var applicable = map[string]string{
	VerbRetry:  `t.status = 'Failed'`,
	VerbCancel: `t.status IN ('Queued', 'Running', 'Failed')`,
	VerbSkip:   `t.status = 'Failed' AND t.kind <> 'check'`,
}

// canceledByHand is the condition on tasks that are retried where canceled ones are chosen.
const canceledByHand = `t.status = 'Canceled' AND t.reason = 'canceled'`

// refuses returns an error if the verb does not apply to a task. inWork holds the origins that versions run.
func (a Act) refuses(r tasks.Row, inWork map[uuid.UUID]bool) error {
	switch {
	case a.Verb == VerbRetry && !r.Retryable():
		return fault.New(fault.Conflict, "task %s is %s: only a task that failed, or that somebody canceled, can be "+
			"retried", r.ID, r.Status)
	case a.Verb == VerbRetry && !inWork[r.Origin]:
		return fault.New(fault.Conflict, "task %s is of a definition of its job that no version runs any more, so its "+
			"retry would be canceled at once", r.ID).
			WithHint("deploy that document again, which tries it again; or, where the job has another definition " +
				"now, ask for a new task: `dagctl run DAG/JOB`, or `dagctl backfill`")
	case a.Verb == VerbCancel && (r.Status == tasks.Completed || r.Status == tasks.Canceled):
		return fault.New(fault.Conflict, "task %s is already %s", r.ID, r.Status)
	case a.Verb == VerbSkip && r.Kind == tasks.KindCheck:
		return fault.New(fault.Conflict, "task %s checks a revision, which would stay held without it", r.ID).
			WithHint("decide over the revision instead: `dagctl datasets accept` or `dagctl datasets reject`")
	case a.Verb == VerbSkip && r.Status != tasks.Failed:
		return fault.New(fault.Conflict, "task %s is %s: only a failed task can be skipped", r.ID, r.Status)
	}
	return nil
}

// doTx does a verb to tasks that it applies to. The caller has locked their origins and rows.
func (ctl *Control) doTx(ctx context.Context, tx pgx.Tx, a Act, rows []tasks.Row, now time.Time) error {
	if len(rows) == 0 {
		return nil
	}

	var all, running []uuid.UUID
	var endings []tasks.Ended
	for _, r := range rows {
		all = append(all, r.ID)
		switch {
		case a.Verb == VerbSkip:
			endings = append(endings, tasks.Ended{Row: r, Ending: tasks.Ending{
				Status: tasks.Canceled, Reason: tasks.ReasonSkipped, Message: "skipped: " + a.Reason, Actor: a.actor,
			}})
		case r.Status == tasks.Running:
			running = append(running, r.ID)
		default:
			endings = append(endings, tasks.Ended{Row: r, Ending: tasks.Ending{
				Status: tasks.Canceled, Reason: tasks.ReasonCanceled, Actor: a.actor,
			}})
		}
	}

	if a.Verb == VerbRetry {
		if err := ctl.reopen(ctx, tx, rows, now); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE tasks SET failures = 0 WHERE id = ANY($1)`, all); err != nil {
			return fmt.Errorf("retry: %w", err)
		}
		_, err := ctl.tasks.PromoteFailed(ctx, tx, `task_id = ANY($1)`, a.actor, now, all)
		return err
	}

	if err := askToEnd(ctx, tx, running, a.actor, now); err != nil {
		return err
	}
	if len(endings) == 0 {
		return nil
	}
	return ctl.tasks.Finish(ctx, tx, new(pg.Batch), endings, nil, now)
}

// reopen prepares the canceled ones of tasks for their retry.
func (ctl *Control) reopen(ctx context.Context, tx pgx.Tx, rows []tasks.Row, now time.Time) error {
	var canceled []tasks.Row
	for _, r := range rows {
		if r.Status == tasks.Canceled {
			canceled = append(canceled, r)
		}
	}
	if len(canceled) == 0 {
		return nil
	}
	return ctl.tasks.Reopen(ctx, tx, canceled, now)
}

// inWork returns which of the tasks' origins versions run, where a verb depends on that. What no version runs is
// canceled when it is claimed.
func (a Act) inWork(ctx context.Context, tx pgx.Tx, rows ...tasks.Row) (map[uuid.UUID]bool, error) {
	if a.Verb != VerbRetry {
		return nil, nil
	}
	var origins []uuid.UUID
	for _, r := range rows {
		origins = append(origins, r.Origin)
	}
	return registry.OriginsInWork(ctx, tx, tasks.SortedIDs(origins))
}

// askToEnd asks running tasks to end at their next heartbeat.
func askToEnd(ctx context.Context, tx pgx.Tx, running []uuid.UUID, actor string, now time.Time) error {
	if len(running) == 0 {
		return nil
	}

	_, err := tx.Exec(ctx, `
		WITH asked AS (UPDATE leases SET cancel_requested = true WHERE task_id = ANY($1)),
		noted AS (
			UPDATE tasks SET cancel_requested_at = $2, version = version + 1 WHERE id = ANY($1) AND status = 'Running'
			RETURNING id, org_id, attempt)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Running', 'Running', $3, 'asked to end', $2 FROM noted`,
		running, now, actor)
	if err != nil {
		return fmt.Errorf("ask %d running tasks to end: %w", len(running), err)
	}
	return nil
}

// Retry makes a task that failed, or that somebody canceled, claimable again, with all its attempts.
func (ctl *Control) Retry(ctx context.Context, caller authz.Caller, id uuid.UUID) (views.Task, error) {
	return ctl.Do(ctx, caller, id, Act{Verb: VerbRetry}, "")
}

// Cancel ends a task: at once or, if it runs, at its worker's next heartbeat.
func (ctl *Control) Cancel(ctx context.Context, caller authz.Caller, id uuid.UUID) (views.Task, error) {
	return ctl.Do(ctx, caller, id, Act{Verb: VerbCancel}, "")
}

// Skip gives up a failed task: a build that waits for its partition goes on without it, and reports that. The same work
// does not get another task; new input does.
func (ctl *Control) Skip(ctx context.Context, caller authz.Caller, id uuid.UUID, reason string) (views.Task, error) {
	return ctl.Do(ctx, caller, id, Act{Verb: VerbSkip, Reason: reason}, "")
}

// Do does a verb to one task of the caller's org, unless the task has left the state that ifMatch names.
func (ctl *Control) Do(
	ctx context.Context, caller authz.Caller, id uuid.UUID, a Act, ifMatch string,
) (views.Task, error) {
	a.actor = caller.Actor
	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockOwn(ctx, tx, caller, id)
		if err != nil {
			return err
		}

		var version int
		err = tx.QueryRow(ctx,
			`SELECT version FROM tasks WHERE org_id = $1 AND id = $2`, caller.OrgID, id).Scan(&version)
		if err != nil {
			return err
		}
		if err := rest.CheckIfMatch(ifMatch, Etag(version)); err != nil {
			return err
		}

		inWork, err := a.inWork(ctx, tx, row)
		if err != nil {
			return err
		}
		if err := a.refuses(row, inWork); err != nil {
			return err
		}
		if err := ctl.doTx(ctx, tx, a, []tasks.Row{row}, clock.Now()); err != nil {
			return err
		}

		return auditVerb(ctx, tx, caller, a, row)
	})
	if err != nil {
		return views.Task{}, fmt.Errorf("%s task: %w", a.Verb, err)
	}
	ctl.wake.Send(ctl.dispatcher.Progressed()...)
	return ctl.views.TaskByID(ctx, caller, id)
}

// auditVerb records what a verb did to a task, which was as row says.
func auditVerb(ctx context.Context, tx pgx.Tx, caller authz.Caller, a Act, row tasks.Row) error {
	type state struct {
		Status tasks.Status `json:"status"`
		Asked  bool         `json:"asked_to_end,omitempty"`
	}
	var after state
	err := tx.QueryRow(ctx, `
		SELECT status, status = 'Running' AND cancel_requested_at IS NOT NULL FROM tasks WHERE org_id = $1 AND id = $2`,
		caller.OrgID, row.ID).Scan(&after.Status, &after.Asked)
	if err != nil {
		return err
	}
	return authz.Audit(ctx, tx, caller, "task."+a.Verb, row.ID.String(),
		authz.Change{Before: state{Status: row.Status}, After: after, Reason: a.Reason})
}

// Etag names the state of a task for If-Match: it changes with every transition.
func Etag(version int) string { return rest.ETag(strconv.Itoa(version)) }

// lockOwn locks a task of the caller's org, after its origin, which is the order everywhere.
func lockOwn(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID) (tasks.Row, error) {
	var origin uuid.UUID
	err := tx.QueryRow(ctx, `SELECT job_id FROM tasks WHERE org_id = $1 AND id = $2`, caller.OrgID, id).Scan(&origin)
	if errors.Is(err, pgx.ErrNoRows) {
		return tasks.Row{}, fault.New(fault.NotFound, "there is no task %s", id)
	}
	if err != nil {
		return tasks.Row{}, err
	}
	if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{origin}); err != nil {
		return tasks.Row{}, err
	}
	return tasks.LockTask(ctx, tx, tasks.Fence{TaskID: id})
}

// lockSeveral locks tasks of one org, after their origins, and returns those that still exist in the order of their
// ids.
func lockSeveral(ctx context.Context, tx pgx.Tx, org uuid.UUID, list []uuid.UUID) ([]tasks.Row, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT job_id FROM tasks WHERE org_id = $1 AND id = ANY($2)`, org, list)
	if err != nil {
		return nil, fmt.Errorf("origins of %d tasks: %w", len(list), err)
	}
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("origins of %d tasks: %w", len(list), err)
	}
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
		return nil, err
	}

	locked, err := tasks.LockTasks(new(pg.Batch), list).Get(ctx, tx)
	if err != nil {
		return nil, err
	}
	var found []tasks.Row
	for _, r := range locked {
		if r.Org == org {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b tasks.Row) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return found, nil
}
