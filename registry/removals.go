package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry/contract"
)

// Consent is what the person who deploys a version has agreed to; see contract.Consent.
type Consent = contract.Consent

const (
	CancelTasks   = contract.CancelTasks
	AllowRemovals = contract.AllowRemovals
	AllowMoves    = contract.AllowMoves
	AllowBreaking = contract.AllowBreaking
)

// Removal is what readers of a dataset would lose: partitions that are served and that a version does not have.
type Removal struct {
	Dataset    string   `json:"dataset"`
	Partitions int      `json:"partitions" doc:"How many"`
	Examples   []string `json:"examples" doc:"The first three" nullable:"false"`
	Why        string   `json:"why,omitempty" doc:"Why the version does not have the first of them, if that is known"`

	Generation uuid.UUID `json:"-"` // of the version
	Keys       []string  `json:"-"` // all of them, sorted
}

// Purged is why a version lacks a partition that somebody purged from its generation. No build makes it anew: only
// new inputs do, or a backfill.
const Purged = "it was purged"

// NothingAnew is why a version lacks all partitions of a dataset that it partitions in another way.
const NothingAnew = "nothing is made for the new partitioning"

// Only keeps the partitions for which keep returns true, and reports whether any are left.
func (r *Removal) Only(keep func(key string) bool) bool {
	var kept []string
	for _, key := range r.Keys {
		if keep(key) {
			kept = append(kept, key)
		}
	}
	r.Keys, r.Partitions, r.Examples = kept, len(kept), kept[:min(len(kept), 3)]
	return len(kept) > 0
}

// KeepRemovals returns the removals without the partitions that keep refuses.
func KeepRemovals(all []Removal, keep func(generation uuid.UUID, key string) bool) (kept []Removal) {
	for _, r := range all {
		if r.Only(func(key string) bool { return keep(r.Generation, key) }) {
			kept = append(kept, r)
		}
	}
	return kept
}

// String says what would be lost.
func (r Removal) String() string {
	noun, more := "partitions", ""
	if r.Partitions == 1 {
		noun = "partition"
	}
	if r.Partitions > len(r.Examples) {
		more = ", ..."
	}

	text := fmt.Sprintf("%s would lose %d %s that it serves: %s%s", r.Dataset, r.Partitions, noun,
		strings.Join(r.Examples, ", "), more)
	if r.Why != "" {
		text += " (" + r.Why + ")"
	}
	return text
}

// Succession is a generation of a version with the one that readers have now, of the same dataset or under the same
// published name, where both are cut into partitions alike. A cursor's segments are no partitions that a reader could
// miss.
type Succession struct {
	Dataset    string
	Next, Live uuid.UUID
}

// Successions returns the generations of a version that would take the place of others.
func Successions(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]Succession, error) {
	rows, err := tx.Query(ctx, `
		WITH pairs AS (
			SELECT p.name, p.dataset_version AS next, s.dataset_version AS live
			FROM dag_versions v
			JOIN dag_version_datasets p ON p.dag_version_id = v.id
			JOIN dataset_pointers s ON s.org_id = v.org_id AND s.dag_name = v.dag_name AND s.dataset_uuid = p.dataset_uuid
			WHERE v.id = $1 AND s.dataset_version <> p.dataset_version
			UNION
			SELECT p.name, p.dataset_version, s.dataset_version
			FROM dag_version_datasets p
			JOIN dataset_name_owners o ON o.org_id = p.org_id AND o.name = p.published_name AND o.dataset_uuid <> p.dataset_uuid
			JOIN dataset_pointers s ON s.org_id = o.org_id AND s.dag_name = o.dag_name AND s.dataset_uuid = o.dataset_uuid
			WHERE p.dag_version_id = $1 AND s.dataset_version <> p.dataset_version)
		SELECT p.name, p.next, p.live
		FROM pairs p
		JOIN dataset_versions g ON g.id = p.next
		JOIN dataset_versions lg ON lg.id = p.live AND lg.partition_by = g.partition_by
		WHERE g.partition_by->>'kind' IS DISTINCT FROM 'cursor'
		ORDER BY 1, 2, 3`, version)
	if err != nil {
		return nil, fmt.Errorf("what version %s replaces: %w", version, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Succession])
}

// Removals returns the partitions that readers would lose.
func Removals(ctx context.Context, tx pgx.Tx, all []Succession) ([]Removal, error) {
	names, next, live := make([]string, len(all)), make([]uuid.UUID, len(all)), make([]uuid.UUID, len(all))
	for i, s := range all {
		names[i], next[i], live[i] = s.Dataset, s.Next, s.Live
	}
	return removals(ctx, tx, `
		SELECT p.name, p.next, array_agg(DISTINCT l.partition_key ORDER BY l.partition_key)
		FROM unnest($1::text[], $2::uuid[], $3::uuid[]) AS p(name, next, live)
		JOIN partition_versions l ON l.dataset_version = p.live AND l.state = 'Published'
		WHERE NOT EXISTS (SELECT FROM partition_versions n WHERE n.dataset_version = p.next
		                  AND n.partition_key = l.partition_key AND n.state = 'Published')
		GROUP BY p.name, p.next ORDER BY p.name`, names, next, live)
}

// RemovalsAmong returns those of some partitions that readers would lose. Each names either generation.
func RemovalsAmong(ctx context.Context, tx pgx.Tx, all []Succession, some []Ref) ([]Removal, error) {
	asked := map[uuid.UUID][]string{}
	for _, r := range some {
		asked[r.Version] = append(asked[r.Version], r.Key)
	}
	var names, keys []string
	var next, live []uuid.UUID
	for _, s := range all {
		for _, generation := range []uuid.UUID{s.Next, s.Live} {
			for _, key := range asked[generation] {
				names, keys = append(names, s.Dataset), append(keys, key)
				next, live = append(next, s.Next), append(live, s.Live)
			}
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}

	return removals(ctx, tx, `
		SELECT p.name, p.next, array_agg(DISTINCT p.key ORDER BY p.key)
		FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[]) AS p(name, next, live, key)
		CROSS JOIN LATERAL (SELECT FROM partition_versions l WHERE l.dataset_version = p.live AND l.partition_key = p.key
		                    AND l.state = 'Published' LIMIT 1) AS l
		WHERE NOT EXISTS (SELECT FROM partition_versions n WHERE n.dataset_version = p.next
		                  AND n.partition_key = p.key AND n.state = 'Published')
		GROUP BY p.name, p.next ORDER BY p.name`, names, next, live, keys)
}

func removals(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]Removal, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("partitions that readers would lose: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Removal, err error) {
		err = row.Scan(&r.Dataset, &r.Generation, &r.Keys)
		r.Only(func(string) bool { return true })
		return r, err
	})
}

// PurgedRemovals returns the partitions that readers have now and that were purged from a version's generations. It
// relies on idx_partition_versions_purged.
func PurgedRemovals(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]Removal, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.name, p.dataset_version, array_agg(DISTINCT r.partition_key ORDER BY r.partition_key)
		FROM dag_version_datasets p
		JOIN dataset_pointers s ON s.org_id = p.org_id AND s.dataset_uuid = p.dataset_uuid
			AND s.dataset_version <> p.dataset_version
		JOIN partition_versions r ON r.dataset_version = p.dataset_version AND r.state = 'Purged'
		JOIN partition_versions l ON l.dataset_version = s.dataset_version AND l.partition_key = r.partition_key
			AND l.state = 'Published'
		WHERE p.dag_version_id = $1 AND NOT EXISTS (
			SELECT FROM partition_versions n WHERE n.dataset_version = r.dataset_version
			AND n.partition_key = r.partition_key AND n.revision > r.revision)
		GROUP BY p.name, p.dataset_version ORDER BY p.name`, version)
	if err != nil {
		return nil, fmt.Errorf("purged partitions of version %s: %w", version, err)
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Removal, err error) {
		r.Why = Purged
		err = row.Scan(&r.Dataset, &r.Generation, &r.Keys)
		r.Only(func(string) bool { return true })
		return r, err
	})
}

// EmptiedBy returns all partitions of datasets that a version cuts into other partitions and has nothing of: what they
// were made from cannot be read again.
func EmptiedBy(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]Removal, error) {
	lost, err := removals(ctx, tx, `
		SELECT p.name, p.dataset_version, array_agg(DISTINCT l.partition_key ORDER BY l.partition_key)
		FROM dag_version_datasets p
		JOIN dataset_pointers s ON s.org_id = p.org_id AND s.dataset_uuid = p.dataset_uuid
			AND s.dataset_version <> p.dataset_version
		JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN dataset_versions lg ON lg.id = s.dataset_version AND lg.partition_by <> g.partition_by
		JOIN partition_versions l ON l.dataset_version = s.dataset_version AND l.state = 'Published'
		WHERE p.dag_version_id = $1 AND NOT EXISTS (
			SELECT FROM partition_versions n WHERE n.dataset_version = p.dataset_version AND n.state = 'Published')
		GROUP BY p.name, p.dataset_version ORDER BY p.name`, version)
	for i := range lost {
		lost[i].Why = NothingAnew
	}
	return lost, err
}
