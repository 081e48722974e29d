package control

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A verb over many tasks is an object that the dispatchers work off, not a request that somebody has to keep open: the
// caller may disconnect, a server may be killed, and the work goes on at its rate. Its tasks are fixed when it begins,
// so that a task which fails again after its retry is not retried for ever, and a dry run returns the number of tasks
// that the verb would be applied to.

// BulkRequest selects the tasks that a verb is applied to. Tasks that it does not fit (a retry: those that have not
// failed) are left out.
type BulkRequest struct {
	Filter     views.TaskSelection `json:"filter" doc:"Which tasks; at least one condition"`
	Downstream bool                `json:"downstream,omitempty" doc:"retry: also the dead tasks of what is made from theirs"`
	Reason     string              `json:"reason,omitempty" maxLength:"500" doc:"Required for skip; kept in the audit log"`
	Rate       float64             `json:"rate,omitempty" minimum:"0" maximum:"100000" doc:"Tasks a second; 0: no bound"`
	DryRun     bool                `json:"dry_run,omitempty" doc:"Only count the tasks"`
}

// BulkAction is a verb over many tasks, and its progress.
type BulkAction struct {
	ID        uuid.UUID  `json:"id,omitzero" doc:"Absent after a dry run"`
	Verb      string     `json:"verb" enum:"retry,cancel,skip"`
	Reason    string     `json:"reason,omitempty"`
	Rate      float64    `json:"rate,omitempty" doc:"Tasks a second; absent: no bound"`
	Matched   int64      `json:"matched" doc:"Tasks when it began"`
	Done      int64      `json:"done"`
	Refused   int64      `json:"refused" doc:"Tasks whose state changed before their turn"`
	Status    string     `json:"status,omitempty" enum:"Running,Completed,Canceled"`
	CreatedBy string     `json:"created_by,omitempty"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// StartBulk begins to apply a verb to all tasks of a selection. It does itself what fits into bulkInline.
func (ctl *Control) StartBulk(
	ctx context.Context, caller authz.Caller, verb string, req BulkRequest, now time.Time,
) (BulkAction, error) {
	b := BulkAction{Verb: verb, Reason: req.Reason, Rate: req.Rate}
	if err := authz.Authorize(caller, authz.Operate, authz.OnDAG(req.reaches())); err != nil {
		return b, err
	}
	if err := req.check(verb); err != nil {
		return b, err
	}

	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		b.ID = uuid.Nil
		tasks, err := ctl.bulkTasks(ctx, tx, caller, verb, req)
		if err != nil {
			return err
		}
		if b.Matched = int64(len(tasks.ids)); req.DryRun {
			return nil
		}
		b.ID, b.Status, b.CreatedBy, b.CreatedAt = uuid.Must(uuid.NewV7()), statusRunning, caller.Actor, now
		return insertBulk(ctx, tx, caller, b, req, tasks)
	})
	if err != nil || req.DryRun {
		return b, fault.Wrap(err, verb+" tasks")
	}

	for more := true; more; {
		if more, err = ctl.stepBulk(ctx, b.ID, now); err != nil {
			// The loops take it up again; nothing is lost.
			ctl.log.Warn("bulk action goes on later", "id", b.ID, "verb", verb, "error", err)
			break
		}
		if clock.Now().Sub(now) > bulkInline {
			break
		}
	}
	return ctl.begunBulk(ctx, caller, b.ID)
}

// begunBulk returns a bulk action to whoever has just begun it, also where its tasks are hidden from them by now: it is
// done, and its counts are all that the answer tells.
func (ctl *Control) begunBulk(ctx context.Context, caller authz.Caller, id uuid.UUID) (b BulkAction, err error) {
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		b, err = bulkOf(ctx, tx, id, `b.org_id = $1 AND b.id = $2`, caller.OrgID, id)
		return err
	})
	return b, fault.Wrap(err, "bulk action")
}

// bulkOf returns the bulk action that meets a condition on rows b.
func bulkOf(ctx context.Context, tx pgx.Tx, id uuid.UUID, condition string, args ...any) (b BulkAction, err error) {
	rows, err := tx.Query(ctx, `SELECT `+bulkColumns+` FROM bulk_actions b WHERE `+condition, args...)
	if err != nil {
		return b, err
	}
	b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[BulkAction])
	if errors.Is(err, pgx.ErrNoRows) {
		return b, noBulk(id)
	}
	return b, err
}

// reaches returns the DAG that all tasks of the request belong to, empty if they may belong to any.
func (req BulkRequest) reaches() string {
	if req.Downstream {
		return ""
	}
	return req.Filter.DAG
}

// check returns what is wrong with a request for a verb.
func (req BulkRequest) check(verb string) error {
	switch {
	case req.Filter.Empty():
		return fault.New(fault.Invalid, "the filter is empty, and would select every task").
			WithHint("name a DAG, a job, ids, a time, or `dead`")
	case verb == VerbSkip && req.Reason == "":
		return fault.New(fault.Invalid, "a reason is needed to skip tasks").
			WithHint("give --reason; it is kept in the audit log")
	case verb != VerbSkip && req.Reason != "":
		return fault.New(fault.Invalid, "a reason is for skip")
	case req.Downstream && verb != VerbRetry:
		return fault.New(fault.Invalid, "downstream is for retry")
	}
	return nil
}

// insertBulk stores a bulk action with its tasks. It may begin at once: it counts as last paced a second ago.
func insertBulk(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, b BulkAction, req BulkRequest, tasks choice,
) error {
	var rate *float64
	if req.Rate > 0 {
		rate = &req.Rate
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO bulk_actions (
			id, org_id, verb, filter, dag_name, reason, rate, matched, paced_at, created_by, created_at, job_ids)
		VALUES ($1, $2, $3, $4, $5, NULLIF($6, ''), $7, $8, $9, $10, $11, $12)`,
		b.ID, caller.OrgID, b.Verb, req.Filter, req.reaches(), req.Reason, rate, b.Matched,
		b.CreatedAt.Add(-time.Second), b.CreatedBy, b.CreatedAt, append([]uuid.UUID{}, tasks.origins...)); err != nil {
		return err
	}

	if _, err := tx.Exec(ctx, `INSERT INTO bulk_action_tasks (bulk_action_id, org_id, task_id)
		SELECT $1, $2, id FROM unnest($3::uuid[]) AS t(id)`, b.ID, caller.OrgID, tasks.ids); err != nil {
		return err
	}
	detail := map[string]any{"request": req, "tasks": b.Matched}
	return authz.Audit(ctx, tx, caller, "tasks."+b.Verb, b.ID.String(), detail)
}

// bulkInline is how long a request works on its bulk action itself; then the loops go on.
const bulkInline = time.Second

// bulkTasks selects the tasks that a verb is applied to.
func (ctl *Control) bulkTasks(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, verb string, req BulkRequest,
) (choice, error) {
	where, args, err := ctl.views.Selected(ctx, tx, caller, req.Filter)
	if err != nil {
		return choice{}, err
	}

	condition := applicable[verb]
	if verb == VerbRetry && tasks.Status(req.Filter.Status) == tasks.Canceled {
		condition = canceledByHand
	}
	list, err := ctl.chosen(ctx, tx, caller, verb, where+` AND `+condition, args...)
	if err != nil || !req.Downstream {
		return list, err
	}

	below, err := ctl.deadBelow(ctx, tx, list.ids)
	if err != nil || len(below) == 0 {
		return list, err
	}
	more, err := ctl.chosen(ctx, tx, caller, verb, `t.org_id = $1 AND t.id = ANY($2)`, caller.OrgID, below)
	return choice{tasks.SortedIDs(append(list.ids, more.ids...)),
		tasks.SortedIDs(append(list.origins, more.origins...))}, err
}

// choice is the tasks that a verb is applied to, and their origins.
type choice struct{ ids, origins []uuid.UUID }

// chosen returns the tasks t that meet a condition and are not of hidden jobs; for a retry, only those whose origins
// versions run.
func (ctl *Control) chosen(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, verb, where string, args ...any,
) (c choice, err error) {
	rows, err := tx.Query(ctx, `SELECT t.id, t.job_id FROM tasks t WHERE `+where, args...)
	if err != nil {
		return c, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, Origin uuid.UUID }])
	if err != nil {
		return c, err
	}

	var origins []uuid.UUID
	for _, t := range found {
		origins = append(origins, t.Origin)
	}
	origins = tasks.SortedIDs(origins)
	hidden, err := ctl.registry.HiddenAmong(ctx, tx, caller, origins)
	if err != nil {
		return c, err
	}
	var inWork map[uuid.UUID]bool
	if verb == VerbRetry {
		if inWork, err = registry.OriginsInWork(ctx, tx, origins); err != nil {
			return c, err
		}
	}

	for _, t := range found {
		if !hidden[t.Origin] && (verb != VerbRetry || inWork[t.Origin]) {
			c.ids, c.origins = append(c.ids, t.ID), append(c.origins, t.Origin)
		}
	}
	return choice{tasks.SortedIDs(c.ids), tasks.SortedIDs(c.origins)}, nil
}

// mayAct returns the condition, on bulk actions b, under which one exists for the caller, who may act on all its tasks.
func mayAct(caller authz.Caller, args *[]any) string {
	return caller.MayOnDAGs(authz.Operate, "b.dag_name", args) + " AND " +
		registry.NoneHidden(caller, "b.org_id", "b.job_ids", args)
}

// DAGOfBulk returns the DAG of the tasks of a bulk action, for routes on those; see authz.Finder.
func (ctl *Control) DAGOfBulk(ctx context.Context, caller authz.Caller, values ...string) (dag string, err error) {
	id, err := uuid.Parse(values[0])
	if err != nil {
		return "", nil // the handler says what is wrong with it
	}
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		args := []any{caller.OrgID, id}
		err := tx.QueryRow(ctx, `SELECT b.dag_name FROM bulk_actions b WHERE b.org_id = $1 AND b.id = $2 AND `+
			mayAct(caller, &args), args...).Scan(&dag)
		if errors.Is(err, pgx.ErrNoRows) {
			return noBulk(id)
		}
		return err
	})
	return dag, err
}

// noBulk is the error about a bulk action that does not exist for the caller.
func noBulk(id uuid.UUID) error { return fault.New(fault.NotFound, "there is no bulk action %s", id) }

const bulkColumns = `id, verb, coalesce(reason, ''), coalesce(rate, 0), matched, done, refused, status,
	created_by, created_at, ended_at`

// Bulk returns a bulk action. One on tasks that the caller may not act on does not exist for it.
func (ctl *Control) Bulk(ctx context.Context, caller authz.Caller, id uuid.UUID) (b BulkAction, err error) {
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		b, err = shownBulk(ctx, tx, caller, id)
		return err
	})
	return b, fault.Wrap(err, "bulk action")
}

func shownBulk(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID) (BulkAction, error) {
	args := []any{caller.OrgID, id}
	condition := `b.org_id = $1 AND b.id = $2 AND ` + mayAct(caller, &args)
	return bulkOf(ctx, tx, id, condition, args...)
}

// Bulks lists the org's bulk actions older than an id, the newest first. It relies on idx_bulk_actions_org.
func (ctl *Control) Bulks(
	ctx context.Context, caller authz.Caller, before uuid.UUID, limit int,
) (found []BulkAction, err error) {
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		args := []any{caller.OrgID, before == uuid.Nil, before, limit}
		rows, err := tx.Query(ctx, `SELECT `+bulkColumns+` FROM bulk_actions b
			WHERE org_id = $1 AND ($2 OR id < $3) AND `+mayAct(caller, &args)+`
			ORDER BY id DESC LIMIT $4`, args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[BulkAction])
		return err
	})
	return found, fault.Wrap(err, "list bulk actions")
}

// CancelBulk stops a bulk action; what it did stays done.
func (ctl *Control) CancelBulk(
	ctx context.Context, caller authz.Caller, id uuid.UUID, now time.Time,
) (BulkAction, error) {
	var canceled BulkAction
	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := shownBulk(ctx, tx, caller, id); err != nil {
			return err
		}
		args := []any{caller.OrgID, id, now}
		tag, err := tx.Exec(ctx, `UPDATE bulk_actions b SET status = 'Canceled', ended_at = $3
			WHERE org_id = $1 AND id = $2 AND status = 'Running' AND `+mayAct(caller, &args), args...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fault.New(fault.Conflict, "no bulk action %s is running", id)
		}

		if _, err := tx.Exec(ctx, `DELETE FROM bulk_action_tasks WHERE org_id = $1 AND bulk_action_id = $2`,
			caller.OrgID, id); err != nil {
			return err
		}
		if err := authz.Audit(ctx, tx, caller, "tasks.bulk_cancel", id.String(),
			authz.Change{Before: statusRunning, After: statusCanceled}); err != nil {
			return err
		}
		canceled, err = shownBulk(ctx, tx, caller, id)
		return err
	})
	if err != nil {
		return BulkAction{}, fault.Wrap(err, "cancel bulk action")
	}
	return canceled, nil
}
