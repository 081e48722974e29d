package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// flatFigure: throughput with a history of the same jobs and of others.
func flatFigure(ctx context.Context, b *bench) (result, error) {
	params := map[string]any{"history_tasks": b.history, "history_events": b.history / 10,
		"history_datasets": b.history / 100}
	return b.beside(ctx, load{tasks: b.tasks, before: b.makeHistory}, params)
}

// historyChunk bounds a statement, so that its progress can be seen.
const historyChunk = 500_000

// makeHistory inserts what years of running would leave. Only here the bench inserts rows itself instead of letting
// dagctl do it.
func (b *bench) makeHistory(ctx context.Context, dsn string) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	for _, part := range []struct {
		rows int
		sql  string
	}{
		{b.history / 100, `
			WITH origin AS (SELECT org_id, id, dag_version_id FROM jobs WHERE name = 'events'),
			named AS (
				INSERT INTO datasets (org_id, name, producer_dag_name, producer_job_name, producer_output_index)
				SELECT o.org_id, 'history/job' || n || '/0', 'history', 'job' || n, 0
					FROM origin o, generate_series($1::int, $2::int) AS n
				RETURNING org_id, id),
			kept AS (
				INSERT INTO dataset_versions (org_id, dataset_uuid, origin_job_id, storage_location, config_hash,
					created_by_dag_version)
				SELECT d.org_id, d.id, o.id, 'history', 'history', o.dag_version_id FROM named d, origin o
				RETURNING org_id, dataset_uuid, id)
			INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state,
				location, row_count, bytes, schema_hash, task_id, attempt)
			SELECT org_id, dataset_uuid, id, 'all', 1, 'Published', 'history', 1, 1, '', gen_random_uuid(), 1
				FROM kept`},
		{b.history / 10, `
			INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision)
			SELECT uuid_v7(), g.org_id, g.dataset_uuid, g.id, 'partition', 'history' || n, 1
			FROM generate_series($1::int, $2::int) AS n, dataset_versions g JOIN jobs j ON j.id = g.origin_job_id
			WHERE j.name = 'events' AND g.storage_location <> 'history'`},
		{b.history, `
			WITH work AS (SELECT org_id, id, row_number() OVER (ORDER BY name) - 1 AS i, count(*) OVER () AS jobs
				FROM jobs)
			INSERT INTO tasks (id, org_id, job_id, kind, dedupe_key, slot, status, runtime, partitions, started_at,
				completed_at)
			SELECT uuid_v7(), w.org_id, w.id, 'reactive', 'history' || n, 'history' || n, 'Completed', 'dispatcher',
				ARRAY['history' || n], now(), now()
			FROM generate_series($1::int, $2::int) AS n JOIN work w ON w.i = n % w.jobs`},
	} {
		for from := 1; from <= part.rows; from += historyChunk {
			if _, err := conn.Exec(ctx, part.sql, from, min(from+historyChunk-1, part.rows)); err != nil {
				return fmt.Errorf("make history: %w", err)
			}
		}
	}

	_, err = conn.Exec(ctx, `VACUUM ANALYZE`)
	return err
}
