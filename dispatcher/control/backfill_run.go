package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// running is a backfill that has not ended.
type running struct {
	ID          uuid.UUID
	Org         uuid.UUID
	DAG         string
	Job         string
	Origin      uuid.UUID
	Generations []uuid.UUID
	Propagate   string
	Concurrency int
	CreatedBy   string
}

// AdvanceBackfills notes, for every backfill that runs, which of its tasks have ended, makes the next tasks, and ends
// the backfill when no partition is left.
func (ctl *Control) AdvanceBackfills(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := ctl.pool.Query(ctx, `
		SELECT id, org_id, dag_name, `+jobOfBackfill+`, job_id, dataset_versions, propagate, concurrency, created_by
		FROM backfills b WHERE status = 'Running' ORDER BY id`)
	if err != nil {
		return false, fmt.Errorf("list running backfills: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[running])
	if err != nil {
		return false, fmt.Errorf("list running backfills: %w", err)
	}

	var failed []error
	for _, b := range all {
		if err := ctl.advanceBackfill(ctx, b, now); err != nil {
			failed = append(failed, fmt.Errorf("backfill %s of %s/%s: %w", b.ID, b.DAG, b.Job, err))
		}
	}
	return false, errors.Join(failed...)
}

// advanceBackfill takes one backfill a step further.
func (ctl *Control) advanceBackfill(ctx context.Context, b running, now time.Time) error {
	var made tasks.Created
	err := pg.InTx(ctx, ctl.pool, func(ctx context.Context, tx pgx.Tx) error {
		made = tasks.Created{}
		if err := registry.LockDAGShared(ctx, tx, b.Org, b.DAG); err != nil {
			return err
		}

		// Another dispatcher may be advancing it.
		tag, err := tx.Exec(ctx,
			`SELECT FROM backfills WHERE id = $1 AND status = 'Running' FOR UPDATE SKIP LOCKED`, b.ID)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}

		job, err := ctl.registry.ActiveJob(ctx, tx, b.Org, b.DAG, b.Job)
		if fault.Is(err, fault.NotFound) || err == nil && job.Origin != b.Origin {
			return endBackfill(ctx, tx, b, statusCanceled, gaveWay(err), now)
		}
		if err != nil {
			return err
		}

		open, err := noteEnded(ctx, tx, b)
		if err != nil {
			return err
		}
		room := b.Concurrency - open
		if ctl.pressure.Holds(b.Org, b.DAG) {
			room = 0
		}

		if made, err = ctl.fillUp(ctx, tx, b, job, room, now); err != nil {
			return err
		}
		ended, err := ctl.finishBackfill(ctx, tx, b, now)
		if err != nil || !ended || b.Propagate != "once" {
			return err
		}
		return ctl.followBackfill(ctx, tx, b)
	})
	if err != nil {
		return err
	}

	ctl.wake.Send(made.Topics()...)
	return nil
}

// noteEnded notes with their partitions which tasks have ended and how, and counts the open ones.
func noteEnded(ctx context.Context, tx pgx.Tx, b running) (open int, err error) {
	_, err = tx.Exec(ctx, `
		UPDATE backfill_partitions p
		SET state = CASE t.status WHEN 'Completed' THEN 'Done' WHEN 'Canceled' THEN 'Skipped' ELSE 'Failed' END
		FROM tasks t
		WHERE p.backfill_id = $1 AND p.state = 'Open' AND t.id = p.task_id
		  AND (t.status IN ('Completed', 'Canceled')
		       OR EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason = 'dead'))`, b.ID)
	if err != nil {
		return 0, fmt.Errorf("note ended tasks: %w", err)
	}

	// Retention removes only tasks that have ended.
	if _, err := tx.Exec(ctx, `
		UPDATE backfill_partitions p SET state = 'Done'
		WHERE p.backfill_id = $1 AND p.state = 'Open'
		  AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = p.task_id)`, b.ID); err != nil {
		return 0, fmt.Errorf("note ended tasks: %w", err)
	}

	err = tx.QueryRow(ctx,
		`SELECT count(*) FROM backfill_partitions WHERE backfill_id = $1 AND state = 'Open'`, b.ID).Scan(&open)
	return open, err
}

// fillUp makes tasks for the next partitions, up to n. A partition whose slot has a queued task is attached to that
// task.
func (ctl *Control) fillUp(
	ctx context.Context, tx pgx.Tx, b running, job *registry.Job, n int, now time.Time,
) (tasks.Created, error) {
	if n <= 0 {
		return tasks.Created{}, nil
	}

	rows, err := tx.Query(ctx, `SELECT partition_key, payload FROM backfill_partitions
		WHERE backfill_id = $1 AND state = 'Pending' ORDER BY partition_key LIMIT $2`, b.ID, n)
	if err != nil {
		return tasks.Created{}, fmt.Errorf("next partitions: %w", err)
	}
	next, err := pgx.CollectRows(rows, pgx.RowToStructByPos[wantedPartition])
	if err != nil || len(next) == 0 {
		return tasks.Created{}, err
	}

	if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{job.Origin}); err != nil {
		return tasks.Created{}, err
	}

	wanted := make([]tasks.Request, len(next))
	for i, p := range next {
		wanted[i] = tasks.Request{
			Job: job, Kind: tasks.KindBackfill, Slot: p.Key, Partition: p.Key, Payload: p.Payload,
			Class: tasks.ClassBackfill, Dedupe: fmt.Sprintf("backfill:%s:%s", b.ID, p.Key),
			By: b.CreatedBy,
		}
	}
	made, err := ctl.tasks.Create(ctx, tx, tasks.Creation{Wanted: wanted}, now)
	if err != nil {
		return tasks.Created{}, err
	}

	for _, p := range next {
		state, task := "Skipped", (*uuid.UUID)(nil)
		if m, ok := made.By[tasks.Slot{Origin: job.Origin, Key: p.Key}]; ok {
			state, task = "Open", &m.ID
		}
		if _, err := tx.Exec(ctx, `
			UPDATE backfill_partitions SET state = $3, task_id = $4 WHERE backfill_id = $1 AND partition_key = $2`,
			b.ID, p.Key, state, task); err != nil {
			return tasks.Created{}, fmt.Errorf("note task of partition %q: %w", p.Key, err)
		}
	}
	return made, nil
}

// finishBackfill ends a backfill that has nothing left to do, and reports whether it did.
func (ctl *Control) finishBackfill(ctx context.Context, tx pgx.Tx, b running, now time.Time) (bool, error) {
	var left bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM backfill_partitions WHERE backfill_id = $1 AND state = 'Open')
			OR EXISTS (SELECT FROM backfill_partitions WHERE backfill_id = $1 AND state = 'Pending')`,
		b.ID).Scan(&left)
	if err != nil || left {
		return false, err
	}

	var failed int
	var done []string
	if err := tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE state = 'Failed'),
		       coalesce(array_agg(partition_key) FILTER (WHERE state = 'Done'), '{}')
		FROM backfill_partitions WHERE backfill_id = $1`, b.ID).Scan(&failed, &done); err != nil {
		return false, err
	}

	undecided, err := deploy.Unsettled(ctx, tx, b.Generations)
	held := func(u deploy.Undecided) bool { return u.Held && slices.Contains(done, u.Key) }
	if err != nil || slices.ContainsFunc(undecided, held) {
		return false, err // checks have yet to decide whether readers see it
	}

	status := statusCompleted
	if failed > 0 {
		status = statusFailed
	}

	if b.Propagate == "none" {
		for _, generation := range b.Generations {
			if err := registry.AcceptRevisions(ctx, tx, b.Org, generation, done); err != nil {
				return false, err
			}
		}
	}
	return true, endBackfill(ctx, tx, b, status, "", now)
}

func endBackfill(ctx context.Context, tx pgx.Tx, b running, status, reason string, now time.Time) error {
	_, err := tx.Exec(ctx, `
		UPDATE backfills SET status = $2, ended_at = $3, reason = NULLIF($4, '') WHERE id = $1 AND status = 'Running'`,
		b.ID, status, now, reason)
	return err
}

// gaveWay says why the dataset versions that a backfill fills no longer serve. missing is the error of a job that no
// active version has, or nil.
func gaveWay(missing error) string {
	if missing != nil {
		return "no version that serves has the job any more"
	}
	return "another version serves, in which the job is another: what it filled no longer serves"
}

// followBackfill has the outputs looked at that a backfill held back.
func (ctl *Control) followBackfill(ctx context.Context, tx pgx.Tx, b running) error {
	consumers, err := ctl.registry.Consumers(new(pg.Batch), b.Generations).Get(ctx, tx)
	if err != nil {
		return err
	}
	var origins []uuid.UUID
	for _, c := range consumers {
		if c.Job.Def.Activation == dag.ActivationReactive {
			origins = append(origins, c.Job.Origin)
		}
	}
	var asked pg.Batch
	dispatcher.FanOut(&asked, tasks.SortedIDs(origins))
	return asked.SendLast(ctx, tx)
}
