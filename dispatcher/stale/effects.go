package stale

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// CarryEffects moves the positions of jobs with effects, in this DAG and in others, over to the generations that are
// served from now on. If such a job had acted on the published revision of a partition, it counts as having acted on
// the revision that replaces it: a deploy or a rollback repeats no effect. If it was behind, it acts.
func CarryEffects(ctx context.Context, tx pgx.Tx, org uuid.UUID, pointers []deploy.PointerMove, now time.Time) error {
	datasets := make([]uuid.UUID, len(pointers))
	for i, p := range pointers {
		datasets[i] = p.Dataset
	}

	rows, err := tx.Query(ctx, `
		SELECT DISTINCT dataset_uuid FROM effect_positions WHERE org_id = $1 AND dataset_uuid = ANY($2)`, org, datasets)
	if err != nil {
		return fmt.Errorf("find effect positions: %w", err)
	}
	acting, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find effect positions: %w", err)
	}

	for _, p := range pointers {
		if !slices.Contains(acting, p.Dataset) {
			continue
		}
		published, err := registry.Published(new(pg.Batch), []uuid.UUID{p.From, p.To}).Get(ctx, tx)
		if err != nil {
			return err
		}

		var keys []string
		var acted, carried []int64
		for key, revision := range published[p.To] {
			if was, ok := published[p.From][key]; ok {
				keys, acted, carried = append(keys, key), append(acted, was), append(carried, revision)
			}
		}
		if _, err := tx.Exec(ctx, `
			UPDATE effect_positions e SET dataset_version = $4, revision = w.carried, updated_at = $8
			FROM unnest($5::text[], $6::bigint[], $7::bigint[]) AS w(key, acted, carried)
			WHERE e.org_id = $1 AND e.dataset_uuid = $2 AND e.dataset_version = $3
			  AND e.partition_key = w.key AND e.revision = w.acted`,
			org, p.Dataset, p.From, p.To, keys, acted, carried, now); err != nil {
			return fmt.Errorf("carry effect positions over: %w", err)
		}
	}
	return nil
}

// BeginEffects makes new jobs with effects act on what is published from now on, and not on everything that exists.
func BeginEffects(ctx context.Context, tx pgx.Tx, b registry.Build, now time.Time) error {
	inputs, err := registry.FirstInputs(ctx, tx, b)
	if err != nil || len(inputs) == 0 {
		return err
	}

	_, err = tx.Exec(ctx, `
		INSERT INTO effect_positions
			(org_id, dag_name, job_name, dataset_uuid, partition_key, dataset_version, revision, updated_at)
		SELECT $1, $2, w.job, w.dataset, w.key, w.version, w.revision, $4
		FROM jsonb_to_recordset($3) AS w(job text, dataset uuid, key text, version uuid, revision bigint)
		ON CONFLICT (org_id, dag_name, job_name, dataset_uuid, partition_key) DO UPDATE
		SET dataset_version = EXCLUDED.dataset_version, revision = EXCLUDED.revision, updated_at = EXCLUDED.updated_at`,
		b.OrgID, b.DAG, inputs, now)
	if err != nil {
		return fmt.Errorf("begin effects of %s: %w", b.DAG, err)
	}
	return nil
}
