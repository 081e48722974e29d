package registry

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/storage"
)

// Views are the stable views that a version's published datasets in Postgres storage are read through, each over the
// version's own generation, first, and the one that serves now.
func (r *Registry) Views(ctx context.Context, tx pgx.Tx, b Build) ([]storage.View, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_slug(p.org_id), p.dataset_uuid, p.published_name,
		       array_remove(ARRAY[p.dataset_version, CASE WHEN s.dataset_version <> p.dataset_version THEN s.dataset_version END], NULL)
		FROM dag_version_datasets p
		JOIN dataset_versions g ON g.id = p.dataset_version AND g.storage ->> 'kind' = 'postgres'
		LEFT JOIN (dataset_pointers s JOIN dataset_versions sg ON sg.id = s.dataset_version AND sg.storage ->> 'kind' = 'postgres')
		     ON s.org_id = p.org_id AND s.dataset_uuid = p.dataset_uuid
		WHERE p.org_id = $1 AND p.dag_version_id = $2 AND p.published_name IS NOT NULL`, b.OrgID, b.ID)
	if err != nil {
		return nil, fmt.Errorf("views of %s v%d: %w", b.DAG, b.Number, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (storage.View, error) {
		v := storage.View{OrgID: b.OrgID, DAG: b.DAG}
		err := row.Scan(&v.OrgSlug, &v.Dataset, &v.Name, &v.Generations)
		return v, err
	})
}
