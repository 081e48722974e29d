package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// Renewed is a partition that got a new revision with unchanged content.
type Renewed struct {
	Ref
	Dataset    uuid.UUID
	Revision   int64
	Generation storage.Generation
}

// Renew gives a new revision with the same content to the published partitions of the generation that readers see, from
// one key to another. Both keys are included, and in the order of dag.CompareKeys. Outputs that were made from the
// earlier revision become stale by that, even if the event is lost. The caller holds the DAG's lock, so no completion
// numbers a revision at the same time.
func Renew(ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID, from, to string, now time.Time) ([]Renewed, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key, r.dataset_uuid, r.revision, org_slug(r.org_id), g.storage
		FROM dataset_pointers p
		JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN partition_versions r ON r.dataset_version = g.id AND r.state = 'Published'
		WHERE p.org_id = $1 AND p.dataset_uuid = $2
		ORDER BY r.partition_key`, org, dataset)
	if err != nil {
		return nil, fmt.Errorf("find partitions to renew: %w", err)
	}
	renewed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Renewed, error) {
		r := Renewed{Generation: storage.Generation{OrgID: org}}
		var store []byte
		if err := row.Scan(&r.Version, &r.Key, &r.Dataset, &r.Revision, &r.Generation.OrgSlug, &store); err != nil {
			return r, err
		}
		r.Generation.Dataset = r.Dataset
		return r, SetGeneration(&r.Generation, r.Version, store)
	})
	if err != nil {
		return nil, fmt.Errorf("find partitions to renew: %w", err)
	}
	renewed = slices.DeleteFunc(renewed, func(r Renewed) bool { return !dag.KeyBetween(r.Key, from, to) })

	for i := range renewed {
		if err := renew(ctx, tx, &renewed[i], now); err != nil {
			return nil, fmt.Errorf("renew partition %q: %w", renewed[i].Key, err)
		}
	}
	return renewed, nil
}

func renew(ctx context.Context, tx pgx.Tx, r *Renewed, now time.Time) error {
	old := r.Revision
	var b pg.Batch
	endPublished(&b, []Ref{{r.Version, r.Key}})
	if err := b.Send(ctx, tx); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, `
		INSERT INTO partition_versions (
			org_id, dataset_uuid, dataset_version, partition_key, revision, state, materialized_at,
			location, files, row_count, bytes, schema, schema_hash, source_version, task_id, attempt,
			range_start, range_end, passed_checks)
		SELECT org_id, dataset_uuid, dataset_version, partition_key,
			(SELECT max(revision) FROM partition_versions
			    WHERE dataset_version = $1 AND partition_key = $2) + 1, 'Published', $4,
			location, files, row_count, bytes, schema, schema_hash, source_version, task_id, attempt,
			range_start, range_end, passed_checks
		FROM partition_versions WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3
		RETURNING revision`, r.Version, r.Key, old, now).Scan(&r.Revision)
	if err != nil {
		return err
	}

	for _, sql := range []string{
		`INSERT INTO partition_inputs (org_id, output_version, output_key, output_revision,
		     input_index, input_dataset, input_version, input_key, input_revision, compared)
		 SELECT org_id, output_version, output_key, $4,
		     input_index, input_dataset, input_version, input_key, input_revision, compared
		 FROM partition_inputs WHERE output_version = $1 AND output_key = $2 AND output_revision = $3`,
		`INSERT INTO check_results (org_id, dataset_version, partition_key, revision,
		     name, severity, outcome, failures, sample, error, check_hash, task_id, at)
		 SELECT org_id, dataset_version, partition_key, $4,
		     name, severity, outcome, failures, sample, error, check_hash, task_id, at
		 FROM check_results WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3`,
	} {
		if _, err := tx.Exec(ctx, sql, r.Version, r.Key, old, r.Revision); err != nil {
			return err
		}
	}
	return nil
}
