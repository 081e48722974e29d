// Package lineage records what each task read and which columns came from which.
//
// Vocabulary: an input is one revision of one partition that a task's inputs were pinned to; a column edge says that a
// column of one dataset version was made from a column of another. Which job reads which dataset is registry's to say.
//
// It owns task_inputs and column_lineage.
package lineage

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Input is one revision of one partition that a task read.
type Input struct {
	DatasetUUID    uuid.UUID
	DatasetVersion uuid.UUID
	PartitionKey   string
	Revision       int64
	MaterializedAt time.Time // of that revision; input_version in the table
}

// RecordInputs says what a task read, all of it: what an earlier attempt was pinned to and this one is not, goes.
func RecordInputs(ctx context.Context, tx pgx.Tx, orgID, taskID uuid.UUID, inputs []Input) error {
	n := len(inputs)
	datasets, versions, keys := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]string, n)
	revisions, times := make([]int64, n), make([]time.Time, n)
	for i, in := range inputs {
		datasets[i], versions[i], keys[i] = in.DatasetUUID, in.DatasetVersion, in.PartitionKey
		revisions[i], times[i] = in.Revision, in.MaterializedAt
	}
	_, err := tx.Exec(ctx, `
		WITH pinned AS (
			SELECT * FROM unnest($3::uuid[], $4::text[], $5::timestamptz[], $6::uuid[], $7::bigint[])
				AS p (dataset_uuid, partition_key, version, dataset_version, revision)
		), gone AS (
			DELETE FROM task_inputs t
			WHERE t.org_id = $1 AND t.task_id = $2 AND NOT EXISTS (
				SELECT FROM pinned p
				WHERE p.dataset_uuid = t.input_dataset_uuid AND p.partition_key = t.input_partition_key)
		)
		INSERT INTO task_inputs AS t (task_id, org_id, input_dataset_uuid, input_partition_key, input_version, dataset_version, revision)
		SELECT $2, $1, dataset_uuid, partition_key, version, dataset_version, revision FROM pinned
		ON CONFLICT (task_id, input_dataset_uuid, input_partition_key) DO UPDATE
		SET input_version = excluded.input_version, dataset_version = excluded.dataset_version, revision = excluded.revision
		WHERE t.org_id = excluded.org_id
		  AND (t.dataset_version, t.revision) IS DISTINCT FROM (excluded.dataset_version, excluded.revision)`,
		orgID, taskID, datasets, keys, times, versions, revisions)
	if err != nil {
		return fmt.Errorf("record inputs of task %s: %w", taskID, err)
	}
	return nil
}

// Inputs lists what a task read.
func Inputs(ctx context.Context, tx pgx.Tx, orgID, taskID uuid.UUID) ([]Input, error) {
	rows, err := tx.Query(ctx, `
		SELECT input_dataset_uuid, dataset_version, input_partition_key, revision, input_version
		FROM task_inputs
		WHERE org_id = $1 AND task_id = $2 -- task_inputs_pkey
		ORDER BY input_dataset_uuid, input_partition_key`, orgID, taskID)
	if err != nil {
		return nil, fmt.Errorf("list inputs of task %s: %w", taskID, err)
	}
	inputs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Input])
	if err != nil {
		return nil, fmt.Errorf("list inputs of task %s: %w", taskID, err)
	}
	return inputs, nil
}
