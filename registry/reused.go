package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// UncheckedRevision is the revision of one partition that readers of a generation see, with the checks that it has not
// passed.
type UncheckedRevision struct {
	Generation   uuid.UUID
	Key          string
	Revision     int64
	Materialized time.Time
	Checks       []string // hashes, sorted
}

// Demand is the checks, by their hashes, that the revisions of a generation must have passed.
type Demand struct {
	Generation uuid.UUID `json:"generation"`
	Checks     []string  `json:"checks"`
}

// Unchecked returns the published revisions that have not passed all that is demanded of their generations, by
// generation and key. Revisions that were taken over from another generation count only once their own has served.
func Unchecked(ctx context.Context, tx pgx.Tx, demands []Demand) ([]UncheckedRevision, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key, r.revision, r.materialized_at,
			ARRAY(SELECT unnest(w.checks) EXCEPT SELECT unnest(r.passed_checks) ORDER BY 1)
		FROM jsonb_to_recordset($1) AS w(generation uuid, checks text[])
		JOIN partition_versions r ON r.dataset_version = w.generation AND r.state = 'Published'
		  AND NOT r.passed_checks @> w.checks
		WHERE r.inherited_from IS NULL OR EXISTS (
			SELECT FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id AND v.activated_at IS NOT NULL
			WHERE p.dataset_version = w.generation)
		ORDER BY r.dataset_version, r.partition_key`, demands)
	if err != nil {
		return nil, fmt.Errorf("unchecked revisions: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[UncheckedRevision])
}

// Later is a revision of an input, for an output partition of a generation.
type Later struct {
	Target     int // the caller's
	Generation uuid.UUID
	Pin        Pin
}

// MadeSinceServing returns those revisions that were made after the generation had served for the first time.
func MadeSinceServing(ctx context.Context, tx pgx.Tx, asked []Later) ([]Later, error) {
	if len(asked) == 0 {
		return nil, nil
	}
	own, versions := make([]uuid.UUID, len(asked)), make([]uuid.UUID, len(asked))
	keys, numbers := make([]string, len(asked)), make([]int64, len(asked))
	for i, l := range asked {
		own[i], versions[i], keys[i], numbers[i] = l.Generation, l.Pin.Version, l.Pin.Key, l.Pin.Revision
	}

	rows, err := tx.Query(ctx, `
		WITH served AS (
			SELECT p.dataset_version, min(a.at) AS at
			FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id
			JOIN dag_activations a ON a.org_id = v.org_id AND a.dag_name = v.dag_name AND a.dag_version_id = v.id
			WHERE p.dataset_version = ANY($1) GROUP BY 1)
		SELECT w.n - 1
		FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[]) WITH ORDINALITY AS w(own, version, key, revision, n)
		JOIN served s ON s.dataset_version = w.own
		JOIN partition_versions r ON r.dataset_version = w.version AND r.partition_key = w.key AND r.revision = w.revision
		WHERE r.materialized_at > s.at`, own, versions, keys, numbers)
	if err != nil {
		return nil, fmt.Errorf("when %d revisions were made: %w", len(asked), err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("when %d revisions were made: %w", len(asked), err)
	}
	later := make([]Later, len(found))
	for i, n := range found {
		later[i] = asked[n]
	}
	return later, nil
}
