package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ServedJobs returns the job rows that each origin had in versions that have served, the active version first. Of rows
// with the same checks it returns one, because a DAG may have served in hundreds of versions.
func (r *Registry) ServedJobs(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[uuid.UUID][]Acting, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (v.status = 'Active', j.origin_job_id, j.definition -> 'checks') j.id, v.status = 'Active'
		FROM jobs j
		JOIN dag_versions v ON v.id = j.dag_version_id AND v.activated_at IS NOT NULL
		WHERE j.origin_job_id = ANY($1)
		ORDER BY v.status = 'Active' DESC, j.origin_job_id, j.definition -> 'checks', v.number DESC`, origins)
	if err != nil {
		return nil, fmt.Errorf("find jobs that served: %w", err)
	}

	var (
		ids  []uuid.UUID
		id   uuid.UUID
		live bool
	)
	isLive := map[uuid.UUID]bool{}
	if _, err := pgx.ForEachRow(rows, []any{&id, &live}, func() error {
		ids, isLive[id] = append(ids, id), live
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find jobs that served: %w", err)
	}

	jobs, err := r.Jobs(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	served := map[uuid.UUID][]Acting{}
	for _, id := range ids {
		j := jobs[id]
		served[j.Origin] = append(served[j.Origin], Acting{Job: j, Live: isLive[id]})
	}
	return served, nil
}

// PublishedRevision is the revision of one partition that readers of a generation see.
type PublishedRevision struct {
	Key          string
	Revision     int64
	Materialized time.Time
}

// PublishedRevisions lists the revisions that readers of a generation see, by key.
func PublishedRevisions(ctx context.Context, tx pgx.Tx, generation uuid.UUID) ([]PublishedRevision, error) {
	rows, err := tx.Query(ctx, `SELECT partition_key, revision, materialized_at FROM partition_versions
		WHERE dataset_version = $1 AND state = 'Published' ORDER BY partition_key`, generation)
	if err != nil {
		return nil, fmt.Errorf("published revisions: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[PublishedRevision])
}
