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
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// byCursor reports whether a dataset is one of segments.
func byCursor(dataset registry.Dataset) (bool, error) {
	var by dag.Partitioning
	if len(dataset.PartitionBy) == 0 {
		return false, nil
	}
	err := json.Unmarshal(dataset.PartitionBy, &by)
	return by.Kind == dag.ByCursor, err
}

// positionOf reads one end of a request: a position, or the key of a segment, which stands for its first or last.
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
		return 0, fault.New(fault.Invalid, "%q is neither a position of the cursor, such as 100, nor a segment, such as 100-200", text)
	case last:
		return upTo, nil
	}
	return after + 1, nil
}

// invalidateSegments rewinds a cursor. After a re-organisation all that lies at or beyond a position is withdrawn, and read
// again by the source; for any other reason the segments between two positions get a new revision with the content they
// have. Either way everyone who follows the cursor is put back to where that begins, into a new epoch.
func (d *Dispatcher) invalidateSegments(ctx context.Context, tx pgx.Tx, caller authz.Caller, dataset registry.Dataset, req InvalidateRequest, now time.Time) ([]Invalidated, error) {
	const everything = 1<<62 - 1
	from, err := positionOf(req.From, false, 0)
	if err != nil {
		return nil, err
	}
	to, err := positionOf(req.To, true, everything)
	if err != nil {
		return nil, err
	}
	generation, err := registry.LiveGeneration(ctx, tx, caller.OrgID, dataset.ID)
	if err != nil {
		return nil, err
	}
	id := uuid.Must(uuid.NewV7())
	var (
		made   []Invalidated
		before int64
	)
	if req.Reason == "reorg" {
		if to != everything {
			return nil, fault.New(fault.Invalid, "after a re-organisation nothing beyond its first position holds any more: there is no end to give").
				WithHint("leave the end out, or give another reason")
		}
		gone, err := registry.Withdraw(ctx, tx, generation, from, now)
		if err != nil {
			return nil, err
		}
		for _, s := range gone {
			made = append(made, Invalidated{ID: id, Partition: s.Key, Revision: s.Revision, Withdrawn: true})
		}
	} else {
		segments, err := registry.SegmentsBetween(ctx, tx, generation, from, to)
		if err != nil {
			return nil, err
		}
		for _, key := range segments {
			renewed, err := registry.Renew(ctx, tx, caller.OrgID, dataset.ID, key, key, now)
			if err != nil {
				return nil, err
			}
			for _, r := range renewed {
				made = append(made, Invalidated{ID: id, Partition: r.Key, Revision: r.Revision})
			}
		}
	}
	if len(made) == 0 {
		return nil, nil
	}
	if before, _, err = dag.SegmentEnd(made[0].Partition); err != nil {
		return nil, err
	}
	epoch, err := generationEpoch(ctx, tx, generation)
	if err != nil {
		return nil, err
	}
	epoch++
	var end *int64
	if to != everything {
		end = &to
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO data_invalidations (id, org_id, dataset_version, scope, range_start, range_end, epoch, reason, created_by, created_at)
		VALUES ($1, $2, $3, 'range', $4, $5, $6, $7, $8, $9)`,
		id, caller.OrgID, generation, before+1, end, epoch, req.Reason, caller.Actor, now); err != nil {
		return nil, fmt.Errorf("record invalidation: %w", err)
	}
	if err := d.rewind(ctx, tx, caller.OrgID, generation, epoch, before); err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `
		WITH accepted AS (
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision, epoch, cursor_value, invalidation_id, created_at)
			VALUES ($1, $2, $3, $4, 'invalidation', $5, $6, $7, $8, $9, $10) RETURNING id)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT $2, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)), $10, $10 FROM accepted`,
		uuid.Must(uuid.NewV7()), caller.OrgID, dataset.ID, generation, made[0].Partition, made[0].Revision, epoch, before, id, now)
	if err != nil {
		return nil, fmt.Errorf("accept invalidation: %w", err)
	}
	if req.Reason != "reorg" {
		return made, nil
	}
	return made, d.pollAgain(ctx, tx, caller.OrgID, dataset, now)
}

// rewind puts everyone who follows a cursor, or did, back to a position, into a new epoch. Those who have not begun get a
// row too: a claim that is about to make one waits for this transaction.
func (d *Dispatcher) rewind(ctx context.Context, tx pgx.Tx, org, generation uuid.UUID, epoch, position int64) error {
	consumers, err := d.Registry.Consumers(ctx, tx, []uuid.UUID{generation})
	if err != nil {
		return err
	}
	var origins []uuid.UUID
	for _, c := range consumers {
		if follows(c.Job, c.Job.Inputs[c.Input]) {
			origins = append(origins, c.Job.Origin)
		}
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO dataset_cursors (org_id, dataset_version, job_id, epoch, cursor_value)
		SELECT $1, $2, w.job, $4, -1 FROM (
			SELECT unnest($3::uuid[]) AS job UNION SELECT job_id FROM dataset_cursors WHERE dataset_version = $2) AS w ORDER BY w.job
		ON CONFLICT (dataset_version, job_id) DO UPDATE
		SET epoch = EXCLUDED.epoch, cursor_value = least(dataset_cursors.cursor_value, $5), claimed_to = NULL, claimed_again = false, updated_at = now()`,
		org, generation, dedupeIDs(origins), epoch, position)
	if err != nil {
		return fmt.Errorf("rewind the cursor of %s: %w", generation, err)
	}
	return nil
}

// pollAgain has a source look at once for what comes in the place of what was withdrawn.
func (d *Dispatcher) pollAgain(ctx context.Context, tx pgx.Tx, org uuid.UUID, dataset registry.Dataset, now time.Time) error {
	job, err := d.Registry.ActiveJob(ctx, tx, org, dataset.DAG, dataset.Job)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || job.Def.Source == nil || job.Def.Source.Kind != "poll" {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE sources SET next_fire_at = $4 WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND next_fire_at > $4`,
		org, dataset.DAG, dataset.Job, now)
	if err != nil {
		return fmt.Errorf("poll %s/%s again: %w", dataset.DAG, dataset.Job, err)
	}
	return nil
}
