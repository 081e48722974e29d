package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
)

// KeepDeliveries is how long it stays known that a payload was delivered.
const KeepDeliveries = 400 * 24 * time.Hour

// beginDeliveries returns the work of removing deliveries of payloads that ended before a time. Those of the rows of
// inputs stay as long as their DAG: a partition that is read again, however late, must not send them once more. A
// payload comes again only with another task that somebody asks for.
func (u *Upkeep) beginDeliveries(ctx context.Context, before time.Time) (workitems.Step, error) {
	var orgs []uuid.UUID
	var dags, jobs []string
	err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := u.registry.JobsInWork(ctx, tx, nil)
		for _, a := range acting {
			if job := a.Job; job.Def.Source != nil {
				orgs, dags, jobs = append(orgs, job.OrgID), append(dags, job.DAG), append(jobs, job.Def.Identity())
			}
		}
		return err
	})

	// The position is the time of the last row that was looked at: rows of inputs are passed over.
	return func(ctx context.Context, position string) (done workitems.Progress, err error) {
		var looked int
		var last *string
		err = u.pool.QueryRow(ctx, `
			WITH seen AS (
				SELECT org_id, id, dag_name, job_name, updated_at FROM deliveries
				WHERE status IN ('delivered', 'failed') AND updated_at < $1
				  AND (updated_at, id) > (split_part($2, ' ', 1)::timestamptz, split_part($2, ' ', 2))
				ORDER BY updated_at, id LIMIT $3),
			gone AS (
				DELETE FROM deliveries d USING seen s, unnest($4::uuid[], $5::text[], $6::text[]) AS w(org, dag, job)
				WHERE (d.org_id, d.id) = (s.org_id, s.id) AND (s.org_id, s.dag_name, s.job_name) = (w.org, w.dag, w.job)
				  AND d.updated_at = s.updated_at AND d.status IN ('delivered', 'failed') RETURNING 1)
			SELECT (SELECT to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || ' ' || id
					FROM seen ORDER BY updated_at DESC, id DESC LIMIT 1),
				(SELECT count(*) FROM seen), (SELECT count(*) FROM gone)`,
			before, fromFirst(position, "0001-01-01T00:00:00Z "), sweepBatch, orgs, dags, jobs).
			Scan(&last, &looked, &done.Rows)
		if err != nil {
			return done, fmt.Errorf("retention of deliveries: %w", err)
		}
		done.Position, done.Over = position, looked < sweepBatch
		if last != nil {
			done.Position = *last
		}
		return done, nil
	}, err
}
