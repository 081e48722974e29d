package dispatcher

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
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// The verbs by which people decide over tasks.
const (
	verbRetry  = "retry"  // failed: claimable again, with all its attempts anew
	verbCancel = "cancel" // open: ended at once, or, running, as soon as its worker hears of it
	verbSkip   = "skip"   // failed: given up, so that a build goes on without it
)

// act is one verb, as somebody said it.
type act struct {
	verb   string
	reason string // of skip
	actor  string
}

// applicable is the condition, on tasks t, of those that a verb is about.
var applicable = map[string]string{
	verbRetry:  `t.status = 'Failed'`,
	verbCancel: `t.status IN ('Queued', 'Running', 'Failed')`,
	verbSkip:   `t.status = 'Failed' AND t.kind <> 'check'`,
}

// refuses says why a verb cannot be done to a task; nil where it can. It is pure.
func (a act) refuses(r taskRow) error {
	switch {
	case a.verb == verbRetry && r.status != "Failed":
		return fault.New(fault.Conflict, "task %s is %s: only a failed task can be retried", r.id, r.status)
	case a.verb == verbCancel && (r.status == "Completed" || r.status == "Canceled"):
		return fault.New(fault.Conflict, "task %s is %s already", r.id, r.status)
	case a.verb == verbSkip && r.kind == "check":
		return fault.New(fault.Conflict, "task %s checks a revision, which would stay held without it", r.id).
			WithHint("decide over the revision instead: `dagctl datasets accept` or `dagctl datasets reject`")
	case a.verb == verbSkip && r.status != "Failed":
		return fault.New(fault.Conflict, "task %s is %s: only a failed task can be skipped", r.id, r.status)
	}
	return nil
}

// doTx does a verb to tasks, none of which it refuses. Their origins and rows are locked.
func (d *Dispatcher) doTx(ctx context.Context, tx pgx.Tx, a act, rows []taskRow, now time.Time) error {
	if len(rows) == 0 {
		return nil
	}
	var all, running []uuid.UUID
	var endings []ended
	for _, r := range rows {
		all = append(all, r.id)
		switch {
		case a.verb == verbSkip:
			endings = append(endings, ended{r, ending{status: "Canceled", reason: reasonSkipped, message: "skipped: " + a.reason, actor: a.actor}})
		case r.status == "Running":
			running = append(running, r.id)
		default:
			endings = append(endings, ended{r, ending{status: "Canceled", reason: reasonCanceled, actor: a.actor}})
		}
	}
	if a.verb == verbRetry {
		if _, err := tx.Exec(ctx, `UPDATE tasks SET failures = 0 WHERE id = ANY($1)`, all); err != nil {
			return fmt.Errorf("retry: %w", err)
		}
		_, err := d.promoteFailed(ctx, tx, `task_id = ANY($1)`, a.actor, now, all)
		return err
	}
	if err := askToEnd(ctx, tx, running, a.actor, now); err != nil {
		return err
	}
	if len(endings) == 0 {
		return nil
	}
	return d.finishAll(ctx, tx, endings, now)
}

// askToEnd has running tasks end at their next heartbeat.
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
		SELECT uuid_v7(), org_id, id, attempt, 'Running', 'Running', $3, 'asked to end', $2 FROM noted`, running, now, actor)
	if err != nil {
		return fmt.Errorf("ask %d running tasks to end: %w", len(running), err)
	}
	return nil
}

// Retry makes a failed task claimable again, with all its attempts anew.
func (d *Dispatcher) Retry(ctx context.Context, caller authz.Caller, id uuid.UUID) (Task, error) {
	return d.do(ctx, caller, id, act{verb: verbRetry}, "")
}

// Cancel ends a task: at once where it is not running, otherwise as soon as its worker hears of it on its next heartbeat.
func (d *Dispatcher) Cancel(ctx context.Context, caller authz.Caller, id uuid.UUID) (Task, error) {
	return d.do(ctx, caller, id, act{verb: verbCancel}, "")
}

// Skip gives a failed task up: a build that waited for its partition goes on without it, and says so. The very same work
// is not wanted again; new input makes a task of its own.
func (d *Dispatcher) Skip(ctx context.Context, caller authz.Caller, id uuid.UUID, reason string) (Task, error) {
	return d.do(ctx, caller, id, act{verb: verbSkip, reason: reason}, "")
}

// do does a verb to one task of the caller's org, unless the task is not in the state that ifMatch names any more.
func (d *Dispatcher) do(ctx context.Context, caller authz.Caller, id uuid.UUID, a act, ifMatch string) (Task, error) {
	a.actor = caller.Actor
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockOwn(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		var version int
		if err := tx.QueryRow(ctx, `SELECT version FROM tasks WHERE org_id = $1 AND id = $2`, caller.OrgID, id).Scan(&version); err != nil {
			return err
		}
		if err := rest.CheckIfMatch(ifMatch, etag(version)); err != nil {
			return err
		}
		if err := a.refuses(row); err != nil {
			return err
		}
		if err := d.doTx(ctx, tx, a, []taskRow{row}, time.Now()); err != nil {
			return err
		}
		var detail any
		if a.reason != "" {
			detail = map[string]any{"reason": a.reason}
		}
		return authz.Audit(ctx, tx, caller, "task."+a.verb, id.String(), detail)
	})
	if err != nil {
		return Task{}, fmt.Errorf("%s task: %w", a.verb, err)
	}
	d.wake.send(d.progressed()...)
	return d.TaskByID(ctx, caller, id)
}

// etag names the state of a task for If-Match: it changes with every transition.
func etag(version int) string { return rest.ETag(strconv.Itoa(version)) }

// lockOwn locks a task of the caller's org, its origin's lock first, as everywhere.
func lockOwn(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID) (taskRow, error) {
	var origin uuid.UUID
	err := tx.QueryRow(ctx, `SELECT job_id FROM tasks WHERE org_id = $1 AND id = $2`, caller.OrgID, id).Scan(&origin)
	if errors.Is(err, pgx.ErrNoRows) {
		return taskRow{}, fault.New(fault.NotFound, "there is no task %s", id)
	}
	if err != nil {
		return taskRow{}, err
	}
	if err := lockOrigins(ctx, tx, ids(origin)); err != nil {
		return taskRow{}, err
	}
	return lockTask(ctx, tx, Fence{TaskID: id})
}

// lockSeveral locks tasks of one org, their origins first, and returns them by id; those that are gone are absent.
func lockSeveral(ctx context.Context, tx pgx.Tx, org uuid.UUID, tasks []uuid.UUID) ([]taskRow, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT job_id FROM tasks WHERE org_id = $1 AND id = ANY($2)`, org, tasks)
	if err != nil {
		return nil, fmt.Errorf("origins of %d tasks: %w", len(tasks), err)
	}
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("origins of %d tasks: %w", len(tasks), err)
	}
	if err := lockOrigins(ctx, tx, origins); err != nil {
		return nil, err
	}
	locked, err := lockTasks(ctx, tx, tasks)
	if err != nil {
		return nil, err
	}
	var found []taskRow
	for _, r := range locked {
		if r.org == org {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b taskRow) int { return slices.Compare(a.id[:], b.id[:]) })
	return found, nil
}
