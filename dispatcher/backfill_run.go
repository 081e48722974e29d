package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// running is a backfill that is not at its end.
type running struct {
	ID          uuid.UUID
	Org         uuid.UUID
	DAG         string
	Job         string
	Origin      uuid.UUID
	Generations []uuid.UUID
	Propagate   string
	Concurrency int
}

// advanceBackfills looks at every backfill that runs: notes which of its tasks have ended, makes the next, and ends it when
// there are none left.
func (d *Dispatcher) advanceBackfills(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `
		SELECT id, org_id, dag_name, job_name, job_id, dataset_versions, propagate, concurrency FROM backfills WHERE status = 'Running' ORDER BY id`)
	if err != nil {
		return false, fmt.Errorf("list running backfills: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[running])
	if err != nil {
		return false, fmt.Errorf("list running backfills: %w", err)
	}
	var failed []error
	for _, b := range all {
		if err := d.advanceBackfill(ctx, b, now); err != nil {
			failed = append(failed, fmt.Errorf("backfill %s of %s/%s: %w", b.ID, b.DAG, b.Job, err))
		}
	}
	return false, errors.Join(failed...)
}

func (d *Dispatcher) advanceBackfill(ctx context.Context, b running, now time.Time) error {
	var made created
	ended := false
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		made, ended = created{}, false
		if err := registry.LockDAGsShared(ctx, tx, []string{b.Org.String() + "/" + b.DAG}); err != nil {
			return err
		}
		// Another dispatcher may be at it.
		tag, err := tx.Exec(ctx, `SELECT FROM backfills WHERE id = $1 AND status = 'Running' FOR UPDATE SKIP LOCKED`, b.ID)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		job, err := d.Registry.ActiveJob(ctx, tx, b.Org, b.DAG, b.Job)
		if fault.Is(err, fault.NotFound) || err == nil && job.Origin != b.Origin {
			return endBackfill(ctx, tx, b, "Canceled", now) // what it was to fill serves no more
		}
		if err != nil {
			return err
		}
		open, err := noteEnded(ctx, tx, b)
		if err != nil {
			return err
		}
		room := b.Concurrency - open
		if d.underPressure() {
			room = 0
		}
		if made, err = d.fillUp(ctx, tx, b, job, room, now); err != nil {
			return err
		}
		ended, err = d.finishBackfill(ctx, tx, b, now)
		return err
	})
	if err != nil {
		return err
	}
	d.wake.send(made.topics()...)
	if ended && b.Propagate == "once" {
		return d.followBackfill(ctx, b, now)
	}
	return nil
}

// noteEnded takes over what has become of the tasks that were made, and counts those that are still open.
func noteEnded(ctx context.Context, tx pgx.Tx, b running) (open int, err error) {
	_, err = tx.Exec(ctx, `
		UPDATE backfill_partitions p SET state = CASE t.status WHEN 'Completed' THEN 'Done' WHEN 'Canceled' THEN 'Skipped' ELSE 'Failed' END
		FROM tasks t
		WHERE p.backfill_id = $1 AND p.state = 'Open' AND t.id = p.task_id
		  AND (t.status IN ('Completed', 'Canceled') OR EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason = 'dead'))`, b.ID)
	if err != nil {
		return 0, fmt.Errorf("note ended tasks: %w", err)
	}
	// A task that retention has removed had ended.
	if _, err := tx.Exec(ctx, `UPDATE backfill_partitions p SET state = 'Done' WHERE p.backfill_id = $1 AND p.state = 'Open'
		AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = p.task_id)`, b.ID); err != nil {
		return 0, fmt.Errorf("note ended tasks: %w", err)
	}
	err = tx.QueryRow(ctx, `SELECT count(*) FROM backfill_partitions WHERE backfill_id = $1 AND state = 'Open'`, b.ID).Scan(&open)
	return open, err
}

// fillUp makes tasks of the next partitions, up to n. One whose slot has a queued task is attached to that.
func (d *Dispatcher) fillUp(ctx context.Context, tx pgx.Tx, b running, job *registry.Job, n int, now time.Time) (created, error) {
	if n <= 0 {
		return created{}, nil
	}
	rows, err := tx.Query(ctx, `SELECT partition_key, payload FROM backfill_partitions
		WHERE backfill_id = $1 AND state = 'Pending' ORDER BY partition_key LIMIT $2`, b.ID, n)
	if err != nil {
		return created{}, fmt.Errorf("next partitions: %w", err)
	}
	next, err := pgx.CollectRows(rows, pgx.RowToStructByPos[wantedPartition])
	if err != nil || len(next) == 0 {
		return created{}, err
	}
	if err := lockOrigins(ctx, tx, ids(job.Origin)); err != nil {
		return created{}, err
	}
	wanted := make([]newTask, len(next))
	for i, p := range next {
		wanted[i] = newTask{job: job, kind: "backfill", slot: p.Key, partition: p.Key, payload: p.Payload, class: classBackfill,
			dedupe: fmt.Sprintf("backfill:%s:%s", b.ID, p.Key)}
	}
	made, err := d.create(ctx, tx, wanted, now)
	if err != nil {
		return created{}, err
	}
	for _, p := range next {
		state, task := "Skipped", (*uuid.UUID)(nil)
		if m, ok := made.by[slotOf{job.Origin, p.Key}]; ok {
			state, task = "Open", &m.id
		}
		if _, err := tx.Exec(ctx, `UPDATE backfill_partitions SET state = $3, task_id = $4 WHERE backfill_id = $1 AND partition_key = $2`,
			b.ID, p.Key, state, task); err != nil {
			return created{}, fmt.Errorf("note task of partition %q: %w", p.Key, err)
		}
	}
	return made, nil
}

// finishBackfill ends a backfill that has nothing left to do.
func (d *Dispatcher) finishBackfill(ctx context.Context, tx pgx.Tx, b running, now time.Time) (bool, error) {
	var left, failed int
	var done []string
	err := tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE state IN ('Pending', 'Open')), count(*) FILTER (WHERE state = 'Failed'),
		       coalesce(array_agg(partition_key) FILTER (WHERE state = 'Done'), '{}')
		FROM backfill_partitions WHERE backfill_id = $1`, b.ID).Scan(&left, &failed, &done)
	if err != nil || left > 0 {
		return false, err
	}
	undecided, err := registry.Unsettled(ctx, tx, b.Generations)
	if err != nil || slices.ContainsFunc(undecided, func(u registry.Undecided) bool { return u.Held && slices.Contains(done, u.Key) }) {
		return false, err // its checks have yet to say whether readers see it
	}
	status := "Completed"
	if failed > 0 {
		status = "Failed"
	}
	if b.Propagate == "none" {
		for _, generation := range b.Generations {
			if err := registry.AcceptRevisions(ctx, tx, b.Org, generation, done); err != nil {
				return false, err
			}
		}
	}
	return true, endBackfill(ctx, tx, b, status, now)
}

func endBackfill(ctx context.Context, tx pgx.Tx, b running, status string, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE backfills SET status = $2, ended_at = $3 WHERE id = $1 AND status = 'Running'`, b.ID, status, now)
	return err
}

// followBackfill makes the tasks of consumers that were held back. It only hurries what the next sweep would do.
func (d *Dispatcher) followBackfill(ctx context.Context, b running, now time.Time) error {
	var consumers []registry.Consumer
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		consumers, err = d.Registry.Consumers(ctx, tx, b.Generations)
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range consumers {
		if err := d.reconcileJob(ctx, registry.Acting{Job: c.Job, Live: c.Live}, now); err != nil {
			return err
		}
	}
	return nil
}

// queueFilling asks what running backfills fill, besides any of the generations read, that are to be followed at their end, or
// not at all. The answer is there once b is sent.
func queueFilling(b *pg.Batch, read []uuid.UUID) *[]uuid.UUID {
	filling := &[]uuid.UUID{}
	if len(read) == 0 {
		return filling
	}
	var generation uuid.UUID
	b.Query("find backfills", []any{&generation}, func() error {
		*filling = append(*filling, generation)
		return nil
	}, `SELECT unnest(dataset_versions) FROM backfills WHERE status = 'Running' AND propagate <> 'each' AND dataset_versions && $1`, read)
	return filling
}

// holdBack takes findings out of consideration that read what such a backfill fills: they are found again when it has ended.
func holdBack(findings []finding, filling []uuid.UUID) {
	for i := range findings {
		f := &findings[i]
		if f.verdict == stale && slices.ContainsFunc(f.pins, func(p registry.Pin) bool { return slices.Contains(filling, p.Version) }) {
			f.verdict, f.missing = incomplete, "a backfill of an input is followed at its end"
		}
	}
}
