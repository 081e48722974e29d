package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/storage"
)

// viewMemory is the number of past activations whose generations stay in a view, so that a reader in an older snapshot
// still finds the generation that served then.
const viewMemory = 8

// Views returns the stable views of a version's published datasets in Postgres storage. Each covers the version's own
// generation, which comes first, the one that serves under the same name now, and those that recently did.
func (dp *Deployer) Views(ctx context.Context, tx pgx.Tx, b registry.Build) ([]storage.View, error) {
	rows, err := tx.Query(ctx, `
		WITH served AS (
			SELECT dag_version_id AS id FROM dag_activations WHERE org_id = $1 AND dag_name = $3 ORDER BY at DESC
			  LIMIT $4),
		tabled AS (
			SELECT p.dag_version_id, p.published_name, p.dataset_version
			FROM dag_version_datasets p
			JOIN dataset_versions g ON g.id = p.dataset_version AND g.storage ->> 'kind' = 'postgres'
			  AND g.purged_at IS NULL
			WHERE p.dag_version_id = $2 OR p.dag_version_id IN (SELECT id FROM served))
		SELECT org_slug($1), own.published_name, own.dataset_version || ARRAY(
			SELECT o.dataset_version FROM tabled o
			JOIN dag_current_versions c ON c.org_id = $1 AND c.dag_name = $3 AND c.dag_version_id = o.dag_version_id
			WHERE o.published_name = own.published_name AND o.dataset_version <> own.dataset_version), ARRAY(
			SELECT DISTINCT o.dataset_version FROM tabled o
			WHERE o.published_name = own.published_name AND o.dataset_version <> own.dataset_version
			  AND o.dataset_version NOT IN (
			      SELECT s.dataset_version FROM dag_current_versions c
			      JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
			      WHERE c.org_id = $1 AND c.dag_name = $3 AND s.published_name = own.published_name))
		FROM tabled own WHERE own.dag_version_id = $2 AND own.published_name IS NOT NULL
		ORDER BY own.published_name`, b.OrgID, b.ID, b.DAG, viewMemory)
	if err != nil {
		return nil, fmt.Errorf("views of %s v%d: %w", b.DAG, b.Number, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (storage.View, error) {
		v := storage.View{OrgID: b.OrgID, DAG: b.DAG}
		err := row.Scan(&v.OrgSlug, &v.Name, &v.Generations, &v.Past)
		return v, err
	})
}

// Showing returns the generation in Postgres storage that a DAG serves under a name; false if there is none.
func Showing(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, name string) (storage.Beside, bool, error) {
	shown := storage.Beside{DAG: dagName}
	err := tx.QueryRow(ctx, `
		SELECT g.id FROM dataset_pointers s
		JOIN dataset_versions g ON g.id = s.dataset_version AND g.storage ->> 'kind' = 'postgres' AND g.purged_at IS NULL
		WHERE s.org_id = $1 AND s.dag_name = $2 AND s.published_name = $3`, org, dagName, name).Scan(&shown.Generation)
	if errors.Is(err, pgx.ErrNoRows) {
		return shown, false, nil
	}
	if err != nil {
		return shown, false, fmt.Errorf("view of %s: %w", name, err)
	}
	return shown, true, nil
}

// ServingViews returns the stable views of all orgs, each over the generation that serves.
func ServingViews(ctx context.Context, tx pgx.Tx) ([]storage.View, error) {
	rows, err := tx.Query(ctx, `
		SELECT s.org_id, org_slug(s.org_id), s.dag_name, s.published_name, ARRAY[g.id] FROM dataset_pointers s
		JOIN dataset_versions g ON g.id = s.dataset_version AND g.storage ->> 'kind' = 'postgres' AND g.purged_at IS NULL
		WHERE s.published_name IS NOT NULL`)
	if err != nil {
		return nil, fmt.Errorf("list stable views: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v storage.View, err error) {
		return v, row.Scan(&v.OrgID, &v.OrgSlug, &v.DAG, &v.Name, &v.Generations)
	})
}

// viewsAhead returns what becomes of the stable views of datasets whose columns are known and change. It looks as the
// role that builds change the views as.
func (d *deploy) viewsAhead(ctx context.Context, was, next contract.Contract) (ahead []contract.View, err error) {
	before := make(map[uuid.UUID]contract.Dataset, len(was.Datasets))
	for _, w := range was.Datasets {
		before[w.ID] = w
	}
	tabled := func(c contract.Dataset) bool {
		return c.Published && c.Storage == string(storage.Postgres) && c.Columns != nil
	}
	var changed []contract.Dataset
	for _, n := range next.Datasets {
		w := before[n.ID]
		goes := func(c dag.Column) bool { return !slices.Contains(n.Columns, c) }
		if tabled(w) && tabled(n) && w.Name == n.Name && slices.ContainsFunc(w.Columns, goes) {
			changed = append(changed, n)
		}
	}
	if len(changed) == 0 {
		return nil, nil
	}

	err = pg.InTx(ctx, d.deployer.pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, n := range changed {
			view := storage.View{OrgID: d.caller.OrgID, OrgSlug: d.caller.OrgSlug, DAG: d.doc.Name, Name: n.Name}
			v, err := d.deployer.storage.ViewAhead(ctx, tx, view, stored(before[n.ID].Columns), stored(n.Columns))
			if err != nil {
				return err
			}
			ahead = append(ahead, contract.View{Dataset: n.ID, Name: v.View, Becomes: v.Becomes, Carried: v.Carried,
				Refused: v.Refused})
		}
		return nil
	})
	return ahead, err
}

// stored returns columns as storage has them.
func stored(columns []dag.Column) []storage.Column {
	list := make([]storage.Column, len(columns))
	for i, c := range columns {
		list[i] = storage.Column{Name: c.Name, Type: c.Type}
	}
	return list
}
