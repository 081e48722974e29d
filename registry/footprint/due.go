package footprint

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// Due is a published dataset that is to be updated within a time.
type Due struct {
	Name, DAG, Job, Owner string
	Generation            uuid.UUID
	By                    dag.Partitioning
	Within                time.Duration
	Created               time.Time
	Updated               *time.Time // when its newest partition was made; nil where partitions in time say what is due
}

// Dues lists the datasets that the caller may see and that say when they are due. It relies on idx_datasets_due and
// idx_partition_versions_newest.
func Dues(ctx context.Context, tx pgx.Tx, caller authz.Caller) ([]Due, error) {
	args := []any{caller.OrgID, dag.ByTime}
	visible := registry.VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		WITH due AS MATERIALIZED (
			SELECT * FROM datasets d
			WHERE d.org_id = $1 AND d.due_within_seconds > 0 AND d.published AND d.deleted_at IS NULL AND `+visible+`)
		SELECT d.name, d.producer_dag_name, d.producer_job_name, coalesce(d.owner, ''), g.id, g.partition_by,
			d.due_within_seconds, d.created_at, `+registry.UpdatedOutOfTime("$2")+`
		FROM due d
		JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
		JOIN dataset_versions g ON g.id = p.dataset_version
		ORDER BY d.name`, args...)
	if err != nil {
		return nil, fmt.Errorf("find due datasets: %w", err)
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Due, err error) {
		var (
			by      []byte
			seconds int
		)
		err = row.Scan(&d.Name, &d.DAG, &d.Job, &d.Owner, &d.Generation, &by, &seconds, &d.Created, &d.Updated)
		if err == nil && len(by) > 0 {
			err = json.Unmarshal(by, &d.By)
		}
		d.Within = time.Duration(seconds) * time.Second
		return d, err
	})
}

// Made is a revision that readers see or saw.
type Made struct {
	Partition string
	At        time.Time
}

// madeShown is how many revisions Lately returns of a generation.
const madeShown = 20

// Lately returns the last revisions of generations, the last first: of partitions in the order of their keys, and of
// what has none those that were published one after the other. It relies on the primary key and on
// idx_partition_versions_published.
func Lately(ctx context.Context, tx pgx.Tx, org uuid.UUID, dues []Due) (map[uuid.UUID][]Made, error) {
	ids, replaced := make([]uuid.UUID, len(dues)), make([]bool, len(dues))
	for i, d := range dues {
		ids[i], replaced[i] = d.Generation, d.By.Kind == dag.Unpartitioned
	}
	rows, err := tx.Query(ctx, `
		SELECT g.id, r.partition_key, r.materialized_at
		FROM unnest($2::uuid[], $3::boolean[]) AS g(id, replaced)
		CROSS JOIN LATERAL (
			(SELECT partition_key, materialized_at FROM partition_versions
			WHERE NOT g.replaced AND org_id = $1 AND dataset_version = g.id AND state = 'Published'
			ORDER BY partition_key DESC LIMIT $4)
			UNION ALL
			(SELECT partition_key, materialized_at FROM partition_versions
			WHERE g.replaced AND org_id = $1 AND dataset_version = g.id AND state IN ('Published', 'Replaced')
			ORDER BY partition_key DESC, revision DESC LIMIT $4)) AS r`, org, ids, replaced, madeShown)
	if err != nil {
		return nil, fmt.Errorf("last revisions: %w", err)
	}

	made := map[uuid.UUID][]Made{}
	var (
		id uuid.UUID
		m  Made
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &m.Partition, &m.At}, func() error {
		made[id] = append(made[id], m)
		return nil
	})
	return made, err
}

// Clock is a source job with a clock.
type Clock struct {
	DAG, Job string
	Source   dag.Source // without its schedule, if the job is hidden from the caller
}

// Clocks lists the source jobs of the active versions that a clock fires, without those that poll more often than once
// in some time. Everybody may know when they fire next. It relies on idx_jobs_sources.
func Clocks(ctx context.Context, tx pgx.Tx, caller authz.Caller, every time.Duration) ([]Clock, error) {
	args := []any{caller.OrgID, every.Nanoseconds()}
	hidden := registry.HiddenJob(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT j.dag_name, j.name, j.source, `+hidden+`
		FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.activation = 'source'
		WHERE c.org_id = $1 AND (j.source ->> 'kind' = 'cron'
			OR j.source ->> 'kind' = 'poll' AND (j.source ->> 'every')::bigint >= $2)`, args...)
	if err != nil {
		return nil, fmt.Errorf("sources with a clock: %w", err)
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Clock, err error) {
		var (
			text   []byte
			hidden bool
		)
		if err = row.Scan(&c.DAG, &c.Job, &text, &hidden); err == nil {
			err = json.Unmarshal(text, &c.Source)
		}
		if hidden {
			c.Source = dag.Source{Kind: c.Source.Kind}
		}
		return c, err
	})
}
