package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// byCursor reports whether a dataset is partitioned by cursor, into segments.
func byCursor(dataset registry.Dataset) (bool, error) {
	var by dag.Partitioning
	if len(dataset.PartitionBy) == 0 {
		return false, nil
	}
	err := json.Unmarshal(dataset.PartitionBy, &by)
	return by.Kind == dag.ByCursor, err
}

// positionOf parses one end of a request: a position, or the key of a segment, which stands for its first or last
// position.
func positionOf(text string, last bool, otherwise int64) (int64, error) {
	if text == "" {
		return otherwise, nil
	}
	if position, err := strconv.ParseInt(text, 10, 64); err == nil && position >= 0 {
		return position, nil
	}
	after, upTo, err := dag.SegmentEnd(text)
	switch {
	case err != nil:
		return 0, fault.New(fault.Invalid,
			"%q is neither a position of the cursor, such as 100, nor a segment, such as 100-200", text)
	case last:
		return upTo, nil
	}
	return after + 1, nil
}

// allPositions is the last position of a request that gives none.
const allPositions = 1<<62 - 1

// rewinding is the invalidation of a range of a cursor's positions.
type rewinding struct {
	id         uuid.UUID
	caller     authz.Caller
	dataset    registry.Dataset
	generation uuid.UUID
	reason     string
	from, to   int64 // as asked for; to may be allPositions
	now        time.Time

	made   []Invalidated // the invalidated segments
	before int64         // the position before the range: consumers read on from the next one
	epoch  int64         // the new epoch
}

func (r *rewinding) reorg() bool { return r.reason == "reorg" }

// invalidateSegments rewinds a cursor. After a reorganization it withdraws everything at or beyond a position, and the
// source reads that again; for any other reason the segments between two positions get a new revision with the content
// they have. Either way every follower of the cursor goes back to where the range begins, into a new epoch.
func (d *Dispatcher) invalidateSegments(
	ctx context.Context, tx pgx.Tx, caller authz.Caller,
	dataset registry.Dataset, req InvalidateRequest, now time.Time,
) ([]Invalidated, error) {
	r, err := newRewinding(ctx, tx, caller, dataset, req, now)
	if err != nil {
		return nil, err
	}

	if r.reorg() {
		err = r.withdraw(ctx, tx)
	} else {
		err = r.renew(ctx, tx)
	}
	if err != nil || len(r.made) == 0 {
		return nil, err
	}

	if r.before, _, err = dag.SegmentEnd(r.made[0].Partition); err != nil {
		return nil, err
	}
	epoch, err := stale.GenerationEpoch(ctx, tx, r.generation)
	if err != nil {
		return nil, err
	}
	r.epoch = epoch + 1

	if err := r.record(ctx, tx); err != nil {
		return nil, err
	}
	if err := d.rewind(ctx, tx, caller.OrgID, r.generation, r.epoch, r.before); err != nil {
		return nil, err
	}
	if err := r.accept(ctx, tx); err != nil {
		return nil, err
	}
	if !r.reorg() {
		return r.made, nil
	}
	return r.made, d.pollAgain(ctx, tx, caller.OrgID, dataset, now)
}

// newRewinding checks a request against the live generation of a dataset.
func newRewinding(
	ctx context.Context, tx pgx.Tx, caller authz.Caller,
	dataset registry.Dataset, req InvalidateRequest, now time.Time,
) (*rewinding, error) {
	r := &rewinding{id: uuid.Must(uuid.NewV7()), caller: caller, dataset: dataset, reason: req.Reason, now: now}
	var err error
	if r.from, err = positionOf(req.From, false, 0); err != nil {
		return nil, err
	}
	if r.to, err = positionOf(req.To, true, allPositions); err != nil {
		return nil, err
	}
	if r.from > r.to {
		return nil, fault.New(fault.Invalid, "the first position, %d, comes after the last one, %d", r.from, r.to).
			WithHint("swap the two ends")
	}
	if r.generation, err = registry.LiveGeneration(ctx, tx, caller.OrgID, dataset.ID); err != nil {
		return nil, err
	}

	if r.reorg() && r.to != allPositions {
		return nil, fault.New(fault.Invalid, "a reorganization invalidates everything from its first position on").
			WithHint("leave the end out, or give another reason")
	}
	return r, nil
}

// withdraw takes back the segments at or beyond the first position.
func (r *rewinding) withdraw(ctx context.Context, tx pgx.Tx) error {
	gone, err := registry.Withdraw(ctx, tx, r.generation, r.from, r.now)
	if err != nil {
		return err
	}
	for _, s := range gone {
		r.made = append(r.made, Invalidated{ID: r.id, Partition: s.Key, Revision: s.Revision, Withdrawn: true})
	}
	return nil
}

// renew gives the segments of the range a new revision with the content they have.
func (r *rewinding) renew(ctx context.Context, tx pgx.Tx) error {
	segments, err := registry.SegmentsBetween(ctx, tx, r.generation, r.from, r.to)
	if err != nil {
		return err
	}
	for _, key := range segments {
		renewed, err := registry.Renew(ctx, tx, r.caller.OrgID, r.dataset.ID, key, key, r.now)
		if err != nil {
			return err
		}
		for _, n := range renewed {
			r.made = append(r.made, Invalidated{ID: r.id, Partition: n.Key, Revision: n.Revision})
		}
	}
	return nil
}

// record stores the invalidation.
func (r *rewinding) record(ctx context.Context, tx pgx.Tx) error {
	var end *int64
	if r.to != allPositions {
		end = &r.to
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO data_invalidations (
			id, org_id, dataset_version, scope, range_start, range_end, epoch, reason, created_by, created_at)
		VALUES ($1, $2, $3, 'range', $4, $5, $6, $7, $8, $9)`,
		r.id, r.caller.OrgID, r.generation, r.before+1, end, r.epoch, r.reason, r.caller.Actor, r.now)
	if err != nil {
		return fmt.Errorf("record invalidation: %w", err)
	}
	return nil
}

// accept stores the event of the invalidation, with its outbox row.
func (r *rewinding) accept(ctx context.Context, tx pgx.Tx) error {
	first := r.made[0]
	_, err := tx.Exec(ctx, `
		WITH accepted AS (
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision,
				epoch, cursor_value, invalidation_id, created_at)
			VALUES ($1, $2, $3, $4, 'invalidation', $5, $6, $7, $8, $9, $10) RETURNING id)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT $2, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)), $10, $10 FROM accepted`,
		uuid.Must(uuid.NewV7()), r.caller.OrgID, r.dataset.ID, r.generation, first.Partition, first.Revision,
		r.epoch, r.before, r.id, r.now)
	if err != nil {
		return fmt.Errorf("accept invalidation: %w", err)
	}
	return nil
}

// rewind moves every job that follows a cursor, or did, back to a position, into a new epoch. Jobs that have not begun
// get a row too: a claim that is about to make one waits for this transaction.
func (d *Dispatcher) rewind(ctx context.Context, tx pgx.Tx, org, generation uuid.UUID, epoch, position int64) error {
	consumers, err := d.Registry.Consumers(new(pg.Batch), []uuid.UUID{generation}).Get(ctx, tx)
	if err != nil {
		return err
	}
	var origins []uuid.UUID
	for _, c := range consumers {
		if stale.Follows(c.Job, c.Job.Inputs[c.Input]) {
			origins = append(origins, c.Job.Origin)
		}
	}

	_, err = tx.Exec(ctx, `
		INSERT INTO dataset_cursors (org_id, dataset_version, job_id, epoch, cursor_value)
		SELECT $1, $2, w.job, $4, -1 FROM (
			SELECT unnest($3::uuid[]) AS job
			UNION SELECT job_id FROM dataset_cursors WHERE dataset_version = $2) AS w ORDER BY w.job
		ON CONFLICT (dataset_version, job_id) DO UPDATE
		SET epoch = EXCLUDED.epoch, cursor_value = least(dataset_cursors.cursor_value, $5),
			claimed_to = NULL, claimed_again = false, updated_at = now()`,
		org, generation, tasks.SortedIDs(origins), epoch, position)
	if err != nil {
		return fmt.Errorf("rewind the cursor of %s: %w", generation, err)
	}
	return nil
}

// pollAgain makes a source poll at once for what replaces the withdrawn segments.
func (d *Dispatcher) pollAgain(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dataset registry.Dataset, now time.Time,
) error {
	job, err := d.Registry.ActiveJob(ctx, tx, org, dataset.DAG, dataset.Job)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || job.Def.Source == nil || job.Def.Source.Kind != "poll" {
		return err
	}

	_, err = tx.Exec(ctx, `
		UPDATE sources SET next_fire_at = least(next_fire_at, $4), asked = true
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND next_fire_at IS NOT NULL`,
		org, dataset.DAG, dataset.Job, now)
	if err != nil {
		return fmt.Errorf("poll %s/%s again: %w", dataset.DAG, dataset.Job, err)
	}
	return nil
}
