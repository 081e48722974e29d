package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// A dataset by cursor consists of segments, each a partition whose range follows that of the one before. Nothing is
// published beyond an unpublished segment, so a reader at a position has read everything up to it.

// bounds returns the positions of a segment or of a range, half-open; nil for a revision that is neither.
func (n NewRevision) bounds() (start, end *int64, err error) {
	return positionsOf(n.PartitionBy, n.Key)
}

// positionsOf returns the positions that a partition covers, half-open; nil if it is neither a range nor a segment.
func positionsOf(by dag.Partitioning, key string) (start, end *int64, err error) {
	if by.Kind != dag.ByCursor && by.Kind != dag.ByRange {
		return nil, nil, nil
	}
	from, to, err := dag.Partitioning{Kind: dag.ByCursor}.Range(key)
	if err != nil {
		return nil, nil, err
	}
	return &from, &to, nil
}

// AllPositions is the Position of a PartitionFilter that takes all partitions.
const AllPositions = -1

// PartitionFilter says which partitions to list.
type PartitionFilter struct {
	Position int64  // only the one that covers it; AllPositions: all
	After    string // begin after this key
	Limit    int
}

// at returns the condition on partitions, which are rows of partition_versions, that cover the filter's position.
// Ranges are found by their keys. Segments rely on idx_partition_versions_range: those that are published follow each
// other, so the first one that ends behind the position has it, or none.
func (f PartitionFilter) at(d Dataset, by dag.Partitioning, args *[]any) (condition string, err error) {
	if f.Position == AllPositions {
		return "true", nil
	}
	switch by.Kind {
	case dag.ByRange:
		*args = append(*args, by.RangeAt(f.Position))
		return fmt.Sprintf("partition_key = $%d", len(*args)), nil
	case dag.ByCursor:
		*args = append(*args, f.Position)
		return fmt.Sprintf(`range_start <= $%d AND range_end = (
			SELECT s.range_end FROM partition_versions s
			WHERE s.dataset_version = $2 AND s.range_end > $%[1]d AND s.state = 'Published'
			ORDER BY s.range_end LIMIT 1)`, len(*args)), nil
	}
	return "", fault.New(fault.Invalid, "dataset %q has %s, and only ranges and segments of cursors have positions",
		d.Name, by).WithHint("name the partition by its key")
}

// spanOf is the SQL of the first position that published partitions r of generation g cover, and of the one behind the
// last; NULL where they have none. Ranges that were made before their rows had positions have them in their keys.
func spanOf() (first, end string) {
	column := func(name string, part int) string {
		return fmt.Sprintf(`coalesce(r.%s, CASE WHEN g.partition_by ->> 'kind' = 'range'
			THEN split_part(r.partition_key, '-', %d)::bigint END)`, name, part)
	}
	return "min(" + column("range_start", 1) + ")", "max(" + column("range_end", 2) + ")"
}

// Head is the end of a generation's segments.
type Head struct {
	Position int64 // the last position in them; -1 if there are none
	Held     bool  // the last segment waits for its checks
}

// CursorHead returns the end of a generation's segments, including a held one. Purged segments count, because their
// positions have been used. It relies on idx_partition_versions_range.
func CursorHead(ctx context.Context, tx pgx.Tx, generation uuid.UUID) (Head, error) {
	var (
		h   Head
		end int64
	)
	err := tx.QueryRow(ctx, `
		SELECT range_end, state = 'Held' FROM partition_versions
		WHERE dataset_version = $1 AND range_end IS NOT NULL AND state IN ('Published', 'Held', 'Purged')
		ORDER BY range_end DESC LIMIT 1`, generation).Scan(&end, &h.Held)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return h, fmt.Errorf("segments of %s: %w", generation, err)
	}
	h.Position = end - 1
	return h, nil
}

// Segment is one segment of a cursor.
type Segment struct {
	Key      string
	Revision int64
}

// Withdraw ends the published and held segments beyond a position, and the one that contains it, because their content
// is no longer true. It returns them in order. The caller holds the DAG's lock.
func Withdraw(ctx context.Context, tx pgx.Tx, generation uuid.UUID, position int64, now time.Time) ([]Segment, error) {
	rows, err := tx.Query(ctx, `
		WITH gone AS (
			UPDATE partition_versions SET state = CASE state
			  WHEN 'Held' THEN 'Rejected' ELSE 'Replaced' END, ended_at = $3
			WHERE dataset_version = $1 AND range_end > $2 AND state IN ('Published', 'Held', 'Purged')
			RETURNING partition_key, revision, range_start)
		SELECT partition_key, revision FROM gone ORDER BY range_start`, generation, position, now)
	if err != nil {
		return nil, fmt.Errorf("withdraw segments of %s: %w", generation, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Segment])
}

// SegmentsBetween lists the keys of the published segments with positions between from and to, in order.
func SegmentsBetween(ctx context.Context, tx pgx.Tx, generation uuid.UUID, from, to int64) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT partition_key FROM partition_versions
		WHERE dataset_version = $1 AND range_end > $2 AND range_start <= $3 AND state = 'Published'
		ORDER BY range_start`, generation, from, to)
	if err != nil {
		return nil, fmt.Errorf("segments of %s: %w", generation, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Span is a range of positions of a generation by cursor: From ≤ position < To.
type Span struct {
	Generation uuid.UUID
	From, To   int64
}

// SegmentsOf returns the published segments with positions in the spans, and their revisions. It relies on
// idx_partition_versions_range: segments are contiguous, so the first one that reaches a span's end is its last.
func SegmentsOf(ctx context.Context, tx pgx.Tx, spans []Span) (map[Span]map[string]int64, error) {
	found := make(map[Span]map[string]int64, len(spans))
	if len(spans) == 0 {
		return found, nil
	}

	versions, from, to := make([]uuid.UUID, len(spans)), make([]int64, len(spans)), make([]int64, len(spans))
	for i, s := range spans {
		versions[i], from[i], to[i] = s.Generation, s.From, s.To
	}

	rows, err := tx.Query(ctx, `
		SELECT w.version, w.first, w.past, s.partition_key, s.revision
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS w(version, first, past),
			LATERAL (
				SELECT p.partition_key, p.revision FROM partition_versions p
				WHERE p.dataset_version = w.version AND p.range_end > w.first AND p.range_start < w.past
				  AND p.state = 'Published'
				  AND p.range_end <= coalesce((
					SELECT l.range_end FROM partition_versions l
					WHERE l.dataset_version = w.version AND l.range_end >= w.past AND l.state = 'Published'
					ORDER BY l.range_end LIMIT 1), p.range_end)) AS s`, versions, from, to)
	if err != nil {
		return nil, fmt.Errorf("segments of %d spans: %w", len(spans), err)
	}

	var (
		s        Span
		key      string
		revision int64
	)
	_, err = pgx.ForEachRow(rows, []any{&s.Generation, &s.From, &s.To, &key, &revision}, func() error {
		if found[s] == nil {
			found[s] = map[string]int64{}
		}
		found[s][key] = revision
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("segments of %d spans: %w", len(spans), err)
	}
	return found, nil
}

// LiveGeneration returns the generation of a dataset that readers see; uuid.Nil if there is none.
func LiveGeneration(ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID) (version uuid.UUID, err error) {
	err = tx.QueryRow(ctx, `SELECT dataset_version FROM dataset_pointers WHERE org_id = $1 AND dataset_uuid = $2`, org,
		dataset).Scan(&version)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return version, fmt.Errorf("generation of dataset %s: %w", dataset, err)
	}
	return version, nil
}

// Beyond asks for the segments of a generation with positions after one, as far as they end before another.
type Beyond struct {
	Generation    uuid.UUID
	After, Before int64
}

// SegmentsBeyond returns the published segments that reach beyond positions, and their revisions; of those before, only
// the last. It relies on idx_partition_versions_range.
func SegmentsBeyond(ctx context.Context, tx pgx.Tx, asked []Beyond) (map[Beyond]map[string]int64, error) {
	found := make(map[Beyond]map[string]int64, len(asked))
	if len(asked) == 0 {
		return found, nil
	}
	versions, after, before := make([]uuid.UUID, len(asked)), make([]int64, len(asked)), make([]int64, len(asked))
	for i, a := range asked {
		versions[i], after[i], before[i] = a.Generation, a.After, a.Before
		found[a] = map[string]int64{}
	}

	rows, err := tx.Query(ctx, `
		SELECT w.version, w.after, w.before, s.partition_key, s.revision
		FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS w(version, after, before)
		CROSS JOIN LATERAL (
			SELECT p.partition_key, p.revision FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.range_end > w.after + 1
			  AND p.range_end <= w.before AND p.state = 'Published'
			UNION ALL
			(SELECT p.partition_key, p.revision FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.range_end <= w.after + 1 AND p.state = 'Published'
			ORDER BY p.range_end DESC LIMIT 1)) AS s`, versions, after, before)
	if err != nil {
		return nil, fmt.Errorf("segments beyond %d positions: %w", len(asked), err)
	}

	var (
		a        Beyond
		key      string
		revision int64
	)
	_, err = pgx.ForEachRow(rows, []any{&a.Generation, &a.After, &a.Before, &key, &revision}, func() error {
		found[a][key] = revision
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("segments beyond %d positions: %w", len(asked), err)
	}
	return found, nil
}
