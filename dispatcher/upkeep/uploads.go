package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// sweepUploads removes the uploads of attempts that can commit no more, or without remove only counts those attempts.
// A completion drops the uploads of its own attempt; this is for attempts without one, and for data that a worker put
// there with storage credentials after the end, which no row records. So it lists the area itself, and lets rows
// decide what may go; nothing else reads that list.
func (u *Upkeep) sweepUploads(
	ctx context.Context, org uuid.UUID, now time.Time, remove bool,
) (attempts int, err error) {
	found, err := u.storage.UploadedAttempts(ctx, org)
	if err != nil {
		return 0, err
	}

	for len(found) > 0 {
		some := found[:min(len(found), gcBatch)]
		found = found[len(some):]

		var ended []storage.UploadedAttempt
		err := pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) (err error) {
			ended, err = withoutFuture(ctx, tx, org, some, now.Add(-stagingGrace))
			return err
		})
		if err != nil {
			return attempts, err
		}

		for _, a := range ended {
			if remove {
				if err := u.storage.DropUploads(ctx, org, a.Task, a.Attempt); err != nil {
					return attempts, err
				}
			}
			attempts++
		}
	}
	return attempts, nil
}

// withoutFuture returns the attempts that wrote nothing since a time and can commit no more: the attempt ended before
// that time or is not known, and no late completion of it may come. Its conditions are those of endedAttempts.
func withoutFuture(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, attempts []storage.UploadedAttempt, before time.Time,
) (ended []storage.UploadedAttempt, err error) {
	var (
		tasks   []uuid.UUID
		numbers []int
		old     []storage.UploadedAttempt
	)
	for _, a := range attempts {
		if a.Newest.Before(before) {
			tasks, numbers, old = append(tasks, a.Task), append(numbers, a.Attempt), append(old, a)
		}
	}

	rows, err := tx.Query(ctx, `
		SELECT (coalesce(a.ended_at, a.started_at) < $4) IS NOT FALSE
		   AND (t.id IS NULL OR w.attempt < t.attempt OR t.status IN ('Completed', 'Canceled')
		        OR t.status IN ('Queued', 'Failed') AND t.reason IS DISTINCT FROM 'lease_expired')
		FROM unnest($2::uuid[], $3::int[]) WITH ORDINALITY AS w(task, attempt, n)
		LEFT JOIN tasks t ON t.id = w.task AND t.org_id = $1
		LEFT JOIN task_attempts a ON a.task_id = w.task AND a.attempt = w.attempt AND a.org_id = $1
		ORDER BY w.n`, org, tasks, numbers, before)
	if err != nil {
		return nil, fmt.Errorf("find whose uploads may go: %w", err)
	}
	over, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return nil, fmt.Errorf("find whose uploads may go: %w", err)
	}

	for i, gone := range over {
		if gone {
			ended = append(ended, old[i])
		}
	}
	return ended, nil
}
