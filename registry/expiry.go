package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

// Expiry is a published dataset with a retention, some of whose partitions are past it.
type Expiry struct {
	OrgID   uuid.UUID
	DAG     string
	Dataset string

	version   uuid.UUID
	origin    uuid.UUID
	by        dag.Partitioning
	retention time.Duration
}

// Expired lists the served datasets that have partitions past their retention.
func Expired(ctx context.Context, tx pgx.Tx, now time.Time) ([]Expiry, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.org_id, c.dag_name, coalesce(p.published_name, p.job_name), p.dataset_version, g.origin_job_id,
		    g.partition_by, (p.publication ->> 'retention')::bigint
		FROM dag_current_versions c
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE (p.publication ->> 'retention')::bigint > 0
		ORDER BY p.org_id, c.dag_name, p.dataset_version`)
	if err != nil {
		return nil, fmt.Errorf("datasets with a retention: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Expiry, err error) {
		return e, row.Scan(&e.OrgID, &e.DAG, &e.Dataset, &e.version, &e.origin, &e.by, &e.retention)
	})
	if err != nil {
		return nil, fmt.Errorf("datasets with a retention: %w", err)
	}

	var expired []Expiry
	for _, e := range all {
		gone, err := e.Still(ctx, tx, now)
		if err != nil {
			return nil, err
		}
		if len(gone) > 0 {
			expired = append(expired, e)
		}
	}
	return expired, nil
}

// expireAtOnce is the most partitions that one transaction removes.
const expireAtOnce = 500

// Still lists the partitions that are past their retention at the given time, the oldest first.
func (e Expiry) Still(ctx context.Context, tx pgx.Tx, now time.Time) ([]PurgedPartition, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.partition_key, p.materialized_at, p.bytes FROM partition_versions p
		WHERE p.dataset_version = $1 AND p.state = 'Published' AND ($2 OR p.materialized_at < $3)
		  AND EXISTS (SELECT FROM dag_current_versions c
		      JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
		              WHERE c.org_id = $4 AND c.dag_name = $5 AND s.dataset_version = $1)
		ORDER BY p.materialized_at, p.partition_key`, e.version, e.by.Kind == dag.ByTime, now.Add(-e.retention),
		e.OrgID, e.DAG)
	if err != nil {
		return nil, fmt.Errorf("expired partitions of %s: %w", e.Dataset, err)
	}

	var (
		gone []PurgedPartition
		p    = PurgedPartition{Dataset: e.Dataset, DAG: e.DAG, Version: e.version, Origin: e.origin, Live: true}
		made time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&p.Key, &made, &p.Bytes}, func() error {
		over, err := e.over(p.Key, made, now)
		if over && len(gone) < expireAtOnce {
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
