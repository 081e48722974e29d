package registry

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
)

// ReadableNames tells the names of those among the datasets that the caller may read; the others are absent.
func (r *Registry) ReadableNames(ctx context.Context, tx pgx.Tx, caller authz.Caller, datasets []uuid.UUID) (map[uuid.UUID]string, error) {
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

// DatasetByName finds one catalogue entry, in the caller's transaction, and says whether it is late; see Dataset.
func (r *Registry) DatasetByName(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string, now time.Time) (Dataset, error) {
	found, err := r.dataset(ctx, tx, caller, name)
	if err != nil {
		return Dataset{}, err
	}
	one := []Dataset{found}
	err = markLate(ctx, tx, caller.OrgID, one, now)
	return one[0], err
}
