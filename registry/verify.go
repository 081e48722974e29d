package registry

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// LostRevision is a revision whose files do not match its row.
type LostRevision struct {
	Dataset  string    `json:"dataset"`
	DAG      string    `json:"dag"`
	Version  uuid.UUID `json:"dataset_version"`
	Served   bool      `json:"served" doc:"Readers see this dataset version now"`
	Key      string    `json:"partition"`
	Revision int64     `json:"revision"`
	Problem  string    `json:"problem"`
}

// RevisionPosition is the end of a page of revisions.
type RevisionPosition struct {
	Version  uuid.UUID `json:"version"`
	Key      string    `json:"key"`
	Revision int64     `json:"revision"`
}

// VerifyFiles compares up to limit revisions, beginning after a position, with the storage: every file that a revision
// names must exist with its size. It returns the revisions with a problem, how many it checked, and where it ended;
// next is nil after the last revision.
func (r *Registry) VerifyFiles(ctx context.Context, caller authz.Caller, after RevisionPosition,
	limit int) (lost []LostRevision, checked int, next *RevisionPosition, err error) {
	type row struct {
		LostRevision
		held       bool
		generation storage.Generation
		manifest   storage.Manifest
	}

	var found []row
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT d.name, d.producer_dag_name, r.dataset_version,
			       EXISTS (SELECT FROM dataset_pointers p
			           WHERE p.org_id = r.org_id AND p.dataset_version = r.dataset_version),
			       r.partition_key, r.revision, r.state = 'Held', r.location, r.files, org_slug(r.org_id),
			       r.dataset_uuid, g.storage
			FROM partition_versions r
			JOIN dataset_versions g ON g.id = r.dataset_version AND g.purged_at IS NULL
			JOIN datasets d ON d.org_id = r.org_id AND d.id = r.dataset_uuid
			WHERE r.org_id = $1 AND r.state IN ('Published', 'Held')
			  AND (r.dataset_version, r.partition_key, r.revision) > ($2, $3, $4)
			ORDER BY r.dataset_version, r.partition_key, r.revision LIMIT $5`,
			caller.OrgID, after.Version, after.Key, after.Revision, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(rows pgx.CollectableRow) (row, error) {
			v := row{generation: storage.Generation{OrgID: caller.OrgID}}
			var store []byte
			if err := rows.Scan(&v.Dataset, &v.DAG, &v.Version, &v.Served, &v.Key, &v.Revision, &v.held,
				&v.manifest.Location, &v.manifest.Files,
				&v.generation.OrgSlug, &v.generation.Dataset, &store); err != nil {
				return v, err
			}
			return v, SetGeneration(&v.generation, v.Version, store)
		})
		return err
	})

	for _, v := range found {
		if err != nil {
			break
		}
		check := func() error { return r.Storage.VerifyPublished(ctx, v.generation, v.Key, v.Revision, v.manifest) }
		if v.held {
			check = func() error { return r.Storage.Verify(ctx, v.manifest) }
		}
		switch e := check(); {
		case fault.Is(e, fault.NotFound), fault.Is(e, fault.Invalid):
			v.Problem = e.Error()
			lost = append(lost, v.LostRevision)
		default:
			err = e
		}
	}
	if err != nil {
		return nil, 0, nil, fmt.Errorf("verify files: %w", err)
	}

	if n := len(found); n == limit {
		next = &RevisionPosition{found[n-1].Version, found[n-1].Key, found[n-1].Revision}
	}
	return lost, len(found), next, nil
}
