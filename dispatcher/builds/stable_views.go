package builds

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// Prepared is what was done and found out for a swap before its lock: about the views over Postgres storage that it
// concerns, and the rows that it shows by itself.
type Prepared struct {
	defined []storage.View      // before the swap, over what serves and what is to serve
	remade  []storage.View      // in the swap: their generations have different columns
	rows    map[revisionOf]bool // whether those of refused revisions are there
}

// viewsOf returns the stable views that a swap to a version concerns.
func (bs *Builds) viewsOf(ctx context.Context, b registry.Build) (all []storage.View, err error) {
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if all, err = bs.deployer.Views(ctx, tx, b); err != nil {
			return err
		}
		all, err = movingViews(ctx, tx, b, all)
		return err
	})
	return all, err
}

// lookAtViews looks now and then whether users' objects will keep a build's swap from changing a view, and fails the
// build then: nobody has to wait for its end to learn of it.
func (bs *Builds) lookAtViews(ctx context.Context, b registry.Build, now time.Time) error {
	bs.holding.Lock()
	next := bs.looks[b.ID]
	bs.holding.Unlock()
	if now.Before(next) {
		return nil
	}
	all, err := bs.viewsOf(ctx, b)
	if err != nil {
		return err
	}

	err = bs.checkViews(ctx, all)
	if fault.Is(err, fault.Conflict) {
		return bs.failBuild(ctx, b, err.Error(), now)
	}
	if err != nil {
		return err
	}
	bs.holding.Lock()
	defer bs.holding.Unlock()
	bs.looks[b.ID] = now.Add(lookEach)
	return nil
}

// lookEach is how often a build looks whether its views can change.
const lookEach = 15 * time.Second

// checkViews returns why users' objects keep views from showing their first generations alone.
func (bs *Builds) checkViews(ctx context.Context, views []storage.View) error {
	return pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, v := range views {
			v.Generations, v.Beside = v.Generations[:1], nil
			if err := bs.storage.CheckView(ctx, tx, v); err != nil {
				return err
			}
		}
		return nil
	})
}

// defineViews makes the stable views of published Postgres tables read the new generation once the pointer moves to it.
// One that cannot show two generations, because their columns differ, is left to the swap; it is refused here already
// where users' objects would keep the swap from it.
func (bs *Builds) defineViews(ctx context.Context, b registry.Build) (views Prepared, err error) {
	all, err := bs.viewsOf(ctx, b)
	if err != nil {
		return views, err
	}

	for _, v := range all {
		err := bs.storage.EnsureView(ctx, v)
		if errors.Is(err, storage.ErrColumnsDiffer) {
			views.remade = append(views.remade, v)
			continue
		}
		if err != nil {
			return views, err
		}
		views.defined = append(views.defined, v)
	}

	return views, bs.checkViews(ctx, views.remade)
}

// ReplaceViews replaces, at the end of a swap, the views that could not show two generations, and those whose
// generation got its first rows, or was left out by gc, after they were defined.
func (bs *Builds) ReplaceViews(ctx context.Context, tx pgx.Tx, views Prepared) error {
	uncovered, err := bs.storage.Uncovered(ctx, tx, views.defined)
	if err != nil {
		return err
	}
	for _, v := range append(uncovered, views.remade...) {
		v.Generations, v.Beside = v.Generations[:1], nil
		if err := bs.storage.ReplaceView(ctx, tx, v); err != nil {
			return err
		}
	}
	return nil
}

// movingViews adds to the views of a version what it takes for names to move between DAGs by pointers alone: to the
// view of a name that it takes over, the other DAG's generation, and the view of a name that it gives back.
func movingViews(ctx context.Context, tx pgx.Tx, b registry.Build, views []storage.View) ([]storage.View, error) {
	moves, err := deploy.Handovers(ctx, tx, b)
	if err != nil {
		return nil, err
	}

	for _, m := range moves {
		beside, tabled, err := deploy.Showing(ctx, tx, b.OrgID, m.From, m.Name)
		if err != nil {
			return nil, err
		}
		if m.To != b.DAG {
			view, returned, err := deploy.ReturnedView(ctx, tx, b.OrgID, m)
			if err != nil {
				return nil, err
			}
			if returned {
				views = append(views, view)
			}
		}
		for i := range views {
			if tabled && views[i].Name == m.Name {
				views[i].Beside = append(views[i].Beside, beside)
			}
		}
	}
	return views, nil
}

// CoverViews defines the stable views that readers kept from being defined when their first rows were published. One
// that users' objects keep from being defined answers with an error until somebody changes these.
func (bs *Builds) CoverViews(ctx context.Context, _ time.Time) (more bool, err error) {
	var uncovered []storage.View
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		serving, err := deploy.ServingViews(ctx, tx)
		if err != nil {
			return err
		}
		uncovered, err = bs.storage.Uncovered(ctx, tx, serving)
		return err
	})
	if err != nil {
		return false, err
	}

	var failed []error
	for _, v := range uncovered {
		switch err := bs.storage.EnsureView(ctx, v); {
		case err == nil || fault.Is(err, fault.Unavailable):
		case fault.Is(err, fault.Conflict):
			bs.log.Warn("a stable view cannot be defined", "org", v.OrgSlug, "dag", v.DAG, "dataset", v.Name,
				"error", err)
		default:
			failed = append(failed, err)
		}
	}
	return false, errors.Join(failed...)
}
