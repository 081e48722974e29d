package builds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// A build makes its own tasks where no event made them.

// reconcileBuild looks for open and dead tasks and, where there are none, makes the tasks that are still wanted: the
// same events that drive live work drive a build, and this does where an event was lost. The caller has locked the
// origins of the jobs.
func (bs *Builds) reconcileBuild(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) error {
	later, err := bs.retryOld(ctx, tx, b, jobs, p, now)
	if err != nil {
		return err
	}
	p.Stale = len(later)
	if open, err := bs.unended(ctx, tx, b, jobs, p, now); err != nil || open {
		return err
	}

	if err := bs.lookOnce(ctx, tx, b, jobs, p); err != nil {
		return err
	}
	findings := slices.Clone(p.seen.findings)
	if bs.pressure.Holds(b.OrgID, b.DAG) {
		if n := countStale(findings); n > 0 {
			p.Stale += n
			return nil
		}
	}
	made, err := bs.dispatcher.CreateFound(ctx, tx, findings, dispatcher.NewSurroundings(findings, nil), now)
	if err != nil {
		return err
	}
	if p.Stale = len(made.By) + len(later); len(made.By) == 0 {
		err = bs.retry(ctx, tx, later, now) // what they waited for is not going to be made
	}
	if err != nil {
		return err
	}
	if err := bs.givenUp(ctx, tx, b, findings, made, p); err != nil {
		return err
	}
	return bs.recheck(ctx, tx, b, jobs, made, p, now)
}

// unended looks for open and dead tasks of a build, and reports whether there are any.
func (bs *Builds) unended(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) (any bool, err error) {
	origins, _ := filledBy(jobs)
	if p.Open, err = AnyOpen(ctx, tx, origins); err != nil {
		return false, err
	}

	for ended := true; ended; {
		if p.Dead, err = DeadTasks(ctx, tx, b, origins); err != nil || len(p.Dead) == 0 {
			return p.Open, err
		}

		var renewed bool
		if renewed, ended, err = bs.renewDead(ctx, tx, b, jobs, now); err != nil {
			return false, err
		}
		if renewed {
			p.Open, p.Dead = true, nil
			return true, nil
		}
	}
	return true, nil
}

// filledBy returns the origins of jobs, and the generations that they fill.
func filledBy(jobs []*registry.Job) (origins, generations []uuid.UUID) {
	for _, job := range jobs {
		origins = append(origins, job.Origin)
		for _, o := range job.Outputs {
			generations = append(generations, o.Generation.Version)
		}
	}
	return origins, generations
}

func countStale(findings []stale.Finding) (n int) {
	for _, f := range findings {
		if f.Verdict == stale.Stale {
			n++
		}
	}
	return n
}

// givenUp handles targets that are wanted but got no task, because their task exists. If it is completed, it had
// nothing to publish; if it was skipped, the build goes on without it. If it was canceled, the version would lack the
// partition: the build fails, unless the cancellation is older than the build, for then the task is tried again.
func (bs *Builds) givenUp(
	ctx context.Context, tx pgx.Tx, b registry.Build, findings []stale.Finding, made tasks.Created, p *Progress,
) error {
	var origins []uuid.UUID
	var keys []string
	for _, f := range findings {
		if _, ok := made.By[tasks.Slot{Origin: f.Job.Origin, Key: f.Key}]; f.Verdict == stale.Stale && !ok {
			origins, keys = append(origins, f.Job.Origin), append(keys, f.Dedupe)
		}
	}
	if len(keys) == 0 {
		return nil
	}

	tag, err := tx.Exec(ctx, `
		UPDATE tasks t SET reason = $4 FROM unnest($1::uuid[], $2::text[]) AS w(job_id, dedupe_key)
		WHERE t.job_id = w.job_id AND t.dedupe_key = w.dedupe_key AND t.status = 'Canceled' AND t.completed_at < $3
		  AND t.reason IS DISTINCT FROM $5`,
		origins, keys, b.Started, tasks.ReasonAbandoned, tasks.ReasonSkipped)
	if err != nil {
		return fmt.Errorf("want canceled tasks again: %w", err)
	}
	p.Stale += int(tag.RowsAffected())

	rows, err := tx.Query(ctx, `
		SELECT format('task %s of %s was canceled', t.id, job_address(t.job_id) || coalesce(' ' || t.partitions[1], ''))
		FROM tasks t
		JOIN unnest($1::uuid[], $2::text[]) AS w(job_id, dedupe_key)
		  ON t.job_id = w.job_id AND t.dedupe_key = w.dedupe_key
		WHERE t.status = 'Canceled' AND t.completed_at >= $3 AND t.reason IS DISTINCT FROM $4
		ORDER BY t.id LIMIT 10`,
		origins, keys, b.Started, tasks.ReasonSkipped)
	if err != nil {
		return fmt.Errorf("find canceled tasks: %w", err)
	}
	canceled, err := pgx.CollectRows(rows, pgx.RowTo[string])
	p.Dead = append(p.Dead, canceled...)
	return err
}

// AnyOpen reports whether a task of the origins is open and may still end. It runs after every completion, so it must
// not count: each part is one look into an index that begins with origin_job_id.
func AnyOpen(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (open bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM ready WHERE origin_job_id = ANY($1))
		    OR EXISTS (SELECT FROM leases WHERE origin_job_id = ANY($1))
		    OR EXISTS (SELECT FROM waiting WHERE origin_job_id = ANY($1) AND reason <> 'dead')`, origins).Scan(&open)
	if err != nil {
		return false, fmt.Errorf("look for open tasks: %w", err)
	}
	return open, nil
}

// DeadTasks describes the first ten tasks of the origins that have failed for good since a build began, unless another
// task is to do their work.
func DeadTasks(ctx context.Context, tx pgx.Tx, b registry.Build, origins []uuid.UUID) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT format('task %s of %s failed for good: %s',
			t.id, job_address(t.job_id) || coalesce(' ' || t.partitions[1], ''), split_part(t.error_message, $3, 1))
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.origin_job_id = ANY($1) AND w.reason = 'dead' AND t.completed_at >= $2
		  AND NOT EXISTS (SELECT FROM ready o WHERE o.origin_job_id = w.origin_job_id AND o.slot = w.slot)
		  AND NOT EXISTS (SELECT FROM leases o WHERE o.origin_job_id = w.origin_job_id AND o.slot = w.slot)
		  AND NOT EXISTS (SELECT FROM waiting o WHERE o.origin_job_id = w.origin_job_id AND o.slot = w.slot
		                  AND o.reason <> 'dead')
		ORDER BY t.id LIMIT 10`, origins, b.Started, "\n"+fault.Traceback)
	if err != nil {
		return nil, fmt.Errorf("find dead tasks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// recheck counts the revisions of a build that readers would not see, and makes checks for those that lack one. A
// revision that was rejected before this build began is checked again, for its checks may have been mended since; but
// not if it was just made again, from other inputs.
func (bs *Builds) recheck(
	ctx context.Context, tx pgx.Tx, b registry.Build,
	jobs []*registry.Job, made tasks.Created, p *Progress, now time.Time,
) error {
	type output struct {
		job   *registry.Job
		index int
	}
	outputs := map[uuid.UUID]output{}
	for _, job := range jobs {
		for i, o := range job.Outputs {
			outputs[o.Generation.Version] = output{job, i}
		}
	}

	for _, u := range p.seen.undecided {
		if _, again := made.By[tasks.Slot{Origin: outputs[u.Version].job.Origin, Key: u.Key}]; again {
			continue
		}
		if !u.Held && (u.Decided == nil || !u.Decided.Before(b.Started)) {
			text, err := rejection(ctx, tx, jobs, u)
			if err != nil {
				return err
			}
			p.Rejected = append(p.Rejected, text)
			continue
		}

		// Nothing is open and nothing is dead: a held revision has lost its check, a rejected one gets another.
		o := outputs[u.Version]
		check, err := dispatcher.CheckTask(o.job, o.index, u.Key, u.Revision, tasks.ClassBuild)
		if err != nil {
			return err
		}
		if canceled, err := canceledSince(ctx, tx, check, b.Started); err != nil {
			return err
		} else if canceled {
			text := fmt.Sprintf("the check of %s on partition %s was canceled", o.job.Address(), u.Key)
			p.Rejected = append(p.Rejected, text)
			continue
		}
		p.Held++
		check.Dedupe += ":" + b.Started.UTC().Format(time.RFC3339Nano)
		if err := deploy.HoldAgain(ctx, tx, u.Ref, u.Revision); err != nil {
			return err
		}
		if _, err := bs.tasks.Create(ctx, tx, tasks.Creation{Wanted: []tasks.Request{check}}, now); err != nil {
			return err
		}
	}
	return nil
}

// canceledSince reports whether a task of the same slot as t was canceled at since or later.
func canceledSince(ctx context.Context, tx pgx.Tx, t tasks.Request, since time.Time) (canceled bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT FROM tasks WHERE job_id = $1 AND slot = $2 AND status = 'Canceled' AND completed_at >= $3)`,
		t.Job.Origin, t.Slot, since).Scan(&canceled)
	if err != nil {
		return false, fmt.Errorf("look for canceled checks: %w", err)
	}
	return canceled, nil
}
