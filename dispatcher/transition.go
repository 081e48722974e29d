package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// taskRow is a task, locked for the transaction that moves it on.
type taskRow struct {
	id, org, job   uuid.UUID
	kind           string
	slot           string
	status, reason string
	attempt        int
	token          *uuid.UUID
	failures       int
	maxAttempts    int
	runtime        string
	priority       int
	limits         []string
	pins           []registry.Pin
	completionHash string
	cancelAsked    bool // somebody asked for its end
}

// lockTask locks the row of a fence's task. Every effect of a worker's call is in the transaction of this lock.
func lockTask(ctx context.Context, tx pgx.Tx, f Fence) (taskRow, error) {
	r := taskRow{id: f.TaskID}
	var pins []byte
	err := tx.QueryRow(ctx, `
		SELECT org_id, job_id, kind, slot, status, coalesce(reason, ''), attempt, lease_token, failures, max_attempts, runtime,
		       priority, limits, coalesce(input_versions, '[]'), coalesce(completion_hash, ''), cancel_requested_at IS NOT NULL
		FROM tasks WHERE id = $1 FOR UPDATE`, f.TaskID).
		Scan(&r.org, &r.job, &r.kind, &r.slot, &r.status, &r.reason, &r.attempt, &r.token, &r.failures, &r.maxAttempts, &r.runtime,
			&r.priority, &r.limits, &pins, &r.completionHash, &r.cancelAsked)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fault.New(fault.NotFound, "there is no task %s", f.TaskID)
	}
	if err != nil {
		return r, fmt.Errorf("lock task %s: %w", f.TaskID, err)
	}
	return r, json.Unmarshal(pins, &r.pins)
}

// holds reports whether the fence is of the task's current attempt.
func (r taskRow) holds(f Fence) bool {
	return r.attempt == f.Attempt && r.token != nil && *r.token == f.LeaseToken
}

// mayComplete says whether a fence may end the task now. One that comes after its lease ran out still may, as long as no
// newer attempt began and the lease was all that it lost; the same completion again is acknowledged and changes nothing.
func (r taskRow) mayComplete(f Fence, hash string) (repeated bool, err error) {
	if !r.holds(f) {
		return false, fault.New(fault.Conflict, "task %s is %s at attempt %d: attempt %d was fenced off", r.id, r.status, r.attempt, f.Attempt)
	}
	switch {
	case r.status == "Running", (r.status == "Failed" || r.status == "Queued") && r.reason == reasonLeaseExpired:
		return false, nil
	case r.status == "Completed" && r.completionHash == hash:
		return true, nil
	}
	return false, fault.New(fault.Conflict, "task %s is %s already", r.id, r.status)
}

// Reasons of failed and canceled tasks.
const (
	reasonLeaseExpired = "lease_expired"
	reasonTimeout      = "timeout"
	reasonError        = "error"
	reasonCanceled     = "canceled"
	reasonSuperseded   = "superseded"
	reasonAbandoned    = "abandoned"
	reasonSkipped      = "skipped"
	reasonHandedBack   = "handed_back"
)

// ending is how an attempt, or an open task, ends.
type ending struct {
	status  string // Completed, Failed or Canceled
	reason  string
	state   string
	message string
	hash    string
	outputs []outputNote
	actor   string
	retryAt *time.Time // Failed: when it is tried again; nil: it is dead
	failed  int        // how much it counts against max_attempts
}

// unlessCanceled is how an attempt that failed ends: one that somebody has canceled is not tried again.
func (r taskRow) unlessCanceled(e ending) ending {
	if r.cancelAsked {
		e.status, e.reason, e.retryAt, e.failed = "Canceled", reasonCanceled, nil, 0
	}
	return e
}

// finish ends a task whose row is locked: it leaves whichever set it is in, gives back its limits, and lets the sibling
// that waited for its slot go on. The expected state is in the statement, so an illegal transition changes no row.
func finish(ctx context.Context, tx pgx.Tx, r taskRow, e ending, now time.Time) error {
	held, err := leaveSets(ctx, tx, r)
	if err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, `
		WITH done AS (
			UPDATE tasks SET status = $3, reason = NULLIF($4, ''), state = coalesce(NULLIF($5, ''), state), error_message = NULLIF($6, ''),
				completion_hash = NULLIF($7, ''), outputs = $8, completed_at = CASE WHEN $9::timestamptz IS NULL THEN $10::timestamptz END,
				next_retry_at = $9, failures = failures + $11, progress = CASE WHEN $3 = 'Completed' THEN 100 ELSE progress END,
				version = version + 1
			WHERE id = $1 AND org_id = $2 AND status = $12
			RETURNING id, org_id, attempt),
		tried AS (
			UPDATE task_attempts a SET ended_at = $10, outcome = CASE WHEN $4 IN ('', 'error') THEN $3 ELSE $4 END, error = NULLIF($6, '')
			FROM done WHERE a.task_id = done.id AND a.attempt = done.attempt AND a.ended_at IS NULL)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, detail, at)
		SELECT uuid_v7(), org_id, id, attempt, $12, $3, $13, NULLIF($5, ''),
			jsonb_strip_nulls(jsonb_build_object('reason', NULLIF($4, ''), 'error', NULLIF($6, ''), 'retry_at', $9::timestamptz)), $10 FROM done`,
		r.id, r.org, e.status, e.reason, e.state, e.message, e.hash, e.outputs, e.retryAt, now, e.failed, r.status, e.actor)
	if err != nil {
		return fmt.Errorf("end task %s as %s: %w", r.id, e.status, err)
	}
	if tag.RowsAffected() == 0 {
		return fault.New(fault.Conflict, "task %s is not %s any more", r.id, r.status)
	}
	if e.status == "Failed" {
		if err := waitFailed(ctx, tx, r, e); err != nil {
			return err
		}
	}
	if held {
		if err := release(ctx, tx, r.org, r.limits, now); err != nil {
			return err
		}
	}
	if r.status == "Running" {
		_, err = promoteSibling(ctx, tx, r.job, r.slot, now)
	}
	return err
}

// leaveSets removes an open task from the set it is in; held tells whether it held its limits there. A late completion
// meets a task that is ready again: if a claimer is just taking it, a newer attempt has begun.
func leaveSets(ctx context.Context, tx pgx.Tx, r taskRow) (held bool, err error) {
	if r.status == "Running" {
		_, err := tx.Exec(ctx, `DELETE FROM leases WHERE task_id = $1`, r.id)
		return true, err
	}
	tag, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = $1`, r.id)
	if err != nil || tag.RowsAffected() > 0 || r.status != "Queued" {
		return false, err
	}
	tag, err = tx.Exec(ctx, `DELETE FROM ready WHERE task_id IN (SELECT task_id FROM ready WHERE task_id = $1 FOR UPDATE SKIP LOCKED)`, r.id)
	if err != nil {
		return false, err
	}
	if tag.RowsAffected() == 0 {
		return false, fault.New(fault.Conflict, "task %s is being claimed: a newer attempt has begun", r.id)
	}
	return true, nil
}

// waitFailed lists a failed task among the waiting: until its retry is due, or, with no attempt left, until somebody
// retries or skips it.
func waitFailed(ctx context.Context, tx pgx.Tx, r taskRow, e ending) error {
	reason := "backoff"
	if e.retryAt == nil {
		reason = "dead"
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO waiting (task_id, org_id, job_id, slot, reason, available_at, class, priority)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, r.id, r.org, r.job, r.slot, reason, e.retryAt, classOf(r.kind), r.priority)
	if err != nil {
		return fmt.Errorf("set task %s aside: %w", r.id, err)
	}
	return nil
}

func classOf(kind string) int {
	switch kind {
	case "build":
		return classBuild
	case "backfill":
		return classBackfill
	}
	return classLive
}

// failure decides what follows a failed attempt: another one after a back-off, or none. It is pure; random is in [0, 1).
func failure(r taskRow, retry dag.Retry, retryable bool, counts int, now time.Time, random float64) (retryAt *time.Time) {
	if !retryable || r.failures+counts >= r.maxAttempts {
		return nil
	}
	initial, limit, multiplier := retry.Initial, retry.Max, retry.Multiplier
	if initial <= 0 {
		initial = time.Second
	}
	if limit <= 0 {
		limit = 5 * time.Minute
	}
	if multiplier < 1 {
		multiplier = 2
	}
	delay := math.Min(float64(limit), float64(initial)*math.Pow(multiplier, float64(r.failures)))
	at := now.Add(time.Duration(delay * (0.5 + random)))
	return &at
}

// fail ends an attempt that did not do its work, if the fence still holds.
func (d *Dispatcher) failTx(ctx context.Context, tx pgx.Tx, t claimed, reason string, cause error, retryable bool, now time.Time) error {
	row, err := lockTask(ctx, tx, t.Fence)
	if err != nil {
		return err
	}
	if !row.holds(t.Fence) || row.status != "Running" {
		return fault.New(fault.Conflict, "task %s is %s at attempt %d: attempt %d was fenced off", row.id, row.status, row.attempt, t.Attempt)
	}
	return finish(ctx, tx, row, row.unlessCanceled(ending{status: "Failed", reason: reason, message: cause.Error(), actor: "WORKER", failed: 1,
		retryAt: failure(row, t.job.Def.Retry, retryable, 1, now, rand.Float64())}), now)
}
