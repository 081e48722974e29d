package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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

// Outdated lists the partitions that a build has to take over again because live has changed since, by the generations
// of the build. With onlyNew, it lists only those that the build lacks.
func Outdated(ctx context.Context, tx pgx.Tx, b registry.Build, onlyNew bool) ([]registry.Ref, error) {
	return outdated(ctx, tx, b, onlyNew, func(heirOf) ([]string, bool) { return nil, true })
}

// OutdatedAmong is like Outdated for some partitions, which may be named by the build's generations or by live ones.
func OutdatedAmong(
	ctx context.Context, tx pgx.Tx, b registry.Build, some []registry.Ref,
) ([]registry.Ref, error) {
	if len(some) == 0 {
		return nil, nil
	}
	return outdated(ctx, tx, b, false, func(h heirOf) ([]string, bool) { return h.keys(some), false })
}

func outdated(
	ctx context.Context, tx pgx.Tx, b registry.Build, onlyNew bool, which func(heirOf) (keys []string, all bool),
) (found []registry.Ref, err error) {
	heirs, err := heirsOf(ctx, tx, b)
	if err != nil {
		return nil, err
	}

	for _, h := range heirs {
		keys, all := which(h)
		if !all && len(keys) == 0 {
			continue
		}
		changed, err := changedSince(ctx, tx, h, onlyNew, keys)
		if err != nil {
			return nil, err
		}

		again := slices.Collect(maps.Keys(changed))
		if !onlyNew {
			purged, err := purgedSince(ctx, tx, h, keys)
			if err != nil {
				return nil, err
			}
			again = append(again, purged...)
		}
		slices.Sort(again)
		for _, key := range again {
			found = append(found, registry.Ref{Version: h.Version, Key: key})
		}
	}
	return found, nil
}

// keys returns those of some partitions that belong to a generation or to the one that it continues.
func (h heirOf) keys(some []registry.Ref) (keys []string) {
	for _, r := range some {
		if r.Version == h.Version || r.Version == h.from {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// InheritAgain records which of some outdated partitions a build has to take over again, and reports whether it
// recorded any; Inherit does the rest. The caller holds the DAG's lock, so nothing is committed meanwhile. With
// onlyNew, it heeds only those that the build lacks; without, partitions that live has purged are purged here, too.
func (dp *Deployer) InheritAgain(ctx context.Context, tx pgx.Tx, b registry.Build, some []registry.Ref, onlyNew bool,
	now time.Time) (again bool, err error) {
	if len(some) == 0 {
		return false, nil
	}
	heirs, err := heirsOf(ctx, tx, b)
	if err != nil {
		return false, err
	}
	for _, h := range heirs {
		keys := h.keys(some)
		if len(keys) == 0 {
			continue
		}
		changed, err := changedSince(ctx, tx, h, onlyNew, keys)
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
		purged, err := purgedSince(ctx, tx, h, keys)
		if err != nil {
			return false, err
		}
		if err := h.purge(ctx, tx, purged, now); err != nil {
			return false, err
		}
	}
	return again, nil
}

// Continued lists the generations of a version that has yet to serve which continue others, with those others.
func Continued(ctx context.Context, tx pgx.Tx, b registry.Build) ([]uuid.UUID, error) {
	heirs, err := heirsOf(ctx, tx, b)
	var all []uuid.UUID
	for _, h := range heirs {
		all = append(all, h.Version, h.from)
	}
	return all, err
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

// among selects rows of partition_versions: of all partitions, or of those whose keys are the last argument.
func among(alias string, keys []string, args ...any) (from string, all []any) {
	if keys == nil {
		return "partition_versions " + alias, args
	}
	return fmt.Sprintf("unnest($%d::text[]) AS k(key) JOIN partition_versions %s ON %s.partition_key = k.key",
		len(args)+1, alias, alias), append(args, keys)
}

// changedSince returns the live revisions that are newer than what a generation took over, and those of partitions
// before the bound that it lacks, of all partitions or of some. It relies on the unique index of published revisions
// and the primary key.
func changedSince(
	ctx context.Context, tx pgx.Tx, h heirOf, onlyNew bool, keys []string,
) (map[string]heldRevision, error) {
	from, args := among("l", keys, h.from, h.Version, onlyNew)
	rows, err := tx.Query(ctx, `
		SELECT l.partition_key, l.revision, l.task_id, l.attempt, n.revision IS NULL
		FROM `+from+`
		LEFT JOIN LATERAL (
			SELECT r.revision, r.inherited_from FROM partition_versions r
			WHERE r.dataset_version = $2 AND r.partition_key = l.partition_key
			ORDER BY r.revision DESC LIMIT 1) AS n ON true
		WHERE l.dataset_version = $1 AND l.state = 'Published'
		  AND (n.revision IS NULL OR NOT $3 AND n.inherited_from IS NOT NULL AND n.revision < l.revision)`, args...)
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

// purgedSince returns which of all partitions, or of some, a generation took over and live has purged since.
func purgedSince(ctx context.Context, tx pgx.Tx, h heirOf, keys []string) ([]string, error) {
	from, args := among("r", keys, h.from, h.Version)
	rows, err := tx.Query(ctx, `
		SELECT r.partition_key FROM `+from+`
		WHERE r.dataset_version = $2 AND r.state = 'Published' AND r.inherited_from IS NOT NULL
		  AND NOT EXISTS (SELECT FROM partition_versions l WHERE l.dataset_version = $1
		                  AND l.partition_key = r.partition_key AND l.state = 'Published')
		  AND EXISTS (SELECT FROM partition_versions l WHERE l.dataset_version = $1
		              AND l.partition_key = r.partition_key AND l.state = 'Purged' AND l.revision >= r.revision)`, args...)
	if err != nil {
		return nil, fmt.Errorf("what was purged since %s was continued: %w", h.from, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// purge purges partitions that a generation took over.
func (h heirOf) purge(ctx context.Context, tx pgx.Tx, keys []string, now time.Time) error {
	if len(keys) == 0 {
		return nil
	}
	gone := make([]registry.PurgedPartition, len(keys))
	for i, key := range keys {
		gone[i] = registry.PurgedPartition{DAG: h.dag, Version: h.Version, Key: key}
	}
	_, err := registry.Purge(ctx, tx, h.OrgID, gone, now)
	return err
}
