package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Point is one revision in a trend.
type Point struct {
	Partition string    `json:"partition"`
	Revision  int64     `json:"revision"`
	At        time.Time `json:"materialized_at"`
	Rows      int64     `json:"rows"`
	Bytes     int64     `json:"bytes"`
	Delay     *int64    `json:"delay_seconds,omitempty" doc:"Of a partition in time: how long after its end the revision was made; below 0 before it"`
}

// pointsShown is how many points a trend has.
const pointsShown = 60

// trend returns the last points of what readers see. Without partitions, they are the revisions that were published one
// after the other.
func trend(ctx context.Context, tx pgx.Tx, org uuid.UUID, d registry.Dataset) ([]Point, error) {
	points := []Point{}
	if d.Version == nil {
		return points, nil
	}
	p, err := Partitioning(d)
	if err != nil {
		return nil, err
	}

	// The primary key has the revisions of a partition in order, idx_partition_versions_published the partitions.
	which := "state = 'Published' ORDER BY partition_key DESC"
	if p.Kind == dag.Unpartitioned {
		which = "state IN ('Published', 'Replaced') ORDER BY partition_key DESC, revision DESC"
	}
	rows, err := tx.Query(ctx, `
		SELECT partition_key, revision, materialized_at, row_count, bytes, NULL::bigint FROM partition_versions
		WHERE org_id = $1 AND dataset_version = $2 AND `+which+` LIMIT $3`, org, *d.Version, pointsShown)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Point])
	if err != nil {
		return nil, err
	}

	slices.Reverse(found)
	for i := range found {
		if _, end, err := p.Bounds(found[i].Partition); p.Kind == dag.ByTime && err == nil {
			delay := int64(found[i].At.Sub(end).Seconds())
			found[i].Delay = &delay
		}
	}
	return append(points, found...), nil
}

// Partitioning returns how a dataset is partitioned.
func Partitioning(d registry.Dataset) (p dag.Partitioning, err error) {
	if len(d.PartitionBy) == 0 {
		return p, nil
	}
	if err := json.Unmarshal(d.PartitionBy, &p); err != nil {
		return p, fmt.Errorf("partitioning of %s: %w", d.Name, err)
	}
	return p, nil
}

// Trend returns the last points of a dataset, by its name or id.
func (c *Catalog) Trend(ctx context.Context, caller authz.Caller, name string) (points []Point, err error) {
	d, err := c.Dataset(ctx, caller, name)
	if err != nil {
		return nil, err
	}
	err = pg.InOrgTx(ctx, c.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		points, err = trend(ctx, tx, caller.OrgID, d)
		return err
	})
	return points, err
}
