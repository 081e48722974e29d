package upkeep

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

const kindExpire = "expiry"

// expiring is the work of removing the partitions of an org that are past the retention of their dataset. It counts
// from the end of a partition's time or, if partitions are not of time, from when the partition was made. A partition
// that a task works on, or that a version in its rollback window shows, stays until a later pass finds it free. The
// position is the dataset that was done last.
func (u *Upkeep) expiring() workitems.Kind {
	return workitems.Kind{
		Name: kindExpire,
		Begin: func(ctx context.Context, object string, now time.Time) (workitems.Step, error) {
			org, err := uuid.Parse(object)
			if err != nil {
				return nil, err
			}
			var all []registry.Expiry
			err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
				all, err = registry.Expiries(ctx, tx, org)
				return err
			})
			return func(ctx context.Context, position string) (workitems.Progress, error) {
				return u.expireNext(ctx, all, position, now)
			}, err
		},
	}
}

// expireNext removes the oldest expired partitions of the dataset that comes after a position. The pass goes on behind
// one that fails, which the log and the next pass get again.
func (u *Upkeep) expireNext(
	ctx context.Context, all []registry.Expiry, position string, now time.Time,
) (done workitems.Progress, err error) {
	after, err := idAt(position)
	if err != nil {
		return done, err
	}
	i := behind(all, after, func(e registry.Expiry, id uuid.UUID) int { return slices.Compare(e.Version[:], id[:]) })
	if i == len(all) {
		return workitems.Progress{Gone: true}, nil
	}

	e := all[i]
	n, err := u.expire(ctx, e, now)
	if err == nil && n > 0 {
		u.log.Info("expired partitions are gone", "dag", e.DAG, "dataset", e.Dataset, "partitions", n)
		err = u.RemoveMarked(ctx, e.OrgID, now)
	}
	switch {
	case ctx.Err() != nil:
		return done, err
	case fault.Is(err, fault.Conflict), fault.Is(err, fault.Unavailable):
		u.log.Info("expired partitions stay until they are free", "dag", e.DAG, "dataset", e.Dataset, "reason", err)
	case err != nil:
		u.log.Error("retention failed, will try again", "dag", e.DAG, "dataset", e.Dataset, "error", err)
	case n == registry.ExpireAtOnce: // there may be more
		return workitems.Progress{Position: position, Rows: int64(n)}, nil
	}
	return workitems.Progress{Position: e.Version.String(), Rows: int64(n)}, nil
}

// expire purges the oldest partitions of a dataset that are expired under the DAG's lock, and returns their number.
func (u *Upkeep) expire(ctx context.Context, e registry.Expiry, now time.Time) (n int, err error) {
	err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := tasks.LockDAGBriefly(ctx, tx, e.OrgID, e.DAG); err != nil {
			return err
		}

		gone, err := e.Past(ctx, tx, now)
		n = len(gone)
		if err != nil || n == 0 {
			return err
		}

		if err := registry.RefusePurge(ctx, tx, e.OrgID, gone, false, now); err != nil {
			return err
		}
		if err := refuseWhileRunning(ctx, tx, e.OrgID, gone); err != nil {
			return err
		}
		_, err = registry.Purge(ctx, tx, e.OrgID, gone, now)
		return err
	})
	return n, err
}

// shrinkBatch is how many versions shrink under one lock of their DAG, which completions wait for.
const shrinkBatch = 10

// shrinkVersions returns a step that shrinks some versions which ended before a time to their records.
func (u *Upkeep) shrinkVersions(before, now time.Time) workitems.Step {
	return func(ctx context.Context, _ string) (done workitems.Progress, err error) {
		var old []registry.OldVersions
		err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			old, err = registry.FindOldVersions(ctx, tx, before, now, shrinkBatch)
			return err
		})
		if err != nil {
			return done, err
		}

		for _, o := range old {
			err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := registry.LockDAGs(ctx, tx, o.OrgID, []string{o.DAG}); err != nil {
					return err
				}
				n, err := o.Shrink(ctx, tx, before, now)
				done.Rows += n
				return err
			})
			if err != nil {
				return done, err
			}
		}
		done.Over = done.Rows == 0 // none is left, or those are in use again by now
		return done, nil
	}
}
