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

	"github.com/dagctl/dagctl/internal/pg"
)

// Input is one revision of one partition that a task read.
type Input struct {
	DatasetUUID    uuid.UUID
	DatasetVersion uuid.UUID
	PartitionKey   string
	Revision       int64
	MaterializedAt time.Time // of that revision; input_version in the table
}

// TaskInputs is all that one task read.
type TaskInputs struct {
	OrgID  uuid.UUID
	TaskID uuid.UUID
	Again  bool // an earlier attempt may have recorded other inputs
	Inputs []Input
}

// RecordInputs adds to a batch what says what tasks read, all of it: what an earlier attempt was pinned to and this one is
// not, goes.
func RecordInputs(b *pg.Batch, read []TaskInputs) {
	var (
		tasks, orgs, datasets, versions []uuid.UUID
		again, againOrgs                []uuid.UUID
		keys                            []string
		revisions                       []int64
		times                           []time.Time
	)
	for _, t := range read {
		if t.Again {
			again, againOrgs = append(again, t.TaskID), append(againOrgs, t.OrgID)
		}
		for _, in := range t.Inputs {
			tasks, orgs = append(tasks, t.TaskID), append(orgs, t.OrgID)
			datasets, versions, keys = append(datasets, in.DatasetUUID), append(versions, in.DatasetVersion), append(keys, in.PartitionKey)
			revisions, times = append(revisions, in.Revision), append(times, in.MaterializedAt)
		}
	}
	if len(again) > 0 {
		b.Exec(fmt.Sprintf("forget inputs of %d earlier attempts", len(again)), `
			DELETE FROM task_inputs t USING unnest($1::uuid[], $2::uuid[]) AS w(task_id, org_id)
			WHERE t.task_id = w.task_id AND t.org_id = w.org_id`, again, againOrgs)
	}
	if len(tasks) == 0 {
		return
	}
	b.Exec(fmt.Sprintf("record inputs of %d tasks", len(read)), `
		INSERT INTO task_inputs AS t (task_id, org_id, input_dataset_uuid, input_partition_key, input_version, dataset_version, revision)
		SELECT DISTINCT ON (task_id, dataset_uuid, partition_key) * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[], $6::uuid[], $7::bigint[])
			AS p (task_id, org_id, dataset_uuid, partition_key, version, dataset_version, revision)
		ORDER BY task_id, dataset_uuid, partition_key, revision DESC
		ON CONFLICT (task_id, input_dataset_uuid, input_partition_key) DO UPDATE
		SET input_version = excluded.input_version, dataset_version = excluded.dataset_version, revision = excluded.revision
		WHERE t.org_id = excluded.org_id
		  AND (t.dataset_version, t.revision) IS DISTINCT FROM (excluded.dataset_version, excluded.revision)`,
		tasks, orgs, datasets, keys, times, versions, revisions)
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

// ForgetTasks removes what is told of the inputs of tasks that are removed. What outputs were made from is told elsewhere.
func ForgetTasks(ctx context.Context, tx pgx.Tx, tasks []uuid.UUID) error {
	if len(tasks) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM task_inputs WHERE task_id = ANY($1)`, tasks); err != nil {
		return fmt.Errorf("forget the inputs of %d tasks: %w", len(tasks), err)
	}
	return nil
}
