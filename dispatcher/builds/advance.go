package builds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// advance takes a build further, until it has inherited all that it inherits.
func (bs *Builds) advance(ctx context.Context, b registry.Build, now time.Time) error {
	if err := bs.apart.enter(ctx); err != nil {
		return err
	}
	defer bs.apart.leave()

	for range inheritTries {
		if again, err := bs.step(ctx, b, now); err != nil || !again {
			return err
		}
	}
	bs.wake.Send(wakeup.Build)
	return nil
}

// inheritTries is how often a build takes over again what live has changed before other builds have their turn.
const inheritTries = 3

// step inherits partitions, reads the sources, makes the tasks that are wanted, and cuts over or fails when the gate
// says so. It reports whether there is more to inherit first.
func (bs *Builds) step(ctx context.Context, b registry.Build, now time.Time) (again bool, err error) {
	jobs, err := bs.jobsOf(ctx, b)
	if fault.Is(err, fault.Conflict) {
		return false, bs.failBuild(ctx, b, fault.Text(err), now)
	}
	if err != nil {
		return false, err
	}

	// Inherited partitions come first: until they are published, nobody can say what is to be made from them.
	more, err := bs.deployer.Inherit(ctx, b, inheritBatch)
	switch {
	case fault.Is(err, fault.Invalid):
		return false, bs.failBuild(ctx, b, err.Error(), now)
	case err != nil || more:
		bs.wake.Send(wakeup.Build)
		return false, err
	}

	return bs.decide(ctx, b, jobs, now)
}

// decide takes a build further that has inherited all it inherits so far, and reports whether there is more by now.
func (bs *Builds) decide(
	ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time,
) (again bool, err error) {
	// A job with effects outside, or a source that cannot be read again, does its work after the cutover.
	jobs = slices.DeleteFunc(jobs, bs.registry.ForwardOnly)
	unread, err := bs.readSources(ctx, b, jobs, now)
	if err != nil {
		return false, err
	}
	if waits, err := bs.awaitsChecks(ctx, b); err != nil || waits {
		return false, err
	}

	began := time.Now()
	p, near, err := bs.measure(ctx, b, jobs, unread, now)
	if err != nil || p == nil {
		return false, err
	}

	ready, failed, err := bs.passesGate(ctx, b, jobs, p, now)
	bs.looked(b, time.Since(began))
	if err != nil || p.inherits {
		return p.inherits, err
	}
	switch {
	case failed != "":
		return false, bs.failBuild(ctx, b, failed, now)
	case ready:
		return bs.cutover(ctx, b, jobs, now)
	}

	// Tables have columns long before they have all of their rows.
	if err := bs.lookAtViews(ctx, b, now); err != nil {
		return false, err
	}
	if near {
		return false, bs.HoldLive(ctx, b, now)
	}
	if p.Stale > 0 || p.Held > 0 {
		bs.wake.Send(wakeup.Claim)
	}
	return false, nil
}

// jobsOf returns the jobs that a build has to fill. It refuses a build with an input from another DAG that it cannot
// follow any more.
func (bs *Builds) jobsOf(ctx context.Context, b registry.Build) (jobs []*registry.Job, err error) {
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		jobs, err = bs.registry.BuildJobs(ctx, tx, b.ID)
		if err != nil || !slices.ContainsFunc(jobs, readsElsewhere) {
			return err
		}
		return deploy.RefuseOwnMisfits(ctx, tx, b)
	})
	return jobs, err
}

// readsElsewhere reports whether a job has an input from another DAG.
func readsElsewhere(job *registry.Job) bool {
	return slices.ContainsFunc(job.Inputs, func(in registry.JobInput) bool { return !in.InDAG })
}

// measure reconciles a build and returns its progress, and whether it is near enough to what is live to hold that back.
// The progress is nil where the build has been abandoned since it was listed, and its queued tasks canceled.
func (bs *Builds) measure(
	ctx context.Context, b registry.Build, jobs []*registry.Job, unread []string, now time.Time,
) (p *Progress, near bool, err error) {
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		p = nil
		if inWork, err := lockInWork(ctx, tx, b); err != nil || !inWork {
			return err
		}

		p = &Progress{Unread: unread}
		if err := bs.reconcileBuild(ctx, tx, b, jobs, p, now); err != nil || !p.Open || len(p.Dead) > 0 {
			return err
		}
		near, err = bs.CatchesUp(ctx, tx, b, jobs, p)
		return err
	})
	return p, near, err
}

// lockInWork shares the DAG's lock and reports whether the build is still in work: nothing ends it before the
// transaction does, and no task is made for one that has ended.
func lockInWork(ctx context.Context, tx pgx.Tx, b registry.Build) (bool, error) {
	if err := registry.LockDAGShared(ctx, tx, b.OrgID, b.DAG); err != nil {
		return false, err
	}
	return deploy.InWork(ctx, tx, b)
}

// passesGate asks the gate several times, as each question costs more than the one before: whether the version's own
// work is done, whether the checks of what it reuses pass, whether there is more to take over, and whether its sources
// still have what is live.
func (bs *Builds) passesGate(
	ctx context.Context, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) (ready bool, failed string, err error) {
	if ready, failed = Gate(*p); !ready {
		return false, failed, nil
	}

	inWork := false
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		if inWork, err = lockInWork(ctx, tx, b); err != nil || !inWork {
			return err
		}
		return bs.checkReused(ctx, tx, b, p, now)
	})
	if err != nil || !inWork {
		return false, "", err
	}
	if ready, failed = Gate(*p); !ready {
		return false, failed, nil
	}

	if p.inherits, err = bs.inheritNew(ctx, b, now); err != nil || p.inherits {
		return false, "", err
	}
	again, lost, err := bs.readAgain(ctx, b, jobs, now)
	if err != nil {
		return false, "", err
	}
	bs.wake.Send(wakeup.Claim)
	return !again && lost == "", lost, nil
}

// inheritNew has a forward-only build take over the partitions before its bound that live got since the deploy, and
// reports whether there are any. Its sources would not have to find them.
func (bs *Builds) inheritNew(ctx context.Context, b registry.Build, now time.Time) (again bool, err error) {
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		if continues, err := deploy.Continues(ctx, tx, b); err != nil || !continues {
			return err
		}
		if err := registry.LockDAG(ctx, tx, b.OrgID, b.DAG); err != nil {
			return err
		}
		if inWork, err := deploy.InWork(ctx, tx, b); err != nil || !inWork {
			return err
		}
		again, err = bs.deployer.InheritAgain(ctx, tx, b, true, now)
		return err
	})
	return again, err
}

// inheritBatch is how many partitions a build inherits before other builds have their turn.
const inheritBatch = 200

// readSources enumerates every source of the build once since it began, and returns those that could not be read.
func (bs *Builds) readSources(
	ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time,
) (unread []string, err error) {
	done, rowIDs := map[uuid.UUID]bool{}, make([]uuid.UUID, len(jobs))
	for i, job := range jobs {
		rowIDs[i] = job.ID
	}
	rows, err := bs.pool.Query(ctx, `
		SELECT job_id FROM enumerations WHERE job_id = ANY($1) AND enumerated_at >= $2 AND error IS NULL`,
		rowIDs, b.Started)
	if err != nil {
		return nil, fmt.Errorf("enumerated sources: %w", err)
	}
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { done[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("enumerated sources: %w", err)
	}

	for _, job := range jobs {
		if job.Def.Source == nil || done[job.ID] || !job.Def.Source.OnDeploy {
			continue
		}
		op, ok := bs.sources.Enumerator(job)
		if !ok {
			continue
		}
		if bs.pressure.High() {
			unread = append(unread, job.Name)
			continue
		}
		if _, err := bs.enumerate(ctx, job, op, now); err != nil {
			if operators.IsPermanent(err) || now.Sub(b.Started) > EnumerateFor {
				return nil, bs.failBuild(ctx, b, fmt.Sprintf("source %s: %v", job.Name, err), now)
			}
			bs.log.Warn("source cannot be read yet", "dag", b.DAG, "job", job.Name, "error", err)
			unread = append(unread, job.Name)
		}
		bs.wake.Send(wakeup.Claim)
	}
	return unread, nil
}

// EnumerateFor is how long a build tries to read a source that answers with errors.
const EnumerateFor = time.Minute

// reconcileBuild looks for open and dead tasks and, where there are none, makes the tasks that are still wanted: the
// same events that drive live work drive a build, and this does where an event was lost.
func (bs *Builds) reconcileBuild(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) error {
	origins, generations := filledBy(jobs)
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
		return err
	}

	later, err := bs.retryOld(ctx, tx, b, jobs, p, now)
	if err != nil {
		return err
	}
	p.Stale = len(later)
	if open, err := bs.unended(ctx, tx, b, jobs, p, now); err != nil || open {
		return err
	}

	findings, err := bs.stale.ExamineAll(ctx, tx, jobs)
	if err != nil {
		return err
	}
	if bs.pressure.High() {
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
	return bs.recheck(ctx, tx, b, jobs, generations, made, p, now)
}

// unended looks for open and dead tasks of a build, and reports whether there are any.
func (bs *Builds) unended(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) (any bool, err error) {
	origins, _ := filledBy(jobs)
	if p.Open, err = AnyOpen(ctx, tx, origins); err != nil {
		return false, err
	}
	if p.Dead, err = DeadTasks(ctx, tx, b, origins); err != nil || len(p.Dead) == 0 {
		return p.Open, err
	}

	renewed, err := bs.renewDead(ctx, tx, b, jobs, now)
	if renewed {
		p.Open, p.Dead = true, nil
	}
	return true, err
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
			t.id, job_address(t.job_id) || coalesce(' ' || t.partitions[1], ''), t.error_message)
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.origin_job_id = ANY($1) AND w.reason = 'dead' AND t.completed_at >= $2
		  AND NOT EXISTS (SELECT FROM ready o WHERE o.origin_job_id = w.origin_job_id AND o.slot = w.slot)
		  AND NOT EXISTS (SELECT FROM leases o WHERE o.origin_job_id = w.origin_job_id AND o.slot = w.slot)
		  AND NOT EXISTS (SELECT FROM waiting o WHERE o.origin_job_id = w.origin_job_id AND o.slot = w.slot
		                  AND o.reason <> 'dead')
		ORDER BY t.id LIMIT 10`, origins, b.Started)
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
	jobs []*registry.Job, generations []uuid.UUID, made tasks.Created, p *Progress, now time.Time,
) error {
	undecided, err := deploy.Unsettled(ctx, tx, generations)
	if err != nil {
		return err
	}
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

	for _, u := range undecided {
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

func (bs *Builds) failBuild(ctx context.Context, b registry.Build, reason string, now time.Time) error {
	err := pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAG(ctx, tx, b.OrgID, b.DAG); err != nil {
			return err
		}

		if changed, err := deploy.MarkFailed(ctx, tx, b, reason); err != nil || !changed {
			return err
		}
		if err := notices.DeployFailed(ctx, tx, b, now); err != nil {
			return err
		}
		return bs.CancelUnused(ctx, tx, b.OrgID, b.DAG, tasks.ReasonAbandoned, now)
	})
	if err == nil {
		bs.log.Warn("build failed", "dag", b.DAG, "version", b.Number, "reason", reason)
	}
	return err
}
