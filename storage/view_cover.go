package storage

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
)

// cover defines the views of a generation that serves under a name and had no table when its version was cut over to,
// in the transaction that publishes rows of it. It asks after every publication, by indexes, because a swap may come
// between the first one and the definition of its views. While readers hold the view for long, or their
// objects keep it from being defined, the publication does not wait: the rows show when the view is defined by a later
// one, or by the loop that looks for such views.
func (t *tables) cover(ctx context.Context, tx pgx.Tx, g Generation) error {
	rows, err := tx.Query(ctx, `
		SELECT c.dag_name, d.published_name
		FROM dag_current_versions c
		JOIN dag_version_datasets d ON d.dag_version_id = c.dag_version_id AND d.dataset_uuid = $2
		  AND d.dataset_version = $3
		JOIN dataset_name_owners o ON o.org_id = c.org_id AND o.name = d.published_name AND o.dataset_uuid = d.dataset_uuid
		WHERE c.org_id = $1 AND NOT EXISTS (
			SELECT FROM pg_depend p
			JOIN pg_rewrite r ON p.classid = 'pg_rewrite'::regclass AND r.oid = p.objid
			JOIN pg_class v ON v.oid = r.ev_class AND v.relnamespace = to_regnamespace($4)
			WHERE p.refclassid = 'pg_class'::regclass AND p.refobjid = to_regclass($5))`,
		g.OrgID, g.Dataset, g.Version, "data_"+g.OrgSlug, "data_"+g.OrgSlug+"."+tableName(g.Version))
	if err != nil {
		return fmt.Errorf("views of generation %s: %w", g.Version, err)
	}
	views, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (View, error) {
		v := View{OrgID: g.OrgID, OrgSlug: g.OrgSlug, Generations: []uuid.UUID{g.Version}}
		return v, row.Scan(&v.DAG, &v.Name)
	})
	if err != nil {
		return fmt.Errorf("views of generation %s: %w", g.Version, err)
	}

	for _, v := range views {
		for range coverTries {
			if err = t.ensureView(ctx, tx, v); !fault.Is(err, fault.Unavailable) {
				break
			}
		}
		if err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Conflict) {
			return err
		}
	}
	return nil
}

// coverTries is how often a publication tries to lock a view.
const coverTries = 20
