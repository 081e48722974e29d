package deploy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/workdir"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/storage"
)

// What a forward-only version takes over is read in its own columns. Where these have other types, a plan, a deploy and
// the gate look at the values that they would hold. The look is bounded in time (Config.Misfit) and in bytes.

// maxKeptBytes is how much of a dataset's kept partitions a look may read, in bytes: they may have to come from a
// bucket.
const maxKeptBytes = 256 << 20

// keptPartition is a partition that a generation takes over, where its bytes are now.
type keptPartition struct {
	storage.Partition
	generation uuid.UUID
	bytes      int64
}

// keptFacts looks at what a version that has not served yet keeps of datasets whose columns change.
func (dp *Deployer) keptFacts(
	ctx context.Context, tx pgx.Tx, b registry.Build, live, next contract.Contract,
) (map[uuid.UUID]contract.Kept, error) {
	heirs, err := heirsOf(ctx, tx, b)
	if err != nil || len(heirs) == 0 {
		return nil, err
	}
	was := map[uuid.UUID]contract.Dataset{}
	for _, d := range live.Datasets {
		was[d.ID] = d
	}

	found := map[uuid.UUID]contract.Kept{}
	for _, now := range next.Datasets {
		for _, h := range heirs {
			if h.Version != now.Generation {
				continue
			}
			if found[now.ID], err = dp.keptOf(ctx, tx, h, was[now.ID], now); err != nil {
				return nil, fmt.Errorf("look at the kept partitions of %s: %w", now.Name, err)
			}
		}
	}
	return found, nil
}

// keptOf looks at what one generation keeps. Where its columns stay, or are in a table, there is nothing to look at.
func (dp *Deployer) keptOf(
	ctx context.Context, tx pgx.Tx, h heirOf, was, now contract.Dataset,
) (kept contract.Kept, err error) {
	all, err := keptPartitions(ctx, tx, h)
	kept.Partitions = len(all)
	columns := contract.Recast(was, now)
	if err != nil || len(all) == 0 || len(columns) == 0 || h.Kind != storage.Parquet || dp.registry.Misfit == nil {
		return kept, err
	}
	err = pg.WhileAlive(ctx, tx, func() error { return dp.lookAtKept(ctx, h, all, columns, &kept) })
	return kept, err
}

// lookAtKept looks into the files of kept partitions for values that do not fit the columns as they will be.
func (dp *Deployer) lookAtKept(
	ctx context.Context, h heirOf, all []keptPartition, columns []dag.Column, kept *contract.Kept,
) error {
	dir, err := workdir.Make("", workdir.Temporary)
	if err != nil {
		return err
	}
	defer dir.Remove()

	var parts [][]string
	size := int64(0)
	for i, p := range all {
		if size += p.bytes; size > maxKeptBytes {
			break
		}
		g := h.Generation
		g.Version = p.generation
		own := filepath.Join(dir.Path, fmt.Sprint(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		files, err := dp.storage.Open(ctx, g, []storage.Partition{p.Partition}, own)
		if err != nil {
			return err
		}
		parts = append(parts, files[0])
	}
	next := make([]relations.Column, len(columns))
	for i, c := range columns {
		next[i] = relations.Column{Name: c.Name, Type: c.Type}
	}
	misfit, looked, err := dp.registry.Misfit(ctx, h.OrgID.String(), parts, next)
	kept.Looked = looked
	if misfit != nil {
		kept.Misfit = &contract.Misfit{Partition: all[misfit.Part].Key, Column: misfit.Column.Name,
			Type: misfit.Column.Type, Value: misfit.Value}
	}
	return err
}

// keptPartitions returns what a generation takes over, by key. The bytes of what it has not taken yet are its
// original's.
func keptPartitions(ctx context.Context, tx pgx.Tx, h heirOf) ([]keptPartition, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.partition_key, r.revision, CASE r.state WHEN 'Published' THEN r.dataset_version ELSE o.dataset_version END,
		       CASE r.state WHEN 'Published' THEN r.files ELSE o.files END, r.bytes
		FROM partition_versions r
		LEFT JOIN partition_versions o ON o.dataset_version = $2 AND o.partition_key = r.partition_key AND o.revision = r.revision
			AND o.state IN ('Published', 'Replaced') AND o.location <> '' AND o.purged_at IS NULL
		WHERE r.dataset_version = $1 AND r.inherited_from IS NOT NULL
		  AND (r.state = 'Published' OR r.state = 'Held' AND o.revision IS NOT NULL)
		ORDER BY r.partition_key`, h.Version, h.from)
	if err != nil {
		return nil, fmt.Errorf("kept partitions: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p keptPartition, err error) {
		return p, row.Scan(&p.Key, &p.Revision, &p.generation, &p.Files, &p.bytes)
	})
}
