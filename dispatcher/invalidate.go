package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// InvalidateRequest says which partitions are not what they were taken for.
type InvalidateRequest struct {
	From   string `json:"from,omitempty" maxLength:"200" doc:"First partition, as text, or position of a cursor; the first there is where it is left out"`
	To     string `json:"to,omitempty" maxLength:"200" doc:"Last partition or position, which is meant too; the last there is where it is left out"`
	Reason string `json:"reason,omitempty" enum:"reorg,correction,manual,schema" doc:"manual where it is left out"`
}

// Invalidated is one partition whose consumers are computed again.
type Invalidated struct {
	ID        uuid.UUID `json:"id"`
	Partition string    `json:"partition"`
	Revision  int64     `json:"revision" doc:"The new revision: the same content, under another number"`
	Withdrawn bool      `json:"withdrawn,omitempty" doc:"It is a segment of a cursor that does not hold any more: readers do not see it, and the source reads it again"`
}

// Invalidate has everything computed again that was made from some partitions of a dataset, and what was made from that, and
// so on. The partitions get a new revision with the content they have: so consumers are stale by what they were made from,
// and not by a message that may be lost.
func (d *Dispatcher) Invalidate(ctx context.Context, caller authz.Caller, name string, req InvalidateRequest, now time.Time) ([]Invalidated, error) {
	dataset, err := d.Registry.Dataset(ctx, caller, name)
	if err != nil {
		return nil, err
	}
	if req.Reason == "" {
		req.Reason = "manual"
	}
	var made []Invalidated
	// As the owner, because rows in Postgres storage are renumbered.
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		made = nil
		if err := lockDAGBriefly(ctx, tx, caller.OrgID, dataset.DAG); err != nil {
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
			return auditInvalidation(ctx, tx, caller, dataset, req, made)
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
		return auditInvalidation(ctx, tx, caller, dataset, req, made)
	})
	if err != nil {
		return nil, fmt.Errorf("invalidate %s: %w", name, err)
	}
	d.wake.send(topicRoute)
	return made, nil
}

func noSuchPartition(dataset registry.Dataset) error {
	return fault.New(fault.NotFound, "dataset %s has no such partition", dataset.Name).
		WithHint("`dagctl datasets partitions %s` lists those there are", dataset.Name)
}

func auditInvalidation(ctx context.Context, tx pgx.Tx, caller authz.Caller, dataset registry.Dataset, req InvalidateRequest, made []Invalidated) error {
	return authz.Audit(ctx, tx, caller, "dataset.invalidate", dataset.Name,
		map[string]any{"from": req.From, "to": req.To, "reason": req.Reason, "partitions": len(made)})
}

// invalidated records an invalidation with the event that has it routed.
func invalidated(ctx context.Context, tx pgx.Tx, caller authz.Caller, r registry.Renewed, reason string, now time.Time) (uuid.UUID, error) {
	id := uuid.Must(uuid.NewV7())
	if _, err := tx.Exec(ctx, `
		INSERT INTO data_invalidations (id, org_id, dataset_version, scope, partition_key, reason, created_by, created_at)
		VALUES ($1, $2, $3, 'partition', $4, $5, $6, $7)`, id, caller.OrgID, r.Version, r.Key, reason, caller.Actor, now); err != nil {
		return id, fmt.Errorf("record invalidation: %w", err)
	}
	_, err := tx.Exec(ctx, `
		WITH accepted AS (
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision, invalidation_id, created_at)
			VALUES ($1, $2, $3, $4, 'invalidation', $5, $6, $7, $8) RETURNING id)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT $2, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)), $8, $8 FROM accepted`,
		uuid.Must(uuid.NewV7()), caller.OrgID, r.Dataset, r.Version, r.Key, r.Revision, id, now)
	if err != nil {
		return id, fmt.Errorf("accept invalidation: %w", err)
	}
	return id, nil
}
