package builds

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// movingViews returns the published names that a cutover moves between DAGs. For the names that it gives back to
// another DAG, it also returns that DAG's views of them.
func (bs *Builds) movingViews(
	ctx context.Context, tx pgx.Tx, b registry.Build,
) (back []storage.View, moving map[string]bool, err error) {
	moves, err := deploy.Handovers(ctx, tx, b)
	if err != nil {
		return nil, nil, err
	}

	moving = map[string]bool{}
	for _, m := range moves {
		moving[m.Name] = true
		if m.To == b.DAG {
			continue
		}

		view, tabled, err := deploy.ReturnedView(ctx, tx, b.OrgID, m)
		if err != nil {
			return nil, nil, err
		}
		if tabled {
			back = append(back, view)
		}
	}
	return back, moving, nil
}
