package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// Event records that a revision of a partition was published. The revision identifies the event, never its reporter: a
// revision that is reported twice is one event.
type Event struct {
	ID       uuid.UUID
	OrgID    uuid.UUID
	Dataset  uuid.UUID
	Version  uuid.UUID // generation
	Key      string
	Revision int64
	Producer uuid.UUID // task
	trace    string    // traceparent; empty where tracing is off

	// Set for a segment of a cursor: everything up to Position, in Epoch, was published. Key and Revision are those of
	// the segment then, and do not identify the event.
	Epoch    *int64
	Position *int64
}

// routedBy names who routes stored events.
type routedBy bool

const (
	ByRouter routedBy = true  // the router does, by an outbox row
	byCaller routedBy = false // the caller does, in its own transaction
)

// Accept stores events in the caller's transaction. An event that is already known changes nothing.
func Accept(b *pg.Batch, events []Event, by routedBy, now time.Time) {
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
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision, epoch,
				cursor_value, producer_task_id, created_at)
			SELECT id, org, dataset, version, CASE WHEN position IS NULL THEN 'partition' ELSE 'cursor' END,
				CASE WHEN position IS NULL THEN key END, CASE WHEN position IS NULL THEN revision END,
				epoch, position, producer, $8
			FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::bigint[], $7::uuid[],
					$9::bigint[], $10::bigint[])
				AS e(id, org, dataset, version, key, revision, producer, epoch, position)
			ON CONFLICT ON CONSTRAINT events_identity DO NOTHING
			RETURNING id, org_id)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) || $11, $8, $8
		FROM accepted WHERE $12::boolean GROUP BY org_id`,
		ids, orgs, datasets, versions, keys, revisions, producers, now, epochs, positions,
		rowTraces{tracesOf(events)}, bool(by))
}

// leaveToRouter adds outbox rows by which the router routes events that are stored already.
func leaveToRouter(b *pg.Batch, events []Event, now time.Time) {
	orgs, ids := make([]uuid.UUID, len(events)), make([]uuid.UUID, len(events))
	for i, e := range events {
		orgs[i], ids[i] = e.OrgID, e.ID
	}

	b.Exec(fmt.Sprintf("leave %d events to the router", len(events)), `
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT org, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) || $3, $4, $4
		FROM unnest($1::uuid[], $2::uuid[]) AS e(org, id) GROUP BY org`, orgs, ids, rowTraces{tracesOf(events)}, now)
}

// LoadEvents returns events by their ids. Those that do not exist are left out. An event of a position gets the key of
// a segment that ends there.
func LoadEvents(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) ([]Event, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, org_id, dataset_uuid, dataset_version,
			coalesce(partition_key, format('%s-%s', cursor_value, cursor_value + 1)),
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
