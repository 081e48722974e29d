package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// SweepExpired removes partitions past the retention of their dataset. It counts from the end of a partition's time
// or, if partitions are not of time, from when the partition was made. A partition that a task works on, or that a
// version in its rollback window shows, stays until a later sweep finds it free.
func (u *Upkeep) SweepExpired(ctx context.Context, now time.Time) error {
	var expired []registry.Expiry
	err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		expired, err = registry.Expired(ctx, tx, now)
		return err
	})
	if err != nil {
		return err
	}

	var failed []error
	for _, e := range expired {
		err := u.expire(ctx, e, now)
		switch {
		case fault.Is(err, fault.Conflict), fault.Is(err, fault.Unavailable):
			u.log.Info("expired partitions stay until they are free", "dag", e.DAG, "dataset", e.Dataset, "reason", err)
		case err != nil:
			failed = append(failed, fmt.Errorf("retention of %s: %w", e.Dataset, err))
		default:
			u.log.Info("expired partitions are gone", "dag", e.DAG, "dataset", e.Dataset)
			failed = append(failed, u.RemoveMarked(ctx, e.OrgID, now))
		}
	}
	return errors.Join(failed...)
}

// expire purges the partitions of one dataset that are still expired under the DAG's lock.
func (u *Upkeep) expire(ctx context.Context, e registry.Expiry, now time.Time) error {
	return pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
			return err
		}
		if err := registry.LockDAGs(ctx, tx, e.OrgID, []string{e.DAG}); err != nil {
			return err
		}

		gone, err := e.Still(ctx, tx, now)
		if err != nil || len(gone) == 0 {
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
}

// shrinkBatch is how many versions shrink under one lock of their DAG, which completions wait for.
const shrinkBatch = 10

// ShrinkVersions shrinks versions that ended longer ago than the retention to their records.
func (u *Upkeep) ShrinkVersions(ctx context.Context, now time.Time) error {
	before := now.Add(-u.KeepVersions)
	for {
		var old []registry.OldVersions
		err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			old, err = registry.FindOldVersions(ctx, tx, before, now, shrinkBatch)
			return err
		})
		if err != nil || len(old) == 0 {
			return err
		}

		var shrunk int64
		for _, o := range old {
			err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := registry.LockDAGs(ctx, tx, o.OrgID, []string{o.DAG}); err != nil {
					return err
				}
				n, err := o.Shrink(ctx, tx, before, now)
				shrunk += n
				return err
			})
			if err != nil {
				return err
			}
		}
		if shrunk == 0 {
			return nil // they are in use again by now
		}
	}
}
