package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A pause applies to a name: a job, a DAG, or a whole org. It outlives deploys and rollbacks, and applies to the
// version that serves and to those being built. Running tasks go on; queued tasks wait outside the claimable set, and
// sources do not fire. Tasks are still made meanwhile, so that nothing is missing afterwards. After Resume everything
// goes on by itself; a schedule makes up for what it missed if it says `catchup`.

// Pause keeps tasks of a job, of a DAG or, without names, of the whole org from beginning. Pausing again replaces the
// reason.
func (ctl *Control) Pause(
	ctx context.Context, caller authz.Caller, dagName, job, reason string, now time.Time,
) (tasks.Pause, error) {
	p := tasks.Pause{DAG: dagName, Job: job, Actor: caller.Actor, Reason: reason, At: now}
	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := ctl.pausable(ctx, tx, caller, dagName, job); err != nil {
			return err
		}
		before, err := pauseOf(ctx, tx, caller.OrgID, dagName, job)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO pauses (org_id, dag_name, job_name, actor, reason, at)
			VALUES ($1, $2, $3, $4, NULLIF($5, ''), $6)
			ON CONFLICT (org_id, dag_name, job_name)
			DO UPDATE SET actor = EXCLUDED.actor, reason = EXCLUDED.reason, at = EXCLUDED.at`,
			caller.OrgID, dagName, job, caller.Actor, reason, now); err != nil {
			return err
		}
		if err := ctl.setAside(ctx, tx, caller.OrgID, p, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "pause.set", p.What(),
			authz.Change{Before: before, After: p, Reason: reason})
	})

	return p, fault.Wrap(err, "pause "+p.What())
}

// pauseOf locks the pause of just this job, DAG or org, and returns it; nil: there is none.
func pauseOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, job string) (*tasks.Pause, error) {
	rows, err := tx.Query(ctx, `SELECT dag_name, job_name, actor, coalesce(reason, ''), at FROM pauses
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 FOR UPDATE`, org, dagName, job)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[tasks.Pause])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// pausable returns an error if there is no DAG or job of the name.
func (ctl *Control) pausable(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName, job string) error {
	if dagName == "" {
		return nil
	}

	origins, err := ctl.registry.Origins(ctx, tx, caller, dagName, job)
	if err != nil {
		return err
	}
	if len(origins) > 0 {
		return nil
	}

	if job == "" {
		return fault.New(fault.NotFound, "there is no DAG %q", dagName).
			WithHint("`dagctl status` lists those there are")
	}
	return registry.NoJob(dagName, job)
}

// Resume removes a pause. Tasks that no other pause covers go on.
func (ctl *Control) Resume(ctx context.Context, caller authz.Caller, dagName, job string, now time.Time) error {
	p := tasks.Pause{DAG: dagName, Job: job}
	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := pauseOf(ctx, tx, caller.OrgID, dagName, job)
		if err != nil {
			return err
		}
		if before == nil {
			if err := ctl.pausable(ctx, tx, caller, dagName, job); err != nil {
				return err
			}
			return fault.New(fault.NotFound, "%s is not paused", p.What()).WithHint("`dagctl status` shows what is")
		}

		if _, err := tx.Exec(ctx, `
			DELETE FROM pauses WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`, caller.OrgID, dagName, job,
		); err != nil {
			return err
		}
		if err := ctl.takeBack(ctx, tx, caller.OrgID, now); err != nil {
			return err
		}
		if err := registry.RelieveAuthorities(ctx, tx, caller, dagName); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "pause.remove", p.What(), authz.Change{Before: before})
	})
	if err != nil {
		return fmt.Errorf("resume %s: %w", p.What(), err)
	}
	ctl.wake.Send(wakeup.Claim, wakeup.Sources, wakeup.Build)
	return nil
}

// setAside takes the queued tasks that a pause covers out of the claimable set, and releases the limits that admitted
// them.
func (ctl *Control) setAside(ctx context.Context, tx pgx.Tx, org uuid.UUID, p tasks.Pause, now time.Time) error {
	origins, err := ctl.registry.Origins(ctx, tx, authz.Caller{OrgID: org}, p.DAG, p.Job)
	if err != nil {
		return err
	}

	rows, err := tx.Query(ctx, `
		SELECT DISTINCT origin_job_id FROM ready WHERE org_id = $1 AND origin_job_id = ANY($2)`, org, origins)
	if err != nil {
		return fmt.Errorf("tasks to set aside: %w", err)
	}
	if origins, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil || len(origins) == 0 {
		return err
	}
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
		return err
	}

	rows, err = tx.Query(ctx, `
		WITH picked AS MATERIALIZED (
			SELECT task_id FROM ready WHERE org_id = $1 AND origin_job_id = ANY($2)
			ORDER BY task_id FOR UPDATE SKIP LOCKED),
		taken AS (
			DELETE FROM ready r USING picked k WHERE r.task_id = k.task_id
			RETURNING r.task_id, r.org_id, r.origin_job_id, r.slot, r.rank),
		put AS (
			INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, blocker, rank)
			SELECT task_id, org_id, origin_job_id, slot, 'paused', $3, rank FROM taken)
		SELECT t.limits FROM taken k JOIN tasks t ON t.id = k.task_id WHERE t.limits <> '{}'`, org, origins, p.What())
	if err != nil {
		return fmt.Errorf("set tasks aside: %w", err)
	}
	limits, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err != nil {
		return fmt.Errorf("set tasks aside: %w", err)
	}

	freed := map[tasks.Limit]int{}
	for _, keys := range limits {
		tasks.AddFreed(freed, org, keys)
	}
	return ctl.tasks.ReleaseAll(ctx, tx, freed, now)
}

// takeBack places the tasks that no pause covers any more.
func (ctl *Control) takeBack(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) error {
	pauses, err := tasks.PausesOf(ctx, tx, org)
	if err != nil {
		return err
	}

	rows, err := tx.Query(ctx, `
		SELECT DISTINCT origin_job_id FROM waiting WHERE org_id = $1 AND reason = 'paused'`, org)
	if err != nil {
		return fmt.Errorf("paused jobs: %w", err)
	}
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("paused jobs: %w", err)
	}
	jobs, err := ctl.registry.KnownJobs(ctx, tx, origins)
	if err != nil {
		return err
	}

	var over []uuid.UUID
	for _, origin := range origins {
		if tasks.WidestPause(pauses, jobs[origin].DAG, jobs[origin].Name) == nil {
			over = append(over, origin)
		}
	}
	if len(over) == 0 {
		return nil
	}

	if err := tasks.LockOrigins(ctx, tx, over); err != nil {
		return err
	}
	_, err = ctl.tasks.PromoteWhere(ctx, tx, now,
		`q.reason = 'paused' AND q.org_id = $1 AND q.origin_job_id = ANY($2)`, org, over)
	return err
}

// Pauses lists what is paused in the caller's org, as it sees that.
func (ctl *Control) Pauses(ctx context.Context, caller authz.Caller) (found []tasks.Pause, err error) {
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err = views.PausesOf(ctx, tx, caller)
		return err
	})
	return found, err
}

// ReviewPauses sets aside tasks that became claimable just as their job was paused: the transaction that placed them
// did not see the pause yet. It locks each pause, so that no Resume comes in between.
func (ctl *Control) ReviewPauses(ctx context.Context, now time.Time) (more bool, err error) {
	var last pauseKey
	var failed []error
	for {
		next, err := ctl.reviewAfter(ctx, last, now)
		failed = append(failed, err)
		if next == last {
			return false, errors.Join(failed...)
		}
		last = next
	}
}

// pauseKey names a pause. Pauses are reviewed in the order of their keys.
type pauseKey struct {
	org      uuid.UUID
	dag, job string
}

// reviewAfter reviews the first pause behind a key and returns the key of that; of the given one if there is none.
func (ctl *Control) reviewAfter(ctx context.Context, last pauseKey, now time.Time) (next pauseKey, err error) {
	err = pg.InTx(ctx, ctl.pool, func(ctx context.Context, tx pgx.Tx) error {
		next = last
		err := tx.QueryRow(ctx, `
			SELECT org_id, dag_name, job_name FROM pauses WHERE (org_id, dag_name, job_name) > ($1, $2, $3)
			ORDER BY org_id, dag_name, job_name LIMIT 1 FOR SHARE`, last.org, last.dag, last.job).
			Scan(&next.org, &next.dag, &next.job)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find the next pause: %w", err)
		}
		return ctl.setAside(ctx, tx, next.org, tasks.Pause{DAG: next.dag, Job: next.job}, now)
	})
	return next, err
}

// takenBackAtOnce is how many tasks return to the claimable set in one transaction.
const takenBackAtOnce = 1000

// ReviewAuthority takes back tasks that were put aside because their versions ran on no authority any more, once
// somebody answers for their jobs, or no version has them.
func (ctl *Control) ReviewAuthority(ctx context.Context, now time.Time) (more bool, err error) {
	err = pg.InTx(ctx, ctl.pool, func(ctx context.Context, tx pgx.Tx) error {
		more = false
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT origin_job_id FROM waiting WHERE reason = 'paused' AND blocker = 'authority'`)
		if err != nil {
			return err
		}
		origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(origins) == 0 {
			return err
		}
		acting, err := ctl.registry.ActingJobs(ctx, tx, origins)
		if err != nil {
			return err
		}
		var jobs []*registry.Job
		for _, a := range acting {
			jobs = append(jobs, a.Job)
		}
		lost, err := ctl.registry.LostAuthorityOf(ctx, tx, jobs)
		if err != nil {
			return err
		}

		origins = slices.DeleteFunc(origins, func(origin uuid.UUID) bool {
			a, ok := acting[origin]
			return ok && lost[a.Job.ID].Jobs != nil
		})
		if len(origins) == 0 {
			return nil
		}
		if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
			return err
		}
		more, err = ctl.tasks.PromoteWhere(ctx, tx, now, `q.task_id IN (
			SELECT task_id FROM waiting WHERE reason = 'paused' AND blocker = 'authority' AND origin_job_id = ANY($1)
			ORDER BY rank, task_id LIMIT $2)`, origins, takenBackAtOnce)
		return err
	})
	if more {
		ctl.wake.Send(wakeup.Claim)
	}
	return more, fault.Wrap(err, "take back tasks on whose authority somebody answers")
}
