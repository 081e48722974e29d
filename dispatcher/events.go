package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// Event says that a revision of a partition was published. What an event is, is the revision, never who reported it:
// reported twice, it is one event.
type Event struct {
	ID       uuid.UUID
	OrgID    uuid.UUID
	Dataset  uuid.UUID
	Version  uuid.UUID // generation
	Key      string
	Revision int64
	Producer uuid.UUID // task
	trace    string    // traceparent; empty where nobody traces

	// Of a segment of a cursor: what was published is everything up to the position, in the epoch; key and revision are
	// those of the segment and do not count.
	Epoch    *int64
	Position *int64
}

// accept stores events with the outbox row that has them routed, in the caller's transaction. Those known already are
// acknowledged and change nothing.
func accept(ctx context.Context, tx pgx.Tx, events []Event, now time.Time) error {
	var b pg.Batch
	queueAccept(&b, events, now)
	return b.Send(ctx, tx)
}

// queueAccept is accept as a part of a batch.
func queueAccept(b *pg.Batch, events []Event, now time.Time) { queueEvents(b, events, now, true) }

// queueEvents stores events, and has them routed unless the caller does that itself.
func queueEvents(b *pg.Batch, events []Event, now time.Time, routed bool) {
	if len(events) == 0 {
		return
	}
	var (
		ids, orgs, datasets, versions, producers []uuid.UUID
		keys                                     []string
		revisions                                []int64
		epochs, positions                        []*int64
	)
	for _, e := range events {
		orgs = append(orgs, e.OrgID)
		ids, datasets, versions = append(ids, e.ID), append(datasets, e.Dataset), append(versions, e.Version)
		keys, revisions, producers = append(keys, e.Key), append(revisions, e.Revision), append(producers, e.Producer)
		epochs, positions = append(epochs, e.Epoch), append(positions, e.Position)
	}
	b.Exec(fmt.Sprintf("accept %d events", len(events)), `
		WITH accepted AS (
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision, epoch, cursor_value, producer_task_id, created_at)
			SELECT id, org, dataset, version, CASE WHEN position IS NULL THEN 'partition' ELSE 'cursor' END, CASE WHEN position IS NULL THEN key END,
				CASE WHEN position IS NULL THEN revision END, epoch, position, producer, $8
			FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::bigint[], $7::uuid[], $9::bigint[], $10::bigint[])
				AS e(id, org, dataset, version, key, revision, producer, epoch, position)
			ON CONFLICT ON CONSTRAINT events_identity DO NOTHING
			RETURNING id, org_id)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) || $11, $8, $8 FROM accepted WHERE $12::boolean GROUP BY org_id`,
		ids, orgs, datasets, versions, keys, revisions, producers, now, epochs, positions, rowTraces{tracesOf(events)}, routed)
}

// queueRouting has events routed that are stored already.
func queueRouting(b *pg.Batch, events []Event, now time.Time) {
	orgs, ids := make([]uuid.UUID, len(events)), make([]uuid.UUID, len(events))
	for i, e := range events {
		orgs[i], ids[i] = e.OrgID, e.ID
	}
	b.Exec(fmt.Sprintf("have %d events routed", len(events)), `
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT org, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) || $3, $4, $4
		FROM unnest($1::uuid[], $2::uuid[]) AS e(org, id) GROUP BY org`, orgs, ids, rowTraces{tracesOf(events)}, now)
}

func loadEvents(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) ([]Event, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, org_id, dataset_uuid, dataset_version, coalesce(partition_key, format('%s-%s', cursor_value, cursor_value + 1)),
			coalesce(revision, 0), coalesce(producer_task_id, $2), epoch, cursor_value
		FROM events WHERE id = ANY($1) ORDER BY id`, ids, uuid.Nil)
	if err != nil {
		return nil, fmt.Errorf("load %d events: %w", len(ids), err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Event, err error) {
		err = row.Scan(&e.ID, &e.OrgID, &e.Dataset, &e.Version, &e.Key, &e.Revision, &e.Producer, &e.Epoch, &e.Position)
		return e, err
	})
}
