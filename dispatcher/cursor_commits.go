package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// A job that follows a cursor reads it segment by segment. Here are the steps in the order in which an attempt meets
// them: the claim fixes the range it reads, the completion compares epochs and the segments before its own, publishes
// its segment and advances the cursor.

// fixRanges records the positions up to which the tasks about to be leased read their cursors. They stay recorded until
// a completion is accepted.
func fixRanges(ctx context.Context, tx pgx.Tx, taken []tasks.Taken) error {
	var (
		cursors []stale.Cursor
		upTo    []int64
	)
	for _, c := range taken {
		pinned, err := stale.PinnedUpTo(c.Job, c.Pins)
		if err != nil {
			return err
		}
		for k, r := range pinned {
			cursors, upTo = append(cursors, k), append(upTo, r.Value)
		}
	}

	if len(cursors) == 0 {
		return nil
	}

	generations, origins := stale.SplitCursors(cursors)
	_, err := tx.Exec(ctx, `
		UPDATE dataset_cursors c SET claimed_to = w.up_to, claimed_again = c.claimed_to IS NOT NULL
		FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w(version, job, up_to)
		WHERE c.dataset_version = w.version AND c.job_id = w.job`, generations, origins, upTo)
	if err != nil {
		return fmt.Errorf("fix the ranges of %d cursors: %w", len(cursors), err)
	}
	return nil
}

// compareEpochs locks the cursors of a batch. A completion whose inputs were pinned in an older epoch is not published:
// its input was invalidated meanwhile, and the cursor was rewound for the next task.
func compareEpochs(ctx context.Context, tx pgx.Tx, batch []*Completing) error {
	var cursors []stale.Cursor
	for _, x := range batch {
		if x.Check != nil {
			continue
		}
		var err error
		if x.cursors, err = stale.PinnedUpTo(x.Job, x.row.Pins); err != nil {
			return err
		}
		for c := range x.cursors {
			cursors = append(cursors, c)
		}
	}

	rows, err := stale.ReadCursors(ctx, tx, cursors, "FOR UPDATE OF c")
	if err != nil {
		return err
	}
	for _, x := range batch {
		for c, pinned := range x.cursors {
			if row, ok := rows[c]; ok && row.Epoch != pinned.Epoch {
				x.state = supersededBy(
					"its input was invalidated meanwhile: it read epoch %d, and the cursor is in epoch %d",
					pinned.Epoch, row.Epoch)
			}
		}
	}
	return nil
}

// advanceCursors advances the cursors of accepted completions, in their transaction. Where a range was read again after
// a failure, segments that came meanwhile had to wait for it: advanceCursors leaves them to the router, and reports
// whether there are any.
func advanceCursors(ctx context.Context, tx pgx.Tx, batch []*Completing, now time.Time) (routed bool, err error) {
	var (
		cursors       []stale.Cursor
		upTo, epochs  []int64
		generationIDs []uuid.UUID
		origins       []uuid.UUID
	)
	for _, x := range batch {
		if x.Check != nil || x.state.kind != publishable && !x.Outcome.Unchanged {
			continue
		}
		for c, r := range x.cursors {
			cursors, upTo, epochs = append(cursors, c), append(upTo, r.Value), append(epochs, r.Epoch)
		}
	}

	if len(cursors) == 0 {
		return false, nil
	}

	generationIDs, origins = stale.SplitCursors(cursors)
	tag, err := tx.Exec(ctx, `
		WITH w AS (
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) AS w(version, job, up_to, epoch)),
		again AS (
			SELECT c.org_id, c.dataset_version FROM dataset_cursors c
			JOIN w ON c.dataset_version = w.version AND c.job_id = w.job AND c.epoch = w.epoch WHERE c.claimed_again),
		moved AS (
			UPDATE dataset_cursors c
			SET cursor_value = greatest(c.cursor_value, w.up_to), claimed_to = NULL, claimed_again = false,
				updated_at = $5
			FROM w WHERE c.dataset_version = w.version AND c.job_id = w.job AND c.epoch = w.epoch)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT org_id, 'route_event', jsonb_build_object('generations', jsonb_agg(DISTINCT dataset_version)), $5, $5
		FROM again GROUP BY org_id`,
		generationIDs, origins, upTo, epochs, now)
	if err != nil {
		return false, fmt.Errorf("advance %d cursors: %w", len(cursors), err)
	}
	return tag.RowsAffected() > 0, nil
}

// continuesSegments reports whether the segment that a completion wrote follows the newest one. It does not if another
// segment came first, if the cursor was rewound, or while the newest segment is held, because that may be rejected. The
// task must be done again then.
func continuesSegments(ctx context.Context, tx pgx.Tx, x *Completing) (bool, error) {
	began := x.Assignment.Cursor
	if began == nil {
		return true, nil
	}

	now, err := stale.CursorPosition(ctx, tx, x.Job)
	if err != nil || *now != *began {
		return false, err
	}

	for _, o := range x.Job.Outputs {
		head, err := registry.CursorHead(ctx, tx, o.Generation.Version)
		if err != nil || head.Held || head.Position > began.Value {
			return false, err
		}
	}
	return true, nil
}

// AsSegment returns the event of a revision. If the revision is a segment of a cursor, the event gets the position and
// epoch of the segment.
func AsSegment(ctx context.Context, tx pgx.Tx, by dag.Partitioning, e Event) (Event, error) {
	if by.Kind != dag.ByCursor {
		return e, nil
	}
	_, upTo, err := dag.SegmentEnd(e.Key)
	if err != nil {
		return e, err
	}
	epoch, err := stale.GenerationEpoch(ctx, tx, e.Version)
	e.Epoch, e.Position = &epoch, &upTo
	return e, err
}
