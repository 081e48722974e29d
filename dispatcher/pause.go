package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// A pause is of a name: a job, a DAG, or all of an org. It outlives deploys and rollbacks, and holds for whatever version
// serves or is being built. What runs goes on to its end; what is queued waits outside the claimable set, and its sources do
// not fire. What is wanted goes on being decided, so that nothing is missing afterwards. Whoever takes a pause away has
// everything go on by itself: a schedule makes up for what it missed where it says `catchup`.

// Pause is one that somebody has set.
type Pause struct {
	DAG    string    `json:"dag,omitempty" doc:"Absent: the whole org"`
	Job    string    `json:"job,omitempty" doc:"Absent: the whole DAG"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

// covers reports whether a job is paused by it.
func (p Pause) covers(dagName, job string) bool {
	return p.DAG == "" || p.DAG == dagName && (p.Job == "" || p.Job == job)
}

// what is paused, for people and as the blocker of the tasks that wait.
func (p Pause) what() string {
	switch {
	case p.DAG == "":
		return "the org"
	case p.Job == "":
		return p.DAG
	}
	return p.DAG + "/" + p.Job
}

// Pause has no task of a job, a DAG or, with no names, the whole org begin. Paused again, it has the new reason.
func (d *Dispatcher) Pause(ctx context.Context, caller authz.Caller, dagName, job, reason string, now time.Time) (Pause, error) {
	p := Pause{DAG: dagName, Job: job, Actor: caller.Actor, Reason: reason, At: now}
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := d.pausable(ctx, tx, caller, dagName, job); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO pauses (org_id, dag_name, job_name, actor, reason, at) VALUES ($1, $2, $3, $4, NULLIF($5, ''), $6)
			ON CONFLICT (org_id, dag_name, job_name) DO UPDATE SET actor = EXCLUDED.actor, reason = EXCLUDED.reason, at = EXCLUDED.at`,
			caller.OrgID, dagName, job, caller.Actor, reason, now); err != nil {
			return err
		}
		if err := d.setAside(ctx, tx, caller.OrgID, p, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "pause.set", p.what(), map[string]any{"reason": reason})
	})
	return p, wrap(err, "pause "+p.what())
}

// pausable reports a name that there is not.
func (d *Dispatcher) pausable(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName, job string) error {
	if dagName == "" {
		return nil
	}
	origins, err := d.Registry.Origins(ctx, tx, caller, dagName, job)
	if err != nil {
		return err
	}
	if len(origins) > 0 {
		return nil
	}
	if job == "" {
		return fault.New(fault.NotFound, "there is no DAG %q", dagName).WithHint("`dagctl status` lists those there are")
	}
	return fault.New(fault.NotFound, "there is no job %s/%s", dagName, job).WithHint("`dagctl status %s` lists the jobs there are", dagName)
}

// Resume takes a pause away. Tasks that no other pause covers go on.
func (d *Dispatcher) Resume(ctx context.Context, caller authz.Caller, dagName, job string, now time.Time) error {
	p := Pause{DAG: dagName, Job: job}
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM pauses WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`, caller.OrgID, dagName, job)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fault.New(fault.NotFound, "%s is not paused", p.what()).WithHint("`dagctl status` shows what is")
		}
		if err := d.takeBack(ctx, tx, caller.OrgID, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "pause.remove", p.what(), nil)
	})
	if err != nil {
		return fmt.Errorf("resume %s: %w", p.what(), err)
	}
	d.wake.send(topicClaim, topicSources, topicBuild)
	return nil
}

// setAside takes the queued tasks of what is paused out of the claimable set, giving back the limits they were admitted to.
func (d *Dispatcher) setAside(ctx context.Context, tx pgx.Tx, org uuid.UUID, p Pause, now time.Time) error {
	origins, err := d.Registry.Origins(ctx, tx, authz.Caller{OrgID: org}, p.DAG, p.Job)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `SELECT DISTINCT job_id FROM ready WHERE org_id = $1 AND job_id = ANY($2)`, org, origins)
	if err != nil {
		return fmt.Errorf("tasks to set aside: %w", err)
	}
	if origins, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil || len(origins) == 0 {
		return err
	}
	if err := lockOrigins(ctx, tx, origins); err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `
		WITH picked AS MATERIALIZED (SELECT task_id FROM ready WHERE org_id = $1 AND job_id = ANY($2) ORDER BY task_id FOR UPDATE SKIP LOCKED),
		taken AS (DELETE FROM ready r USING picked k WHERE r.task_id = k.task_id RETURNING r.task_id, r.org_id, r.job_id, r.slot, r.rank),
		put AS (
			INSERT INTO waiting (task_id, org_id, job_id, slot, reason, blocker, rank)
			SELECT task_id, org_id, job_id, slot, 'paused', $3, rank FROM taken)
		SELECT t.limits FROM taken k JOIN tasks t ON t.id = k.task_id WHERE t.limits <> '{}'`, org, origins, p.what())
	if err != nil {
		return fmt.Errorf("set tasks aside: %w", err)
	}
	limits, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err != nil {
		return fmt.Errorf("set tasks aside: %w", err)
	}
	freed := map[limit]int{}
	for _, keys := range limits {
		countLimits(freed, org, keys)
	}
	return d.releaseAll(ctx, tx, freed, now)
}

// takeBack places the tasks that waited for a pause which is over.
func (d *Dispatcher) takeBack(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) error {
	pauses, err := pausesOf(ctx, tx, org)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `SELECT DISTINCT job_id FROM waiting WHERE org_id = $1 AND reason = 'paused'`, org)
	if err != nil {
		return fmt.Errorf("paused jobs: %w", err)
	}
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("paused jobs: %w", err)
	}
	jobs, err := d.Registry.Jobs(ctx, tx, origins)
	if err != nil {
		return err
	}
	var over []uuid.UUID
	for _, origin := range origins {
		if coveredBy(pauses, jobs[origin].DAG, jobs[origin].Name) == nil {
			over = append(over, origin)
		}
	}
	if len(over) == 0 {
		return nil
	}
	if err := lockOrigins(ctx, tx, over); err != nil {
		return err
	}
	_, err = d.promoteWhere(ctx, tx, now, `q.reason = 'paused' AND q.org_id = $1 AND q.job_id = ANY($2)`, org, over)
	return err
}

// coveredBy is the widest pause that a job is under; nil where it is under none. The pauses are in the order of pausesOf.
func coveredBy(pauses []Pause, dagName, job string) *Pause {
	for i, p := range pauses {
		if p.covers(dagName, job) {
			return &pauses[i]
		}
	}
	return nil
}

// pausesOf lists an org's pauses, that of the org first, then DAGs, then jobs.
func pausesOf(ctx context.Context, tx pgx.Tx, org uuid.UUID) ([]Pause, error) {
	rows, err := tx.Query(ctx, `SELECT dag_name, job_name, actor, coalesce(reason, ''), at FROM pauses WHERE org_id = $1
		ORDER BY dag_name <> '', job_name <> '', dag_name, job_name`, org)
	if err != nil {
		return nil, fmt.Errorf("list pauses: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Pause])
	if err != nil {
		return nil, fmt.Errorf("list pauses: %w", err)
	}
	return append([]Pause{}, found...), nil
}

// Pauses lists what is paused in the caller's org.
func (d *Dispatcher) Pauses(ctx context.Context, caller authz.Caller) (found []Pause, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err = pausesOf(ctx, tx, caller.OrgID)
		return err
	})
	return found, err
}

// reviewPauses sets aside what became claimable at the very moment at which its job was paused: whoever placed it did not see
// the pause yet. A pause is locked meanwhile, so that none is taken away between.
func (d *Dispatcher) reviewPauses(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `SELECT org_id, dag_name, job_name FROM pauses ORDER BY org_id, dag_name, job_name`)
	if err != nil {
		return false, fmt.Errorf("list pauses: %w", err)
	}
	type set struct {
		Org uuid.UUID
		DAG string
		Job string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[set])
	if err != nil {
		return false, fmt.Errorf("list pauses: %w", err)
	}
	var failed []error
	for _, s := range all {
		failed = append(failed, pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `SELECT FROM pauses WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 FOR SHARE`, s.Org, s.DAG, s.Job)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return d.setAside(ctx, tx, s.Org, Pause{DAG: s.DAG, Job: s.Job}, now)
		}))
	}
	return false, errors.Join(failed...)
}

// notPaused is the condition, on sources, of those that may fire.
const notPaused = `NOT EXISTS (SELECT FROM pauses p WHERE p.org_id = sources.org_id
	AND (p.dag_name = '' OR p.dag_name = sources.dag_name AND p.job_name IN ('', sources.job_name)))`
