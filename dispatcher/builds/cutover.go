package builds

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// cutover makes a version ready and, unless it is to wait for a promotion, lets it serve: it moves pointers, names and
// sources, and ends the tasks that are no longer wanted, in one transaction under the DAG's lock. The views over
// Postgres storage, which readers use, are defined before. An error that would come again fails the version. It reports
// whether there is more to inherit first.
func (bs *Builds) cutover(
	ctx context.Context, b registry.Build, jobs []*registry.Job, seen *look, now time.Time,
) (inherits bool, err error) {
	if seen, err = bs.lookOnceMore(ctx, b, jobs, seen); err != nil {
		return false, err
	}
	moved := false
	err = bs.InSwapTx(ctx, b, cutoverPatience, func(ctx context.Context, tx pgx.Tx, ready Prepared) (err error) {
		moved, inherits, err = bs.cutoverTx(ctx, tx, b, jobs, seen, ready, now)
		return err
	})

	if fault.Is(err, fault.Conflict) || pg.Lasting(err) {
		return false, bs.failBuild(ctx, b, fault.Text(err), now)
	}
	if err != nil || !moved {
		return inherits, err
	}
	bs.log.Info("cut over", "dag", b.DAG, "version", b.Number)
	bs.wake.All()
	return false, nil
}

// cutoverTx asks the gate once more, under the lock, and then makes the version ready and swaps it in.
func (bs *Builds) cutoverTx(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, seen *look, ready Prepared,
	now time.Time,
) (moved, inherits bool, err error) {
	if err := deploy.LockSwap(ctx, tx, b); err != nil {
		return false, false, err
	}
	if inWork, err := deploy.InWork(ctx, tx, b); err != nil || !inWork {
		return false, false, err // it was abandoned or replaced since the gate looked, and its tasks were canceled
	}
	if passing, err := deploy.Passing(ctx, tx, b); err != nil || passing {
		return false, false, err
	}

	// From here on nothing of the DAG is committed: what the gate saw before may be out of date.
	p, again, err := bs.beginProgress(ctx, tx, b, jobs, seen)
	if err != nil || again {
		return false, false, err
	}
	promise, err := bs.stillReady(ctx, tx, b, jobs, p, now)
	if err != nil || promise == nil {
		return false, p.inherits, err
	}
	if b.Status == registry.Building {
		if changed, err := deploy.MarkReady(ctx, tx, b, *promise, now); err != nil || !changed {
			return false, false, err
		}
	}
	if b.Activate, err = deploy.ServesByItself(ctx, tx, b); err != nil || !b.Activate {
		return false, false, err // perhaps somebody rolled back since the build was listed
	}

	reason := deploy.ByDeploy
	if b.Status == registry.Ready {
		reason = deploy.ByPromote
	}
	moved, err = bs.Swap(ctx, tx, b, reason, b.CreatedBy, ready, now)
	return moved, false, err
}

// lookOnceMore brings a look up to date before the lock is taken, so that little is left to look at under it. One that
// was just taken leaves little anyway.
func (bs *Builds) lookOnceMore(
	ctx context.Context, b registry.Build, jobs []*registry.Job, seen *look,
) (now *look, err error) {
	if seen != nil && time.Since(seen.began) < bs.FreshLook {
		return seen, nil
	}
	if seen != nil {
		err = pg.InOrgSnapshot(ctx, bs.pool, b.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			now, err = bs.since(ctx, tx, b, jobs, seen)
			return err
		})
	}
	if err == nil && now != nil && bs.AfterLook != nil {
		bs.AfterLook()
	}

	if err != nil || now != nil {
		return now, err
	}
	return bs.lookAtAll(ctx, b, jobs)
}

// stillReady returns the contract of a build whose gate is open under the lock, and nil where it is not: the build has
// made tasks, or waits for some, or has to take over again what live has replaced; that is done without the lock. It
// refuses a build that has come as far as it can and that readers would lose partitions by.
func (bs *Builds) stillReady(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) (*contract.Contract, error) {
	if err := bs.confirm(ctx, tx, b, jobs, p.seen); err != nil {
		return nil, err
	}
	if err := bs.reconcileBuild(ctx, tx, b, jobs, p, now); err != nil {
		return nil, err
	}

	if p.Open {
		if _, err := bs.CatchesUp(ctx, tx, b, jobs, p); err != nil {
			return nil, err
		}
	}
	if ready, _ := Gate(*p); !ready {
		bs.wake.Send(wakeup.Claim)
		return nil, nil
	}

	err := bs.lookOnce(ctx, tx, b, jobs, p)
	if err != nil {
		return nil, err
	}
	if p.inherits, err = bs.deployer.InheritAgain(ctx, tx, b, p.seen.outdated, false, now); err != nil || p.inherits {
		return nil, err
	}
	lost, err := bs.removals(ctx, tx, b, jobs, p.seen.lost)
	if err != nil {
		return nil, err
	}
	promise, err := bs.deployer.Judge(ctx, tx, b, withoutTargets(lost, p.unfinished), false)
	if err != nil {
		return nil, err
	}
	return &promise, nil
}

// cutoverPatience is how long one turn of the build loop tries a cutover that gives way to readers; the next turns try
// it again.
const cutoverPatience = time.Second

// InSwapTx prepares the swap of a version and runs its transaction. It repeats both, with growing waits, while
// readers hold a view that has to change: others queue behind a swap that waits for them, so it waits between its tries
// and only briefly in them.
func (bs *Builds) InSwapTx(
	ctx context.Context, b registry.Build, patience time.Duration,
	swap func(ctx context.Context, tx pgx.Tx, ready Prepared) error,
) error {
	began := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 4*time.Second) {
		ready, err := bs.prepare(ctx, b)
		if err == nil {
			err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
					return err
				}
				return swap(ctx, tx, ready)
			})
		}
		if !fault.Is(err, fault.Unavailable) || time.Since(began)+wait > patience {
			return err
		}

		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// prepare defines the views of a version, and asks the storage for rows that its swap will show by itself.
func (bs *Builds) prepare(ctx context.Context, b registry.Build) (Prepared, error) {
	ready, err := bs.defineViews(ctx, b)
	if err == nil {
		ready.rows, err = bs.findRows(ctx, b)
	}
	return ready, err
}

// Swap is what every cutover and rollback does in its one transaction: it moves the pointers and names, makes the
// sources those of the version, ends open tasks that are no longer wanted, shows what only checks of the other version
// refused, and replaces the views that could not show two generations at once.
func (bs *Builds) Swap(
	ctx context.Context, tx pgx.Tx, b registry.Build, reason, actor string, ready Prepared, now time.Time,
) (bool, error) {
	began := time.Now()
	pointers, err := deploy.PointersToMove(ctx, tx, b)
	if err != nil {
		return false, err
	}
	queues, err := queueMoves(ctx, tx, b)
	if err != nil {
		return false, err
	}
	before, err := bs.registry.ServingJobs(ctx, tx, b.OrgID, b.DAG)
	if err != nil {
		return false, err
	}

	moved, err := deploy.Cutover(ctx, tx, b, reason, actor, now)
	if err != nil || !moved {
		return false, err
	}
	jobs, err := bs.registry.VersionJobs(ctx, tx, b.ID)
	if err != nil {
		return false, err
	}
	if err := carryNames(ctx, tx, b, deploy.Renamings(before, jobs)); err != nil {
		return false, err
	}
	for _, m := range queues {
		if err := bs.carryQueue(ctx, tx, m, now); err != nil {
			return false, err
		}
	}
	carried, err := deploy.CarryInputs(ctx, tx, b, reason == deploy.ByRollback)
	if err != nil {
		return false, err
	}
	if err := stale.CarryEffects(ctx, tx, b.OrgID, pointers, now); err != nil {
		return false, err
	}
	if err := stale.BeginEffects(ctx, tx, b, now); err != nil {
		return false, err
	}

	if err := bs.sources.Sync(ctx, tx, b, jobs, reason, now); err != nil {
		return false, err
	}
	if err := bs.CancelUnused(ctx, tx, b.OrgID, b.DAG, tasks.ReasonSuperseded, now); err != nil {
		return false, err
	}
	if err := bs.EndUnwanted(ctx, tx, b.OrgID, b.DAG, b.ID, now); err != nil {
		return false, err
	}
	if err := bs.judgeRefused(ctx, tx, before, jobs, ready.rows, now); err != nil {
		return false, err
	}
	if err := tellReaders(ctx, tx, b, carried, now); err != nil {
		return false, err
	}
	if err := bs.ReplaceViews(ctx, tx, ready); err != nil {
		return false, err
	}

	pg.AfterCommit(ctx, func() { bs.metrics.Cutovers.Observe(time.Since(began).Seconds()) })
	return true, nil
}

// namedTables hold what belongs to a job by its name, and whether a job has one row of a key.
var namedTables = []struct {
	name  string
	keyed bool
}{{"pauses", true}, {"sources", true}, {"effect_positions", true}, {"scheduled_events", false}}

// carryNames gives jobs their tasks under the names that they have now, and renamed ones what they had under the old
// names: pauses, states of sources, how far they have acted, timers. Two jobs may swap their names, so the rows of all
// leave the old names first.
func carryNames(ctx context.Context, tx pgx.Tx, b registry.Build, renamed []deploy.Renaming) error {
	if err := deploy.CarryNames(ctx, tx, b); err != nil || len(renamed) == 0 {
		return err
	}
	from, between, to := make([]string, len(renamed)), make([]string, len(renamed)), make([]string, len(renamed))
	for i, r := range renamed {
		from[i], between[i], to[i] = r.From, "~~"+r.From, r.To // no job has such a name
	}

	for _, table := range namedTables {
		moved := `UPDATE ` + table.name + ` t SET job_name = r.new FROM unnest($3::text[], $4::text[]) AS r(old, new)
			WHERE t.org_id = $1 AND t.dag_name = $2 AND t.job_name = r.old`
		_, err := tx.Exec(ctx, moved, b.OrgID, b.DAG, from, between)
		if err == nil && table.keyed { // what is left there belongs to no job
			_, err = tx.Exec(ctx, `DELETE FROM `+table.name+` t USING unnest($3::text[], $4::text[]) AS r(old, new)
				WHERE t.org_id = $1 AND t.dag_name = $2 AND t.job_name = r.new AND EXISTS (
					SELECT FROM `+table.name+` m WHERE m.org_id = $1 AND m.dag_name = $2 AND m.job_name = r.old)`,
				b.OrgID, b.DAG, between, to)
		}
		if err == nil {
			_, err = tx.Exec(ctx, moved, b.OrgID, b.DAG, between, to)
		}
		if err != nil {
			return fmt.Errorf("carry the %s of renamed jobs of %s: %w", table.name, b.DAG, err)
		}
	}
	return nil
}

// tellReaders makes the router compare the jobs of other DAGs that read this one's datasets, and this DAG's reused
// jobs, with the generations that they see from now on. They follow in place; the outbox row ensures that whatever
// crashes.
func tellReaders(ctx context.Context, tx pgx.Tx, b registry.Build, carried []uuid.UUID, now time.Time) error {
	generations, err := deploy.ReadElsewhere(ctx, tx, b)
	if err != nil {
		return err
	}
	generations = tasks.SortedIDs(append(generations, carried...))
	if len(generations) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at) VALUES ($1, 'route_event', $2, $3, $3)`,
		b.OrgID, dispatcher.RoutePayload{Generations: generations}, now); err != nil {
		return fmt.Errorf("tell readers of the swap of %s: %w", b.DAG, err)
	}
	return nil
}

// Abandon stops building a version. What it built stays, for when the document is deployed again.
func (bs *Builds) Abandon(ctx context.Context, caller authz.Caller, dagName string) (registry.Version, error) {
	var number int
	now := clock.Now()
	err := pg.InOrgTx(ctx, bs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := registry.LockDAG(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		var build uuid.UUID
		build, number, err = deploy.AbandonBuild(ctx, tx, caller.OrgID, dagName, "abandoned by "+caller.Actor)
		if err != nil {
			return err
		}
		if err := bs.releaseLive(ctx, tx, build, now); err != nil {
			return err
		}
		if err := bs.CancelUnused(ctx, tx, caller.OrgID, dagName, tasks.ReasonAbandoned, now); err != nil {
			return err
		}
		if err := bs.EndUnwanted(ctx, tx, caller.OrgID, dagName, uuid.Nil, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "dag.abandon", fmt.Sprintf("%s v%d", dagName, number), nil)
	})
	if err != nil {
		return registry.Version{}, fmt.Errorf("abandon %s: %w", dagName, err)
	}

	bs.wake.Send(wakeup.Claim)
	version, err := bs.registry.Version(ctx, caller, dagName, number)
	return version.Version, err
}

// CancelUnused cancels the open tasks of a DAG's origins that no version in work uses any more. A task that is wanted
// again after a rollback or another deploy reuses its row. Running tasks learn of it at their next heartbeat.
func (bs *Builds) CancelUnused(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, reason tasks.Reason, now time.Time,
) error {
	unused, err := deploy.EndTasks(ctx, tx, org, dagName)
	if err != nil || len(unused) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE leases SET cancel_requested = true WHERE org_id = $1 AND origin_job_id = ANY($2)`,
		org, unused); err != nil {
		return fmt.Errorf("request cancellation: %w", err)
	}

	rows, err := tx.Query(ctx, `
		WITH gone AS (
			DELETE FROM ready WHERE org_id = $1 AND origin_job_id = ANY($2) RETURNING task_id, true AS held),
		left_waiting AS (
			DELETE FROM waiting WHERE org_id = $1 AND origin_job_id = ANY($2) AND reason <> 'dead'
			RETURNING task_id, false AS held),
		done AS (
			UPDATE tasks t SET status = 'Canceled', reason = $3, completed_at = $4, next_retry_at = NULL,
				version = t.version + 1
			FROM (SELECT * FROM gone UNION ALL SELECT * FROM left_waiting) AS g JOIN tasks was ON was.id = g.task_id
			WHERE t.id = g.task_id AND t.status IN ('Queued', 'Failed')
			RETURNING t.id, t.org_id, t.attempt, was.status, t.limits, g.held),
		told AS (
			INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, detail, at)
			SELECT uuid_v7(), org_id, id, attempt, status, 'Canceled', 'SYSTEM',
				jsonb_build_object('reason', $3::text), $4
			FROM done)
		SELECT limits FROM done WHERE held AND limits <> '{}'`, org, unused, reason, now)
	if err != nil {
		return fmt.Errorf("cancel unused tasks: %w", err)
	}
	limits, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err != nil {
		return fmt.Errorf("cancel unused tasks: %w", err)
	}

	freed := map[tasks.Limit]int{}
	for _, keys := range limits {
		tasks.AddFreed(freed, org, keys)
	}
	return bs.tasks.ReleaseAll(ctx, tx, freed, now)
}

// EndUnwanted ends the dead tasks of a DAG that no version in work has any more. Those of the version that is kept
// stay: they show what a build failed for.
func (bs *Builds) EndUnwanted(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, kept uuid.UUID, now time.Time,
) error {
	dead, err := tasks.DeadOrigins(ctx, tx, org)
	if err != nil {
		return err
	}
	unwanted, err := deploy.Unwanted(ctx, tx, org, dagName, dead, kept)
	if err != nil {
		return err
	}
	return bs.tasks.EndUnwanted(ctx, tx, unwanted, now)
}
