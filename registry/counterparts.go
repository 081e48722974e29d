package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Counterpart is the generation that serves a dataset for which a build makes another.
type Counterpart struct {
	Dataset    uuid.UUID
	Candidate  uuid.UUID // generation that the build makes
	Live       uuid.UUID // generation that serves
	Origin     uuid.UUID // whose tasks fill the one that serves
	Comparable bool      // both are cut into partitions alike
}

// Counterparts pairs the generations of a version with the different ones that serve the same datasets.
func Counterparts(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]Counterpart, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_uuid, p.dataset_version, l.dataset_version, j.origin_job_id, g.partition_by = lg.partition_by
		FROM dag_version_datasets p
		JOIN dataset_pointers l ON l.org_id = p.org_id AND l.dataset_uuid = p.dataset_uuid
		  AND l.dataset_version <> p.dataset_version
		JOIN dag_version_datasets lp ON lp.dag_version_id = l.dag_version_id AND lp.dataset_uuid = l.dataset_uuid
		JOIN jobs j ON j.dag_version_id = l.dag_version_id AND j.name = lp.job_name
		JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN dataset_versions lg ON lg.id = l.dataset_version
		WHERE p.dag_version_id = $1`, version)
	if err != nil {
		return nil, fmt.Errorf("counterparts of version %s: %w", version, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Counterpart])
}

// Lacking compares a pair of a source's generations. It returns the partitions that the live generation has and the
// candidate lacks, and the others that the candidate read before the live generation read something else.
func Lacking(ctx context.Context, tx pgx.Tx, c Counterpart) (missing, older []string, err error) {
	rows, err := tx.Query(ctx, `
		SELECT l.partition_key, p.partition_key IS NULL
		FROM partition_versions l
		LEFT JOIN partition_versions p ON p.dataset_version = $2 AND p.partition_key = l.partition_key
		  AND p.state = 'Published'
		WHERE l.dataset_version = $1 AND l.state = 'Published'
		  AND (p.partition_key IS NULL
		      OR p.source_version IS DISTINCT FROM l.source_version AND p.materialized_at < l.materialized_at)
		ORDER BY 1`, c.Live, c.Candidate)
	if err != nil {
		return nil, nil, fmt.Errorf("compare sources of dataset %s: %w", c.Dataset, err)
	}

	var key string
	var absent bool
	_, err = pgx.ForEachRow(rows, []any{&key, &absent}, func() error {
		if absent {
			missing = append(missing, key)
		} else {
			older = append(older, key)
		}
		return nil
	})
	return missing, older, err
}

// Leaf is a revision that other revisions were made from: of a dataset outside the generations that were followed, or
// of a source.
type Leaf struct {
	Root          int       // which of the revisions asked about, from 0
	Way           uuid.UUID // names the partitions between the root and the leaf, which may be more than one way
	Dataset       uuid.UUID
	Version       uuid.UUID
	Key           string
	Revision      int64
	At            time.Time
	SourceVersion string
}

// Trace follows revisions back to what they were made from, through the generations of a build and those it replaces.
// For an appended partition every revision counts, because the partition contains everything that was ever read. A way
// begins below its root, but at the root itself where that stands for an input.
func Trace(ctx context.Context, tx pgx.Tx, roots []Pin, through, appended []uuid.UUID) ([]Leaf, error) {
	versions, keys, revisions := make([]uuid.UUID, len(roots)), make([]string, len(roots)), make([]int64, len(roots))
	datasets := make([]*uuid.UUID, len(roots)) // nil: the root is no input
	for i, r := range roots {
		versions[i], keys[i], revisions[i] = r.Version, r.Key, r.Revision
		if r.Dataset != uuid.Nil {
			datasets[i] = &r.Dataset
		}
	}
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE walk AS (
			SELECT (r.n - 1)::int AS root, md5(coalesce(r.dataset || r.key, ''))::uuid AS way, r.version, r.key, r.revision
			FROM unnest($1::uuid[], $2::text[], $3::bigint[], $6::uuid[]) WITH ORDINALITY
				AS r(version, key, revision, dataset, n)
			UNION
			SELECT w.root, md5(CASE WHEN w.way = md5('')::uuid THEN '' ELSE w.way::text END
				|| i.input_dataset || i.input_key)::uuid, i.input_version, i.input_key, i.input_revision
			FROM walk w
			JOIN partition_inputs i ON i.output_version = w.version AND i.output_key = w.key AND i.compared
			     AND (i.output_revision = w.revision OR w.version = ANY($5) AND i.output_revision < w.revision)
			WHERE w.version = ANY($4))
		SELECT w.root, w.way, p.dataset_uuid, w.version, w.key, w.revision, p.materialized_at, coalesce(p.source_version, '')
		FROM walk w
		JOIN partition_versions p ON p.dataset_version = w.version AND p.partition_key = w.key
		  AND p.revision = w.revision
		WHERE w.version <> ALL($4)
		   OR NOT EXISTS (SELECT FROM partition_inputs i
		       WHERE i.output_version = w.version AND i.output_key = w.key AND i.output_revision = w.revision)`,
		versions, keys, revisions, through, appended, datasets)
	if err != nil {
		return nil, fmt.Errorf("trace %d revisions: %w", len(roots), err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Leaf])
}
