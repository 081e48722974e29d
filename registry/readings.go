package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
)

// How the text files of a dataset are read is inferred once and stands from then on: for a declaration, which is what
// the job's config says of it, and a build epoch, so that `rematerialize` infers it anew. A reading is JSON: see
// operators/textfile.

// ReadingOf names the reading of a dataset by which a job row reads.
type ReadingOf struct {
	OrgID       uuid.UUID
	Dataset     uuid.UUID
	Job         uuid.UUID // the version's own row, which has the build epoch
	Declaration string    // its hash
}

// Readings returns the readings that stand, by job row.
func Readings(ctx context.Context, tx pgx.Tx, of []ReadingOf) (map[uuid.UUID]json.RawMessage, error) {
	if len(of) == 0 {
		return nil, nil
	}
	jobs, datasets, declarations := make([]uuid.UUID, len(of)), make([]uuid.UUID, len(of)), make([]string, len(of))
	for i, r := range of {
		jobs[i], datasets[i], declarations[i] = r.Job, r.Dataset, r.Declaration
	}

	rows, err := tx.Query(ctx, `
		SELECT j.id, r.reading
		FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS w(job, dataset, declaration)
		JOIN jobs j ON j.id = w.job
		JOIN dataset_readings r
			ON r.dataset_uuid = w.dataset AND r.declaration = w.declaration AND r.build_epoch = j.build_epoch`,
		jobs, datasets, declarations)
	if err != nil {
		return nil, fmt.Errorf("readings of %d jobs: %w", len(of), err)
	}
	standing := make(map[uuid.UUID]json.RawMessage, len(of))
	var job uuid.UUID
	var reading json.RawMessage
	_, err = pgx.ForEachRow(rows, []any{&job, &reading}, func() error {
		standing[job], reading = reading, nil
		return nil
	})
	return standing, err
}

// SettleReading stores a reading that a task found on the ground of the one that stood when it began, nil for none. It
// reports whether that still stands, or the same was found meanwhile; otherwise it changes nothing.
func SettleReading(
	ctx context.Context, tx pgx.Tx, of ReadingOf, found, was json.RawMessage, task uuid.UUID,
) (bool, error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO dataset_readings AS r (org_id, dataset_uuid, declaration, build_epoch, reading, was, task_id)
		SELECT $1, $2, $3, build_epoch, $5, $6, $7 FROM jobs WHERE id = $4
		ON CONFLICT (dataset_uuid, declaration, build_epoch) DO UPDATE
		SET reading = EXCLUDED.reading, was = EXCLUDED.was, task_id = EXCLUDED.task_id, settled_at = now()
		WHERE r.reading = EXCLUDED.was`,
		of.OrgID, of.Dataset, of.Declaration, of.Job, found, was, task)
	if err != nil {
		return false, fmt.Errorf("reading of dataset %s: %w", of.Dataset, err)
	}
	if tag.RowsAffected() > 0 {
		return true, nil
	}

	var same bool
	err = tx.QueryRow(ctx, `
		SELECT r.reading - 'inferred_from' = $5::jsonb - 'inferred_from'
		FROM dataset_readings r JOIN jobs j ON j.id = $4 AND r.build_epoch = j.build_epoch
		WHERE r.org_id = $1 AND r.dataset_uuid = $2 AND r.declaration = $3`,
		of.OrgID, of.Dataset, of.Declaration, of.Job, found).Scan(&same)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading of dataset %s: %w", of.Dataset, err)
	}
	return same, nil
}

// forgetReading takes back what the task of a rejected revision settled, unless others went on from it: data that
// nobody may see must not decide how the next is read.
func forgetReading(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) error {
	_, err := tx.Exec(ctx, `
		WITH settled AS (
			SELECT r.* FROM dataset_readings r JOIN partition_versions p ON p.task_id = r.task_id
			WHERE p.dataset_version = $1 AND p.partition_key = $2 AND p.revision = $3
			  AND NOT EXISTS (SELECT FROM partition_versions o WHERE o.dataset_version = $1 AND o.state = 'Published')),
		back AS (
			UPDATE dataset_readings r SET reading = s.was, was = NULL FROM settled s
			WHERE r.dataset_uuid = s.dataset_uuid AND r.declaration = s.declaration
			  AND r.build_epoch = s.build_epoch AND s.was IS NOT NULL)
		DELETE FROM dataset_readings r USING settled s
		WHERE r.dataset_uuid = s.dataset_uuid AND r.declaration = s.declaration AND r.build_epoch = s.build_epoch
		  AND s.was IS NULL`, ref.Version, ref.Key, revision)
	if err != nil {
		return fmt.Errorf("reading of rejected revision %d of partition %q: %w", revision, ref.Key, err)
	}
	return nil
}

// newestReading returns the reading of a dataset that was settled last; nil if it has none.
func newestReading(ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID) (reading *FileReading, err error) {
	err = tx.QueryRow(ctx, `
		SELECT reading FROM dataset_readings WHERE org_id = $1 AND dataset_uuid = $2
		ORDER BY settled_at DESC LIMIT 1`, org, dataset).Scan(&reading)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading of dataset %s: %w", dataset, err)
	}
	return reading, nil
}

// BadRowsOf counts the rows of a source's files that do not fit, over the partitions that readers see; an empty key
// counts all partitions. It returns nil unless the source keeps such rows apart, in a dataset that the caller may see.
// It relies on idx_partition_versions_published.
func BadRowsOf(ctx context.Context, tx pgx.Tx, caller authz.Caller, of Dataset, key string) (*BadRows, error) {
	if of.Output != 0 {
		return nil, nil
	}

	args := []any{caller.OrgID, of.DAG, of.Job, key}
	visible := VisibleTo(caller, &args)
	found := new(BadRows)
	err := tx.QueryRow(ctx, `
		SELECT d.name, coalesce(sum(r.row_count), 0)::bigint, count(r.revision), coalesce(max(r.partition_key), '')
		FROM dag_current_versions c
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $3
		  AND j.config ->> 'on_bad_rows' = 'quarantine'
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.job_name = j.name
		  AND p.output_index = 1
		JOIN datasets d ON d.id = p.dataset_uuid AND d.deleted_at IS NULL AND `+visible+`
		LEFT JOIN partition_versions r ON r.dataset_version = p.dataset_version AND r.state = 'Published'
		  AND r.row_count > 0 AND ($4 = '' OR r.partition_key = $4)
		WHERE c.org_id = $1 AND c.dag_name = $2
		GROUP BY d.name`, args...).Scan(&found.Dataset, &found.Rows, &found.Partitions, &found.Newest)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bad rows of dataset %s: %w", of.Name, err)
	}
	return found, nil
}
