package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// What a forward-only version takes over is what serves when it is deployed. Until it serves itself, which may be much
// later, live goes on: it replaces partitions, gets late ones, and loses those past their retention. So the version is
// compared with live again before it serves, and takes over what has changed. A partition that the version has computed
// by itself since stays.

// heirOf is a generation of a version that continues the one that serves, and what decides what it takes over.
type heirOf struct {
	heir
	dag         string
	partitionBy dag.Partitioning
	bound       string // empty: only what was there at the deploy
}

// InheritAgain records what a build has to take over again because live has changed since, and reports whether it
// recorded anything; Inherit does the rest. With onlyNew, it looks only for partitions that the build lacks. The caller
// holds the DAG's lock, so nothing is committed meanwhile. Partitions that live has purged are purged here, too.
func (dp *Deployer) InheritAgain(ctx context.Context, tx pgx.Tx, b registry.Build, onlyNew bool,
	now time.Time) (again bool, err error) {
	heirs, err := heirsOf(ctx, tx, b)
	if err != nil {
		return false, err
	}
	for _, h := range heirs {
		changed, err := changedSince(ctx, tx, h, onlyNew)
		if err != nil {
			return false, err
		}
		if len(changed) > 0 {
			again = true
			if err := dp.hold(ctx, tx, h.heir, changed); err != nil {
				return false, err
			}
		}

		if onlyNew {
			continue
		}
		if err := purgeInherited(ctx, tx, h, now); err != nil {
			return false, err
		}
	}
	return again, nil
}

// Continues reports whether a version has yet to serve and continues generations that do.
func Continues(ctx context.Context, tx pgx.Tx, b registry.Build) (bool, error) {
	heirs, err := heirsOf(ctx, tx, b)
	return len(heirs) > 0, err
}

// heirsOf returns the generations of a version that continue one that serves and have never served themselves.
func heirsOf(ctx context.Context, tx pgx.Tx, b registry.Build) ([]heirOf, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_slug(g.org_id), g.dataset_uuid, g.id, g.storage, g.continues, j.id, p.output_index, g.partition_by,
		       coalesce(made.forward_from, '')
		FROM dag_version_datasets p
		JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN dag_versions made ON made.id = g.created_by_dag_version
		JOIN dataset_pointers s ON s.org_id = p.org_id AND s.dataset_uuid = p.dataset_uuid AND s.dataset_version = g.continues
		JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		WHERE p.org_id = $1 AND p.dag_version_id = $2 AND NOT EXISTS (
			SELECT FROM dag_version_datasets o
			JOIN dag_versions v ON v.id = o.dag_version_id AND v.activated_at IS NOT NULL
			WHERE o.dataset_version = g.id)
		ORDER BY g.id`, b.OrgID, b.ID)
	if err != nil {
		return nil, fmt.Errorf("find what %s v%d continues: %w", b.DAG, b.Number, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (heirOf, error) {
		h := heirOf{heir: heir{Generation: storage.Generation{OrgID: b.OrgID}}, dag: b.DAG}
		var (
			version            uuid.UUID
			store, partitionBy []byte
		)
		if err := row.Scan(&h.OrgSlug, &h.Dataset, &version, &store, &h.from, &h.job, &h.output, &partitionBy,
			&h.bound); err != nil {
			return h, err
		}
		if err := json.Unmarshal(partitionBy, &h.partitionBy); err != nil {
			return h, err
		}
		return h, registry.SetGeneration(&h.Generation, version, store)
	})
}

// changedSince returns the live revisions that are newer than what a generation took over, and those of partitions
// before the bound that it lacks. It relies on the unique index of published revisions and the primary key.
func changedSince(ctx context.Context, tx pgx.Tx, h heirOf, onlyNew bool) (map[string]heldRevision, error) {
	rows, err := tx.Query(ctx, `
		SELECT l.partition_key, l.revision, l.task_id, l.attempt, n.revision IS NULL
		FROM partition_versions l
		LEFT JOIN LATERAL (
			SELECT r.revision, r.inherited_from FROM partition_versions r
			WHERE r.dataset_version = $2 AND r.partition_key = l.partition_key
			ORDER BY r.revision DESC LIMIT 1) AS n ON true
		WHERE l.dataset_version = $1 AND l.state = 'Published'
		  AND (n.revision IS NULL OR NOT $3 AND n.inherited_from IS NOT NULL AND n.revision < l.revision)`,
		h.from, h.Version, onlyNew)
	if err != nil {
		return nil, fmt.Errorf("what has changed since %s was continued: %w", h.from, err)
	}

	changed := map[string]heldRevision{}
	var (
		key     string
		r       heldRevision
		missing bool
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &r.revision, &r.task, &r.attempt, &missing}, func() error {
		if missing {
			if h.bound == "" || h.partitionBy.Kind == dag.ByCursor {
				return nil
			}
			if before, err := h.partitionBy.Precedes(key, h.bound); err != nil || !before {
				return err
			}
		}
		changed[key] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("what has changed since %s was continued: %w", h.from, err)
	}
	return changed, nil
}

// purgeInherited purges what a generation took over and live has purged since.
func purgeInherited(ctx context.Context, tx pgx.Tx, h heirOf, now time.Time) error {
	rows, err := tx.Query(ctx, `
		SELECT r.partition_key FROM partition_versions r
		WHERE r.dataset_version = $2 AND r.state = 'Published' AND r.inherited_from IS NOT NULL
		  AND NOT EXISTS (SELECT FROM partition_versions l WHERE l.dataset_version = $1
		                  AND l.partition_key = r.partition_key AND l.state = 'Published')
		  AND EXISTS (SELECT FROM partition_versions l WHERE l.dataset_version = $1
		              AND l.partition_key = r.partition_key AND l.state = 'Purged' AND l.revision >= r.revision)`,
		h.from, h.Version)
	if err != nil {
		return fmt.Errorf("what was purged since %s was continued: %w", h.from, err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(keys) == 0 {
		return err
	}

	gone := make([]registry.PurgedPartition, len(keys))
	for i, key := range keys {
		// Live, so that the generation is not marked as purged.
		gone[i] = registry.PurgedPartition{DAG: h.dag, Version: h.Version, Key: key, Live: true}
	}
	_, err = registry.Purge(ctx, tx, h.OrgID, gone, now)
	return err
}
