package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
)

// Build is a version that is being built, or that is ready and waits.
type Build struct {
	ID        uuid.UUID
	OrgID     uuid.UUID
	DAG       string
	Number    int
	Status    Status
	Activate  bool
	CreatedBy string
	Started   time.Time // when it was last taken to Building
}

// Builds lists the versions that are not active yet but are to be.
func Builds(ctx context.Context, tx pgx.Tx) ([]Build, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, org_id, dag_name, number, status, activate, created_by, building_at
		FROM dag_versions WHERE status = 'Building' OR status = 'Ready' AND activate
		ORDER BY building_at`)
	if err != nil {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Build])
}

// BuildJobs are the jobs of one version that the version itself has to fill: those whose origin the active version
// does not use. The rest is live already and is the dispatcher's anyway.
func (r *Registry) BuildJobs(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]*Job, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id FROM jobs j
		WHERE j.dag_version_id = $1 AND NOT EXISTS (
			SELECT FROM dag_current_versions c JOIN jobs l ON l.dag_version_id = c.dag_version_id
			WHERE c.org_id = j.org_id AND c.dag_name = j.dag_name AND l.origin_job_id = j.origin_job_id)
		ORDER BY j.id`, version)
	if err != nil {
		return nil, fmt.Errorf("jobs to build of version %s: %w", version, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("jobs to build of version %s: %w", version, err)
	}
	found, err := r.Jobs(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	jobs := make([]*Job, len(ids))
	for i, id := range ids {
		jobs[i] = found[id]
	}
	return jobs, nil
}

// Unsettled counts, for the given generations, the partitions whose newest revision is held or rejected.
func Unsettled(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) (held int, rejected []Ref, err error) {
	rows, err := tx.Query(ctx, `
		SELECT dataset_version, partition_key, state FROM (
			SELECT DISTINCT ON (dataset_version, partition_key) dataset_version, partition_key, state
			FROM partition_versions WHERE dataset_version = ANY($1)
			ORDER BY dataset_version, partition_key, revision DESC) AS newest
		WHERE state IN ('Held', 'Rejected')
		ORDER BY 1, 2`, generations)
	if err != nil {
		return 0, nil, fmt.Errorf("unsettled partitions: %w", err)
	}
	var (
		ref   Ref
		state string
	)
	_, err = pgx.ForEachRow(rows, []any{&ref.Version, &ref.Key, &state}, func() error {
		if state == "Held" {
			held++
		} else {
			rejected = append(rejected, ref)
		}
		return nil
	})
	return held, rejected, err
}

// MarkReady takes a version from Building to Ready; false where it is not building any more.
func MarkReady(ctx context.Context, tx pgx.Tx, b Build, now time.Time) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Ready', ready_at = $3 WHERE org_id = $1 AND id = $2 AND status = 'Building'`,
		b.OrgID, b.ID, now)
	return tag.RowsAffected() == 1, err
}

// MarkFailed takes a version from Building or Ready to Failed. What it built stays, for when it is deployed again.
func MarkFailed(ctx context.Context, tx pgx.Tx, b Build, reason string) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Failed', error = $3 WHERE org_id = $1 AND id = $2 AND status IN ('Building', 'Ready')`,
		b.OrgID, b.ID, reason)
	return tag.RowsAffected() == 1, err
}

// Cutover moves every pointer of the DAG to a ready version, in the caller's transaction, which holds the DAG's lock.
// Names and catalogue entries follow the pointers. false where the version is not ready any more.
func Cutover(ctx context.Context, tx pgx.Tx, b Build, reason string, now time.Time) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Active', activated_at = $3, error = NULL WHERE org_id = $1 AND id = $2 AND status = 'Ready'`,
		b.OrgID, b.ID, now)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	previous, err := movePointer(ctx, tx, b, now)
	if err != nil {
		return false, fmt.Errorf("cut over to %s v%d: %w", b.DAG, b.Number, err)
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO dag_activations (id, org_id, dag_name, dag_version_id, from_version_id, reason, actor, at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		uuid.Must(uuid.NewV7()), b.OrgID, b.DAG, b.ID, previous, reason, b.CreatedBy, now); err != nil {
		return false, fmt.Errorf("record activation: %w", err)
	}
	return true, moveNames(ctx, tx, b, now)
}

// rollbackWindow is how long the replaced version is promised to stay instantly available.
const rollbackWindow = 7 * 24 * time.Hour

func movePointer(ctx context.Context, tx pgx.Tx, b Build, now time.Time) (previous *uuid.UUID, err error) {
	err = tx.QueryRow(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2 FOR UPDATE`,
		b.OrgID, b.DAG).Scan(&previous)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	if previous != nil {
		if _, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Superseded' WHERE org_id = $1 AND id = $2 AND status = 'Active'`,
			b.OrgID, *previous); err != nil {
			return nil, err
		}
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO dag_current_versions (org_id, dag_name, dag_version_id, updated_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (org_id, dag_name) DO UPDATE SET previous_version_id = dag_current_versions.dag_version_id,
			dag_version_id = EXCLUDED.dag_version_id, rollback_until = $5, updated_at = EXCLUDED.updated_at`,
		b.OrgID, b.DAG, b.ID, now, now.Add(rollbackWindow))
	return previous, err
}

// moveNames rewrites the DAG's catalogue entries from the version's pointer set. Two published names may swap: the
// unique key on names is checked at the end of the transaction.
func moveNames(ctx context.Context, tx pgx.Tx, b Build, now time.Time) error {
	if _, err := tx.Exec(ctx, `SET CONSTRAINTS datasets_org_id_name_key DEFERRED`); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		UPDATE datasets d SET
			name = coalesce(p.name, d.producer_dag_name || '/' || d.producer_job_name || '/' || d.producer_output_index),
			published = p.published_name IS NOT NULL,
			producer_job_name = coalesce(p.job_name, d.producer_job_name),
			description = p.publication ->> 'description',
			owner = p.publication ->> 'owner',
			tags = coalesce((SELECT array_agg(t) FROM jsonb_array_elements_text(p.publication -> 'tags') AS t), '{}'),
			columns = coalesce(p.publication -> 'columns', '{}'),
			due_within_seconds = (p.publication ->> 'due_within')::bigint / 1000000000,
			storage = coalesce(g.storage, d.storage),
			updated_at = $4
		FROM datasets s
		LEFT JOIN dag_version_datasets p ON p.dag_version_id = $3 AND p.dataset_uuid = s.id
		LEFT JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE d.id = s.id AND s.org_id = $1 AND s.producer_dag_name = $2`, b.OrgID, b.DAG, b.ID, now)
	if err != nil {
		return fmt.Errorf("move names of %s: %w", b.DAG, err)
	}
	// Checked here and not at commit, so that the refusal can say what it is about.
	if _, err := tx.Exec(ctx, `SET CONSTRAINTS datasets_org_id_name_key IMMEDIATE`); err != nil {
		return fault.New(fault.Conflict, "a published name of %s is taken by another DAG: %w", b.DAG, err).
			WithHint("dagctl datasets list shows who publishes it")
	}
	return nil
}
