package builds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Promote cuts over to a version that is ready, once it has caught up, and to one that is being built as soon as it is
// ready.
func (bs *Builds) Promote(
	ctx context.Context, caller authz.Caller, dagName string, number int, given ...registry.Consent,
) (registry.Version, error) {
	if err := bs.registry.RequireReadableVersion(ctx, caller, dagName, number); err != nil {
		return registry.Version{}, fmt.Errorf("promote %s: %w", dagName, err)
	}
	if bs.promoteAtOnce(ctx, caller, dagName, number, given, clock.Now()) {
		version, err := bs.registry.Version(ctx, caller, dagName, number)
		return version.Version, err
	}

	var b registry.Build
	err := pg.InOrgTx(ctx, bs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := registry.LockDAG(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		before, err := registry.ActiveNumber(ctx, tx, caller.OrgID, dagName)
		if err != nil {
			return err
		}
		if b, err = deploy.Activate(ctx, tx, caller.OrgID, dagName, number, given, clock.Now()); err != nil {
			return err
		}
		if err := registry.TakeAuthority(ctx, tx, caller, b.ID); err != nil {
			return err
		}
		if err := deploy.RefuseMisfits(ctx, tx, b); err != nil {
			return err
		}
		// A version that waits is refused now, and goes on waiting; one that is being built, by its gate.
		if b.Status == registry.Ready {
			if _, err := bs.deployer.Judge(ctx, tx, b, nil, false); err != nil {
				return err
			}
		}
		return auditPromotion(ctx, tx, caller, before, b)
	})
	if err != nil {
		return registry.Version{}, fmt.Errorf("promote %s: %w", dagName, err)
	}

	if b.Status == registry.Ready {
		select {
		case bs.promoted <- b:
		default: // the build loop takes it
		}
	}
	bs.wake.Send(wakeup.Build)
	version, err := bs.registry.Version(ctx, caller, dagName, number)
	return version.Version, err
}

// auditPromotion records which version is to serve, and which one did before.
func auditPromotion(ctx context.Context, tx pgx.Tx, caller authz.Caller, before *int, b registry.Build) error {
	return authz.Audit(ctx, tx, caller, "dag.promote", fmt.Sprintf("%s v%d", b.DAG, b.Number),
		authz.Change{Before: before, After: b.Number})
}

// promoteAtOnce cuts over to a version that is ready and waits, in the transaction that records its promotion. It
// reports false and has changed nothing where work is left, or anything speaks against it: the ordinary way then does
// the work, or says what is wrong.
func (bs *Builds) promoteAtOnce(
	ctx context.Context, caller authz.Caller, dagName string, number int, given []registry.Consent, now time.Time,
) bool {
	if key := (dagKey{caller.OrgID, dagName}); bs.apart.begin(key) {
		defer bs.apart.end(key)
	} else {
		return false
	}
	waits, jobs, err := bs.waiting(ctx, caller.OrgID, dagName, number)
	if err != nil || waits == nil {
		return false
	}
	seen, err := bs.lookIfQuiet(ctx, *waits, jobs)
	if err != nil || seen == nil || !seen.clean() {
		return false
	}

	err = bs.InSwapTx(ctx, *waits, 0, func(ctx context.Context, tx pgx.Tx, ready Prepared) error {
		if err := deploy.LockSwap(ctx, tx, *waits); err != nil {
			return err
		}
		before, err := registry.ActiveNumber(ctx, tx, caller.OrgID, dagName)
		if err != nil {
			return err
		}
		b, err := deploy.Activate(ctx, tx, caller.OrgID, dagName, number, given, now)
		if err != nil {
			return err
		}
		if err := registry.TakeAuthority(ctx, tx, caller, b.ID); err != nil {
			return err
		}
		if unchecked, err := bs.UncheckedOutputs(ctx, tx, b); err != nil || len(unchecked) > 0 {
			return errors.Join(err, errNotAtOnce)
		}
		if moved, _, err := bs.cutoverTx(ctx, tx, b, jobs, seen, ready, now); err != nil || !moved {
			return errors.Join(err, errNotAtOnce)
		}
		return auditPromotion(ctx, tx, caller, before, b)
	})
	if err != nil {
		return false
	}

	bs.log.Info("cut over", "dag", dagName, "version", number)
	bs.wake.All()
	return true
}

var errNotAtOnce = errors.New("there is work to do before the promotion")

// waiting returns a version that is ready and waits for its promotion, with the jobs that it has filled; nil for any
// other, and for one that has to read sources, or take over what live has got, before it serves.
func (bs *Builds) waiting(
	ctx context.Context, org uuid.UUID, dagName string, number int,
) (b *registry.Build, jobs []*registry.Job, err error) {
	err = pg.InOrgTx(ctx, bs.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		if b, err = deploy.Waiting(ctx, tx, org, dagName, number); err != nil || b == nil {
			return err
		}
		if jobs, err = bs.registry.BuildJobs(ctx, tx, b.ID); err != nil {
			return err
		}

		continued, err := deploy.Continued(ctx, tx, *b)
		isSource := func(job *registry.Job) bool { return job.Def.Source != nil }
		if len(continued) > 0 || slices.ContainsFunc(jobs, isSource) {
			b = nil
		}
		jobs = slices.DeleteFunc(jobs, bs.registry.ForwardOnly)
		return err
	})
	return b, jobs, err
}

// AdvancePromoted advances versions that people promote, until ctx ends. The build loop would do it too, but rests
// between its turns, and somebody waits for these.
func (bs *Builds) AdvancePromoted(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-bs.promoted:
			if k := (dagKey{b.OrgID, b.DAG}); bs.apart.begin(k) {
				err := bs.turn(ctx, b, clock.Now())
				bs.apart.end(k)
				if err != nil && ctx.Err() == nil {
					bs.log.Warn("a promotion is left to the build loop", "error", err)
				}
			}
			bs.wake.Send(wakeup.Build)
		}
	}
}
