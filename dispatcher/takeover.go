package dispatcher

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// movingViews tells which published names a cutover moves between DAGs, and returns the views of those that it gives back,
// as the DAG that gets them makes them.
func (d *Dispatcher) movingViews(ctx context.Context, tx pgx.Tx, b registry.Build) (back []storage.View, moving map[string]bool, err error) {
	moves, err := registry.Handovers(ctx, tx, b)
	if err != nil {
		return nil, nil, err
	}
	moving = map[string]bool{}
	for _, m := range moves {
		moving[m.Name] = true
		if m.To == b.DAG {
			continue
		}
		view, tabled, err := registry.ReturnedView(ctx, tx, b.OrgID, m)
		if err != nil {
			return nil, nil, err
		}
		if tabled {
			back = append(back, view)
		}
	}
	return back, moving, nil
}
