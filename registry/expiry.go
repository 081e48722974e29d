package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

// Expiry is a published dataset with a retention.
type Expiry struct {
	OrgID   uuid.UUID
	DAG     string
	Dataset string
	Version uuid.UUID // of the dataset

	origin    uuid.UUID
	by        dag.Partitioning
	retention time.Duration
}

// Expiries lists the served datasets of an org that have a retention, in the order of their ids.
func Expiries(ctx context.Context, tx pgx.Tx, org uuid.UUID) ([]Expiry, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.org_id, c.dag_name, coalesce(p.published_name, p.job_name), p.dataset_version, g.origin_job_id,
		    g.partition_by, (p.publication ->> 'retention')::bigint
		FROM dag_current_versions c
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE c.org_id = $1 AND (p.publication ->> 'retention')::bigint > 0
		ORDER BY p.dataset_version`, org)
	if err != nil {
		return nil, fmt.Errorf("datasets with a retention: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Expiry, err error) {
		return e, row.Scan(&e.OrgID, &e.DAG, &e.Dataset, &e.Version, &e.origin, &e.by, &e.retention)
	})
	if err != nil {
		return nil, fmt.Errorf("datasets with a retention: %w", err)
	}
	return all, nil
}

// ExpireAtOnce is the most partitions that Past returns, for one transaction.
const ExpireAtOnce = 500

// Past lists the partitions that are past their retention at the given time, the oldest first.
func (e Expiry) Past(ctx context.Context, tx pgx.Tx, now time.Time) ([]PurgedPartition, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.partition_key, p.materialized_at, p.bytes FROM partition_versions p
		WHERE p.dataset_version = $1 AND p.state = 'Published' AND ($2 OR p.materialized_at < $3)
		  AND EXISTS (SELECT FROM dag_current_versions c
		      JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
		              WHERE c.org_id = $4 AND c.dag_name = $5 AND s.dataset_version = $1)
		ORDER BY p.materialized_at, p.partition_key`, e.Version, e.by.Kind == dag.ByTime, now.Add(-e.retention),
		e.OrgID, e.DAG)
	if err != nil {
		return nil, fmt.Errorf("expired partitions of %s: %w", e.Dataset, err)
	}

	var (
		gone []PurgedPartition
		p    = PurgedPartition{Dataset: e.Dataset, DAG: e.DAG, Version: e.Version, Origin: e.origin, Live: true}
		made time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&p.Key, &made, &p.Bytes}, func() error {
		over, err := e.over(p.Key, made, now)
		if over && len(gone) < ExpireAtOnce {
			gone = append(gone, p)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("expired partitions of %s: %w", e.Dataset, err)
	}
	return gone, nil
}

// over reports whether a partition is past its retention, which counts from the end of its time or from when it was
// made. It is pure.
func (e Expiry) over(key string, made, now time.Time) (bool, error) {
	if e.by.Kind == dag.ByTime {
		_, end, err := e.by.Bounds(key)
		return err == nil && end.Add(e.retention).Before(now), err
	}
	return made.Add(e.retention).Before(now), nil
}
