package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// A verb over many tasks is an object that the dispatchers work off, not a request that somebody has to keep open: whoever
// asked may go away, a server may be killed, and it goes on at its rate. Its tasks are fixed when it begins, so that one
// which fails again after its retry is not retried for ever, and the number that a dry run tells is the number it has.

// BulkRequest says what to do to which tasks. Those that the verb is not about (a retry: what has not failed) are left out.
type BulkRequest struct {
	Filter     TaskSelection `json:"filter" doc:"Which tasks; it must say something"`
	Downstream bool          `json:"downstream,omitempty" doc:"Of a retry: the dead tasks of what is made from theirs, too"`
	Reason     string        `json:"reason,omitempty" maxLength:"500" doc:"Of a skip, which needs one; kept in the audit log"`
	Rate       float64       `json:"rate,omitempty" minimum:"0" maximum:"100000" doc:"Tasks a second; as fast as it goes where it is left out"`
	DryRun     bool          `json:"dry_run,omitempty" doc:"Only say how many they are"`
}

// BulkAction is a verb over many tasks, and how far it is.
type BulkAction struct {
	ID        uuid.UUID  `json:"id,omitzero" doc:"Absent of a dry run"`
	Verb      string     `json:"verb" enum:"retry,cancel,skip"`
	Reason    string     `json:"reason,omitempty"`
	Rate      float64    `json:"rate,omitempty" doc:"Tasks a second; absent: as fast as it goes"`
	Matched   int64      `json:"matched" doc:"Tasks when it began"`
	Done      int64      `json:"done"`
	Refused   int64      `json:"refused" doc:"Tasks whose state had changed by the time it came to them"`
	Status    string     `json:"status,omitempty" enum:"Running,Completed,Canceled"`
	CreatedBy string     `json:"created_by,omitempty"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// StartBulk begins to do a verb to all tasks of a selection. What fits into the first moment is done when it returns.
func (d *Dispatcher) StartBulk(ctx context.Context, caller authz.Caller, verb string, req BulkRequest, now time.Time) (BulkAction, error) {
	b := BulkAction{Verb: verb, Reason: req.Reason, Rate: req.Rate}
	switch {
	case req.Filter.empty():
		return b, fault.New(fault.Invalid, "the filter says nothing, and would mean every task").
			WithHint("name a DAG, a job, ids, a time, or `dead`")
	case verb == verbSkip && req.Reason == "":
		return b, fault.New(fault.Invalid, "a reason is needed to skip tasks").WithHint("give --reason; it is kept in the audit log")
	case verb != verbSkip && req.Reason != "":
		return b, fault.New(fault.Invalid, "a reason is for skip")
	case req.Downstream && verb != verbRetry:
		return b, fault.New(fault.Invalid, "downstream is for retry")
	}
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		b.ID = uuid.Nil
		tasks, err := d.bulkTasks(ctx, tx, caller, verb, req)
		if err != nil {
			return err
		}
		if b.Matched = int64(len(tasks)); req.DryRun {
			return nil
		}
		b.ID, b.Status, b.CreatedBy, b.CreatedAt = uuid.Must(uuid.NewV7()), "Running", caller.Actor, now
		var rate *float64
		if req.Rate > 0 {
			rate = &req.Rate
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO bulk_actions (id, org_id, verb, filter, reason, rate, matched, paced_at, created_by, created_at)
			VALUES ($1, $2, $3, $4, NULLIF($5, ''), $6, $7, $8, $9, $10)`,
			b.ID, caller.OrgID, verb, req.Filter, req.Reason, rate, b.Matched, now.Add(-time.Second), caller.Actor, now); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO bulk_action_tasks (bulk_action_id, org_id, task_id)
			SELECT $1, $2, id FROM unnest($3::uuid[]) AS t(id)`, b.ID, caller.OrgID, tasks); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "tasks."+verb, b.ID.String(), map[string]any{"request": req, "tasks": b.Matched})
	})
	if err != nil || req.DryRun {
		return b, wrap(err, verb+" tasks")
	}
	for more := true; more; {
		if more, err = d.stepBulk(ctx, b.ID, now); err != nil {
			// The loops take it up again; nothing of it is lost.
			d.Log.Warn("bulk action goes on later", "id", b.ID, "verb", verb, "error", err)
			break
		}
		if time.Since(now) > bulkInline {
			break
		}
	}
	return d.Bulk(ctx, caller, b.ID)
}

// bulkInline is for how long a request does itself what it asked for; then the loops go on.
const bulkInline = time.Second

func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// bulkTasks fixes which tasks a verb is done to.
func (d *Dispatcher) bulkTasks(ctx context.Context, tx pgx.Tx, caller authz.Caller, verb string, req BulkRequest) ([]uuid.UUID, error) {
	where, args, err := d.selected(ctx, tx, caller, req.Filter)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT t.id FROM tasks t WHERE `+where+` AND `+applicable[verb], args...)
	if err != nil {
		return nil, err
	}
	tasks, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || !req.Downstream {
		return dedupeIDs(tasks), err
	}
	below, err := d.deadBelow(ctx, tx, tasks)
	return dedupeIDs(append(tasks, below...)), err
}

const bulkColumns = `id, verb, coalesce(reason, ''), coalesce(rate, 0), matched, done, refused, status, created_by, created_at, ended_at`

// Bulk tells how one stands.
func (d *Dispatcher) Bulk(ctx context.Context, caller authz.Caller, id uuid.UUID) (b BulkAction, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+bulkColumns+` FROM bulk_actions WHERE org_id = $1 AND id = $2`, caller.OrgID, id)
		if err != nil {
			return err
		}
		b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[BulkAction])
		if errors.Is(err, pgx.ErrNoRows) {
			return fault.New(fault.NotFound, "there is no bulk action %s", id)
		}
		return err
	})
	return b, wrap(err, "bulk action")
}

// Bulks lists the org's, the newest first, beginning before an id.
func (d *Dispatcher) Bulks(ctx context.Context, caller authz.Caller, before uuid.UUID, limit int) (found []BulkAction, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+bulkColumns+` FROM bulk_actions
			WHERE org_id = $1 AND ($2 OR id < $3) ORDER BY id DESC LIMIT $4`, caller.OrgID, before == uuid.Nil, before, limit) // idx_bulk_actions_org
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[BulkAction])
		return err
	})
	return found, wrap(err, "list bulk actions")
}

// CancelBulk does it to no more tasks; what it did stays done.
func (d *Dispatcher) CancelBulk(ctx context.Context, caller authz.Caller, id uuid.UUID, now time.Time) (BulkAction, error) {
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE bulk_actions SET status = 'Canceled', ended_at = $3
			WHERE org_id = $1 AND id = $2 AND status = 'Running'`, caller.OrgID, id, now)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fault.New(fault.Conflict, "no bulk action %s is running", id)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM bulk_action_tasks WHERE org_id = $1 AND bulk_action_id = $2`, caller.OrgID, id); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "tasks.bulk_cancel", id.String(), nil)
	})
	if err != nil {
		return BulkAction{}, wrap(err, "cancel bulk action")
	}
	return d.Bulk(ctx, caller, id)
}
