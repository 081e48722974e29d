package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// PublishRequest is an event from outside: a partition of a manual or webhook source's output has something new to tell.
type PublishRequest struct {
	Partition      string `json:"partition_key,omitempty" maxLength:"200" doc:"all, where it is left out: of what is not partitioned"`
	IdempotencyKey string `json:"idempotency_key,omitempty" maxLength:"200" doc:"The same key again is the same event, for 30 days"`
}

// PublishedEvent is an event that is stored.
type PublishedEvent struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	Partition string    `json:"partition_key"`
	Revision  int64     `json:"revision" doc:"What the consumers read: the content that is there, under a new number"`
	Duplicate bool      `json:"duplicate,omitempty" doc:"The event was accepted before, and changed nothing now"`
}

// PublishEvent has the consumers of a partition run although its content is as it was. As with an invalidation, the
// partition gets a new revision with the content it has: the consumers are stale by what they were made from, so the event
// may be lost. Data does not come with it; the source's tasks bring that.
func (d *Dispatcher) PublishEvent(ctx context.Context, caller authz.Caller, name string, req PublishRequest, now time.Time) (PublishedEvent, error) {
	dataset, err := d.Registry.Dataset(ctx, caller, name)
	if err != nil {
		return PublishedEvent{}, err
	}
	if req.Partition == "" {
		req.Partition = dag.WholeKey
	}
	var out PublishedEvent
	// As the owner, because rows in Postgres storage are renumbered.
	err = pg.InOrgTx(ctx, d.Pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		// Under the DAG's lock two of one key come one after the other, and no completion numbers a revision meanwhile.
		if err := lockDAGBriefly(ctx, tx, caller.OrgID, dataset.DAG); err != nil {
			return err
		}
		known, err := publishedBefore(ctx, tx, caller.OrgID, dataset.ID, req)
		if err != nil {
			return err
		}
		if known != nil {
			out = *known
			return nil
		}
		job, err := d.Registry.ActiveJob(ctx, tx, caller.OrgID, dataset.DAG, dataset.Job)
		if err != nil {
			return err
		}
		if s := job.Def.Source; s == nil || s.Kind != "manual" && s.Kind != "webhook" {
			return fault.New(fault.Invalid, "%s is made by %s, which is neither a manual nor a webhook source: its events come from its tasks", dataset.Name, job.Address()).
				WithHint("`dagctl invalidate %s` has everything computed again that was made from it", dataset.Name)
		}
		if job.Def.PartitionBy.Kind == dag.ByCursor { // who follows it has to be put back, which is what an invalidation does
			return fault.New(fault.Invalid, "%s is kept by cursor: its events are the segments that its tasks make", dataset.Name).
				WithHint("`dagctl invalidate %s` puts those who follow it back to a position", dataset.Name)
		}
		renewed, err := registry.Renew(ctx, tx, caller.OrgID, dataset.ID, req.Partition, req.Partition, now)
		if err != nil {
			return err
		}
		if len(renewed) == 0 {
			return fault.New(fault.NotFound, "dataset %s has no partition %q", dataset.Name, req.Partition).
				WithHint("an event brings no data: a task of %s makes the partition", job.Address())
		}
		r := renewed[0]
		if err := d.Storage.Renumber(ctx, tx, r.Generation, r.Key, r.Revision); err != nil {
			return err
		}
		out = PublishedEvent{ID: uuid.Must(uuid.NewV7()), Partition: r.Key, Revision: r.Revision}
		event := Event{ID: out.ID, OrgID: caller.OrgID, Dataset: r.Dataset, Version: r.Version, Key: r.Key, Revision: r.Revision}
		if err := accept(ctx, tx, []Event{event}, now); err != nil {
			return err
		}
		if req.IdempotencyKey != "" {
			if _, err := tx.Exec(ctx, `UPDATE events SET idempotency_key = $2 WHERE id = $1`, out.ID, req.IdempotencyKey); err != nil {
				return fmt.Errorf("name the event: %w", err)
			}
		}
		return authz.Audit(ctx, tx, caller, "event.publish", dataset.Name, map[string]any{"partition": r.Key, "revision": r.Revision})
	})
	if err != nil {
		return PublishedEvent{}, fmt.Errorf("publish event of %s: %w", name, err)
	}
	d.wake.send(topicRoute)
	return out, nil
}

// publishedBefore finds the event that a key named. It relies on idx_events_external.
func publishedBefore(ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID, req PublishRequest) (*PublishedEvent, error) {
	if req.IdempotencyKey == "" {
		return nil, nil
	}
	found := PublishedEvent{Duplicate: true}
	err := tx.QueryRow(ctx, `SELECT id, partition_key, revision FROM events WHERE org_id = $1 AND dataset_uuid = $2 AND idempotency_key = $3`,
		org, dataset, req.IdempotencyKey).Scan(&found.ID, &found.Partition, &found.Revision)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find idempotency key: %w", err)
	case found.Partition != req.Partition:
		return nil, fault.New(fault.Conflict, "the idempotency key names an event of partition %q already", found.Partition).
			WithHint("give another event another key")
	}
	return &found, nil
}
