package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// InvalidateRequest names the partitions of a dataset whose data is wrong or outdated.
type InvalidateRequest struct {
	From   string `json:"from,omitempty" maxLength:"200" doc:"First partition, as text, or position of a cursor; default: the first one"`
	To     string `json:"to,omitempty" maxLength:"200" doc:"Last partition or position, inclusive; default: the last one"`
	Reason string `json:"reason,omitempty" enum:"reorg,correction,manual,schema" doc:"Default: manual"`
	DryRun bool   `json:"dry_run,omitempty" doc:"Only say what would be invalidated"`
}

// Invalidated is one partition whose consumers are computed again.
type Invalidated struct {
	ID        uuid.UUID `json:"id"`
	Partition string    `json:"partition"`
	Revision  int64     `json:"revision" doc:"The new revision: the same content, under another number"`
	Withdrawn bool      `json:"withdrawn,omitempty" doc:"The segment was withdrawn: readers do not see it, and the source reads it again"`
}

// Invalidate makes everything stale that was made from some partitions of a dataset, directly or not, so that it is
// computed again. The partitions get a new revision with the content they have: consumers are stale because of the
// revisions they were made from, and not because of a message that may be lost.
func (d *Dispatcher) Invalidate(
	ctx context.Context, caller authz.Caller, name string, req InvalidateRequest, now time.Time,
) ([]Invalidated, error) {
	dataset, err := d.Registry.Dataset(ctx, caller, name)
	if err != nil {
		return nil, err
	}
	if req.Reason == "" {
		req.Reason = "manual"
	}

	var made []Invalidated
	// The owner's pool is needed, because rows in Postgres storage are renumbered.
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		made = nil
		if err := tasks.LockDAGBriefly(ctx, tx, caller.OrgID, dataset.DAG); err != nil {
			return err
		}
		if err := d.Registry.RequireStill(ctx, tx, caller, dataset); err != nil {
			return err
		}

		segments, err := byCursor(dataset)
		if err != nil {
			return err
		}
		if segments {
			made, err = d.invalidateSegments(ctx, tx, caller, dataset, req, now)
			if err != nil || len(made) == 0 {
				return cmp.Or(err, noSuchPartition(dataset))
			}
			return endInvalidation(ctx, tx, caller, dataset, req, made)
		}

		if err := registry.RefuseReversed(req.From, req.To); err != nil {
			return err
		}
		renewed, err := registry.Renew(ctx, tx, caller.OrgID, dataset.ID, req.From, req.To, now)
		if err != nil {
			return err
		}
		if len(renewed) == 0 {
			return noSuchPartition(dataset)
		}

		for _, r := range renewed {
			if err := d.Storage.Renumber(ctx, tx, r.Generation, r.Key, r.Revision); err != nil {
				return err
			}
			id, err := invalidated(ctx, tx, caller, r, req.Reason, now)
			if err != nil {
				return err
			}
			made = append(made, Invalidated{ID: id, Partition: r.Key, Revision: r.Revision})
		}
		return endInvalidation(ctx, tx, caller, dataset, req, made)
	})
	if errors.Is(err, pg.ErrDryRun) {
		return made, nil
	}
	if err != nil {
		return nil, fmt.Errorf("invalidate %s: %w", name, err)
	}
	d.Wakeups.Send(wakeup.Route)
	return made, nil
}

func noSuchPartition(dataset registry.Dataset) error {
	return fault.New(fault.NotFound, "dataset %s has no such partition", dataset.Name).
		WithHint("`dagctl datasets partitions %s` lists those there are", dataset.Name)
}

// endInvalidation writes the audit log, or takes a dry run back.
func endInvalidation(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dataset registry.Dataset, req InvalidateRequest,
	made []Invalidated,
) error {
	if req.DryRun {
		return pg.ErrDryRun
	}
	return authz.Audit(ctx, tx, caller, "dataset.invalidate", dataset.Name,
		map[string]any{"from": req.From, "to": req.To, "reason": req.Reason, "partitions": len(made)})
}

// invalidated records the invalidation of a partition, and stores its event for the router.
func invalidated(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, r registry.Renewed, reason string, now time.Time,
) (uuid.UUID, error) {
	id := uuid.Must(uuid.NewV7())
	_, err := tx.Exec(ctx, `
		INSERT INTO data_invalidations (
			id, org_id, dataset_version, scope, partition_key, reason, created_by, created_at)
		VALUES ($1, $2, $3, 'partition', $4, $5, $6, $7)`,
		id, caller.OrgID, r.Version, r.Key, reason, caller.Actor, now)
	if err != nil {
		return id, fmt.Errorf("record invalidation: %w", err)
	}

	_, err = tx.Exec(ctx, `
		WITH accepted AS (
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision,
				invalidation_id, created_at)
			VALUES ($1, $2, $3, $4, 'invalidation', $5, $6, $7, $8) RETURNING id)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT $2, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)), $8, $8 FROM accepted`,
		uuid.Must(uuid.NewV7()), caller.OrgID, r.Dataset, r.Version, r.Key, r.Revision, id, now)
	if err != nil {
		return id, fmt.Errorf("accept invalidation: %w", err)
	}
	return id, nil
}
