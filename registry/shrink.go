package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A version past the retention shrinks to its record: document, hash, who deployed it, when, and what became of it. Its
// jobs, pointers and contract go, so that the tables hold no more of ten years of deploys than of one. What stays are
// the jobs that it introduced and their outputs, because tasks, generations and later versions belong to those.

// OldVersions is the versions of one DAG that can shrink.
type OldVersions struct {
	OrgID    uuid.UUID
	DAG      string
	Versions []uuid.UUID
}

// shrinkable is the condition on a version v that ended before $1: it does not serve, is not the one before, no pin or
// version on its way names it, and its data is gone, or served by the version that serves now.
const shrinkable = `
	v.shrunk_at IS NULL AND v.ended_at < $1 AND v.status IN ('Superseded', 'Failed', 'Abandoned')
	AND NOT EXISTS (SELECT FROM dag_current_versions c WHERE c.org_id = v.org_id AND c.dag_name = v.dag_name
	                AND v.id IN (c.dag_version_id, c.previous_version_id))
	AND NOT EXISTS (SELECT FROM pins k WHERE k.dag_version_id = v.id AND (k.until IS NULL OR k.until > $2))
	AND NOT EXISTS (SELECT FROM dag_versions n WHERE n.org_id = v.org_id AND n.dag_name = v.dag_name
	                AND n.status IN ('Building', 'Ready') AND n.base_version_id = v.id)
	AND NOT EXISTS (SELECT FROM dag_version_datasets p
	                JOIN dataset_versions g ON g.id = p.dataset_version AND g.purged_at IS NULL
	                WHERE p.dag_version_id = v.id AND NOT EXISTS (
	                    SELECT FROM dag_current_versions c JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
	                    WHERE c.org_id = v.org_id AND c.dag_name = v.dag_name AND s.dataset_version = g.id))`

// FindOldVersions returns, by DAG, up to limit versions that ended before a time and can shrink. It relies on
// idx_dag_versions_ended.
func FindOldVersions(ctx context.Context, tx pgx.Tx, before, now time.Time, limit int) ([]OldVersions, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_id, dag_name, array_agg(id ORDER BY id) FROM (
			SELECT v.org_id, v.dag_name, v.id FROM dag_versions v WHERE `+shrinkable+` ORDER BY v.ended_at LIMIT $3) AS old
		GROUP BY org_id, dag_name ORDER BY org_id, dag_name`, before, now, limit)
	if err != nil {
		return nil, fmt.Errorf("find versions past their retention: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[OldVersions])
}

// Shrink shrinks those of the versions that still can be, and returns their number. The caller holds the DAG's lock, so
// nobody begins to build one of them again.
func (o OldVersions) Shrink(ctx context.Context, tx pgx.Tx, before, now time.Time) (n int64, err error) {
	rows, err := tx.Query(ctx, `SELECT v.id FROM dag_versions v WHERE `+shrinkable+` AND v.org_id = $3 AND v.id = ANY($4)`,
		before, now, o.OrgID, o.Versions)
	if err != nil {
		return 0, fmt.Errorf("shrink versions of %s: %w", o.DAG, err)
	}
	still, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(still) == 0 {
		return 0, err
	}

	rows, err = tx.Query(ctx, `
		WITH own AS (
			SELECT id FROM jobs WHERE org_id = $1 AND dag_version_id = ANY($2) AND id <> origin_job_id)
		SELECT id FROM own EXCEPT SELECT jobs_named(ARRAY(SELECT id FROM own))`, o.OrgID, still)
	if err != nil {
		return 0, fmt.Errorf("shrink versions of %s: %w", o.DAG, err)
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return 0, fmt.Errorf("shrink versions of %s: %w", o.DAG, err)
	}

	// Jobs last, because the others refer to them.
	for _, sql := range []string{
		`DELETE FROM dag_version_datasets p USING jobs j
		WHERE j.org_id = $1 AND j.id = ANY($2) AND p.dag_version_id = j.dag_version_id AND p.job_name = j.name`,
		`DELETE FROM job_inputs WHERE org_id = $1 AND job_id = ANY($2)`,
		`DELETE FROM jobs WHERE org_id = $1 AND id = ANY($2)`,
	} {
		if _, err := tx.Exec(ctx, sql, o.OrgID, jobs); err != nil {
			return 0, fmt.Errorf("shrink versions of %s: %w", o.DAG, err)
		}
	}
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET shrunk_at = $3, contract = NULL
		WHERE org_id = $1 AND id = ANY($2)`, o.OrgID, still, now)
	if err != nil {
		return 0, fmt.Errorf("shrink versions of %s: %w", o.DAG, err)
	}
	return tag.RowsAffected(), nil
}
