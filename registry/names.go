package registry

import (
	"context"
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
