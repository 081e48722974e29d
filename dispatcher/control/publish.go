package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// PublishRequest is an event from outside about a partition of a manual or webhook source's output.
type PublishRequest struct {
	Partition      string `json:"partition_key,omitempty" maxLength:"200" doc:"Default: all, the one partition of a dataset that is not partitioned"`
	IdempotencyKey string `json:"idempotency_key,omitempty" maxLength:"200" doc:"For 30 days, the same key again is the same event"`
}

// PublishedEvent is an event that is stored.
type PublishedEvent struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	Partition string    `json:"partition_key"`
	Revision  int64     `json:"revision" doc:"The number under which consumers read the unchanged content"`
	Duplicate bool      `json:"duplicate,omitempty" doc:"The event was accepted before; this call changed nothing"`
}

// PublishEvent runs the consumers of a partition although its content is unchanged. As with an invalidation, the
// partition gets a new revision with the content it has: the consumers are stale by what they were made from, so the
// event may be lost. It brings no data; the source's tasks do.
func (ctl *Control) PublishEvent(
	ctx context.Context, caller authz.Caller, name string, req PublishRequest, now time.Time,
) (PublishedEvent, error) {
	dataset, err := ctl.registry.Dataset(ctx, caller, name)
	if err != nil {
		return PublishedEvent{}, err
	}
	if req.Partition == "" {
		req.Partition = dag.WholeKey
	}

	var out PublishedEvent
	// As the owner, because rows in Postgres storage are renumbered.
	err = pg.InOrgTx(ctx, ctl.pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		// The DAG's lock orders two requests with one key, and keeps completions from numbering revisions meanwhile.
		if err := tasks.LockDAGBriefly(ctx, tx, caller.OrgID, dataset.DAG); err != nil {
			return err
		}
		if err := ctl.registry.RequireStill(ctx, tx, caller, dataset); err != nil {
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

		job, err := ctl.registry.ActiveJob(ctx, tx, caller.OrgID, dataset.DAG, dataset.Job)
		if err != nil {
			return err
		}
		if err := takesEvents(dataset, job); err != nil {
			return err
		}
		out, err = ctl.publishUnchanged(ctx, tx, caller, dataset, job, req, now)
		return err
	})
	if err != nil {
		return PublishedEvent{}, fmt.Errorf("publish event of %s: %w", name, err)
	}
	ctl.wake.Send(wakeup.Route)
	return out, nil
}

// takesEvents returns an error where a dataset takes no events from outside.
func takesEvents(dataset registry.Dataset, job *registry.Job) error {
	if s := job.Def.Source; s == nil || s.Kind != "manual" && s.Kind != "webhook" {
		return fault.New(fault.Invalid, "%s is made by %s, which is neither a manual nor a webhook source: "+
			"its events come from its tasks", dataset.Name, job.Address()).
			WithHint("`dagctl invalidate %s` computes everything again that was made from it", dataset.Name)
	}
	if job.Def.PartitionBy.Kind == dag.ByCursor { // its followers would have to be rewound, as an invalidation does
		return fault.New(fault.Invalid, "%s is partitioned by cursor: its events are the segments that its tasks make",
			dataset.Name).
			WithHint("`dagctl invalidate %s` rewinds those who follow it to a position", dataset.Name)
	}
	return nil
}

// publishUnchanged gives a partition a new revision with the content it has, and stores its event.
func (ctl *Control) publishUnchanged(
	ctx context.Context, tx pgx.Tx, caller authz.Caller,
	dataset registry.Dataset, job *registry.Job, req PublishRequest, now time.Time,
) (PublishedEvent, error) {
	renewed, err := registry.Renew(ctx, tx, caller.OrgID, dataset.ID, req.Partition, req.Partition, now)
	if err != nil {
		return PublishedEvent{}, err
	}
	if len(renewed) == 0 {
		return PublishedEvent{}, fault.New(fault.NotFound, "dataset %s has no partition %q",
			dataset.Name, req.Partition).
			WithHint("an event brings no data: a task of %s makes the partition", job.Address())
	}
	r := renewed[0]
	if err := ctl.storage.Renumber(ctx, tx, r.Generation, r.Key, r.Revision); err != nil {
		return PublishedEvent{}, err
	}

	out := PublishedEvent{ID: uuid.Must(uuid.NewV7()), Partition: r.Key, Revision: r.Revision}
	event := dispatcher.Event{ID: out.ID, OrgID: caller.OrgID,
		Dataset: r.Dataset, Version: r.Version, Key: r.Key, Revision: r.Revision}
	var b pg.Batch
	dispatcher.Accept(&b, []dispatcher.Event{event}, dispatcher.ByRouter, now)
	if err := b.Send(ctx, tx); err != nil {
		return PublishedEvent{}, err
	}
	if req.IdempotencyKey != "" {
		_, err := tx.Exec(ctx, `UPDATE events SET idempotency_key = $2 WHERE id = $1`, out.ID, req.IdempotencyKey)
		if err != nil {
			return PublishedEvent{}, fmt.Errorf("name the event: %w", err)
		}
	}
	detail := map[string]any{"partition": r.Key, "revision": r.Revision}
	return out, authz.Audit(ctx, tx, caller, "event.publish", dataset.Name, detail)
}

// publishedBefore returns the event that a key already names, or nil. It relies on idx_events_external.
func publishedBefore(
	ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID, req PublishRequest,
) (*PublishedEvent, error) {
	if req.IdempotencyKey == "" {
		return nil, nil
	}

	found := PublishedEvent{Duplicate: true}
	err := tx.QueryRow(ctx, `
		SELECT id, partition_key, revision FROM events
		WHERE org_id = $1 AND dataset_uuid = $2 AND idempotency_key = $3`,
		org, dataset, req.IdempotencyKey).Scan(&found.ID, &found.Partition, &found.Revision)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find idempotency key: %w", err)
	case found.Partition != req.Partition:
		return nil, fault.New(fault.Conflict, "the idempotency key already names an event of partition %q",
			found.Partition).
			WithHint("give another event another key")
	}
	return &found, nil
}
