package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
)

// ReadableNames returns the names of those datasets that the caller may read.
func (r *Registry) ReadableNames(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	datasets []uuid.UUID) (map[uuid.UUID]string, error) {
	known, err := r.producers(ctx, tx, caller, datasets)
	if err != nil {
		return nil, err
	}
	names := map[uuid.UUID]string{}
	for id, p := range known {
		if p.readable != "" {
			names[id] = p.readable
		}
	}
	return names, nil
}

// DatasetByName finds one catalogue entry in the caller's transaction and marks it if it is late; see Dataset.
func (r *Registry) DatasetByName(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string,
	now time.Time) (Dataset, error) {
	found, err := r.FindDataset(ctx, tx, caller, name)
	if err != nil {
		return Dataset{}, err
	}
	one := []Dataset{found}
	err = MarkLate(ctx, tx, caller.OrgID, one, now)
	return one[0], err
}

// NamesIn returns the number of a version, and what datasets are called while it serves: those that are not its own by
// their present names.
func NamesIn(ctx context.Context, tx pgx.Tx, org, version uuid.UUID, datasets []uuid.UUID) (
	number int, names map[uuid.UUID]string, err error) {
	err = tx.QueryRow(ctx, `SELECT number FROM dag_versions WHERE org_id = $1 AND id = $2`, org, version).Scan(&number)
	if err != nil {
		return 0, nil, fmt.Errorf("number of version %s: %w", version, err)
	}

	rows, err := tx.Query(ctx, `
		SELECT d.id, coalesce(p.name, d.name)
		FROM datasets d LEFT JOIN dag_version_datasets p ON p.dag_version_id = $2 AND p.dataset_uuid = d.id
		WHERE d.org_id = $1 AND d.id = ANY($3)`, org, version, datasets)
	if err != nil {
		return 0, nil, fmt.Errorf("names of %d datasets: %w", len(datasets), err)
	}
	names = make(map[uuid.UUID]string, len(datasets))
	var (
		id   uuid.UUID
		name string
	)
	if _, err = pgx.ForEachRow(rows, []any{&id, &name}, func() error { names[id] = name; return nil }); err != nil {
		return 0, nil, fmt.Errorf("names of %d datasets: %w", len(datasets), err)
	}
	return number, names, nil
}
