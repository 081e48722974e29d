package builds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/notices"
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
	unread, cause, err := bs.readSources(ctx, b, jobs, now)
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
		if ended, err := bs.endGone(ctx, jobs, now); err != nil || ended {
			bs.wake.Send(wakeup.Build)
			return false, err
		}
		return false, bs.failBuild(ctx, b, failed, now)
	case ready:
		return bs.cutover(ctx, b, jobs, p.seen, now)
	}

	// Tables have columns long before they have all of their rows.
	if err := bs.lookAtViews(ctx, b, now); err != nil {
		return false, err
	}
	if near {
		return false, errors.Join(bs.HoldLive(ctx, b, now), cause)
	}
	if p.Stale > 0 || p.Held > 0 {
		bs.wake.Send(wakeup.Claim)
	}
	return false, cause
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
// The progress is nil where the build has been abandoned since it was listed, and its queued tasks canceled, or where
// it has to look again.
func (bs *Builds) measure(
	ctx context.Context, b registry.Build, jobs []*registry.Job, unread []string, now time.Time,
) (p *Progress, near bool, err error) {
	seen, err := bs.lookIfQuiet(ctx, b, jobs)
	if err != nil {
		return nil, false, err
	}

	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		p = nil
		if inWork, err := lockInWork(ctx, tx, b); err != nil || !inWork {
			return err
		}
		var again bool
		if p, again, err = bs.beginProgress(ctx, tx, b, jobs, seen); err != nil || again {
			return err
		}
		p.Unread = unread
		if err := bs.reconcileBuild(ctx, tx, b, jobs, p, now); err != nil || !p.Open || len(p.Dead) > 0 {
			return err
		}
		near, err = bs.CatchesUp(ctx, tx, b, jobs, p)
		return err
	})
	return p, near, err
}

// beginProgress locks the origins of a build's jobs, and begins its progress with a look that is brought up to date. It
// reports where the build has to look again, without the locks.
func (bs *Builds) beginProgress(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, seen *look,
) (p *Progress, again bool, err error) {
	origins, _ := filledBy(jobs)
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil || seen == nil {
		return &Progress{}, false, err
	}
	if seen, err = bs.since(ctx, tx, b, jobs, seen); err != nil {
		return nil, false, err
	}
	if seen == nil {
		bs.wake.Send(wakeup.Build)
		return nil, true, nil
	}
	return &Progress{seen: seen}, false, nil
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
	var outdated []registry.Ref
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		outdated, err = deploy.Outdated(ctx, tx, b, true)
		return err
	})
	if err != nil || len(outdated) == 0 {
		return false, err
	}

	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAG(ctx, tx, b.OrgID, b.DAG); err != nil {
			return err
		}
		if inWork, err := deploy.InWork(ctx, tx, b); err != nil || !inWork {
			return err
		}
		again, err = bs.deployer.InheritAgain(ctx, tx, b, outdated, true, now)
		return err
	})
	return again, err
}

// inheritBatch is how many partitions a build inherits before other builds have their turn.
const inheritBatch = 200

// endGone lists sources once more of whose units tasks failed for good, before the build fails for them: of many files
// that are removed, each fails in its own time, also between the listing and the look of one turn. It reports whether
// that ended tasks of units that are gone.
func (bs *Builds) endGone(ctx context.Context, jobs []*registry.Job, now time.Time) (ended bool, err error) {
	failed := func(job *registry.Job) (n int, err error) {
		err = bs.pool.QueryRow(ctx, `
			SELECT count(*) FROM waiting w JOIN tasks t ON t.id = w.task_id
			WHERE w.origin_job_id = $1 AND w.reason = 'dead' AND starts_with(t.dedupe_key, '`+tasks.UnitPrefix+`')`,
			job.Origin).Scan(&n)
		return n, fault.Wrap(err, "units that failed for good")
	}

	for _, job := range jobs {
		op, ok := bs.sources.Enumerator(job)
		if job.Def.Source == nil || !job.Def.Source.OnDeploy || !ok {
			continue
		}
		before, err := failed(job)
		if err != nil {
			return false, err
		}
		leaves, err := bs.dispatcher.LeavesToOthers(ctx, job, now)
		if err != nil {
			return false, err
		}
		if before == 0 || leaves {
			continue
		}

		if _, err := bs.enumerate(ctx, job, op, now); err != nil {
			return false, nil // the build fails for what it knows
		}
		after, err := failed(job)
		if err != nil {
			return false, err
		}
		ended = ended || after < before
	}
	return ended, nil
}

// readSources enumerates every source of the build once since it began, and returns those that it did not read. If one
// cannot be read yet, cause says why. A source is listed again after a task of one of its units failed for good: what
// the task was to read may be gone, and the listing then ends it, so that it holds nothing up.
func (bs *Builds) readSources(
	ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time,
) (unread []string, cause, err error) {
	done, rowIDs, origins := map[uuid.UUID]bool{}, make([]uuid.UUID, len(jobs)), make([]uuid.UUID, len(jobs))
	for i, job := range jobs {
		rowIDs[i], origins[i] = job.ID, job.Origin
	}
	rows, err := bs.pool.Query(ctx, `
		SELECT e.job_id FROM unnest($1::uuid[], $3::uuid[]) AS j(id, origin) JOIN enumerations e ON e.job_id = j.id
		WHERE e.enumerated_at >= $2 AND e.error IS NULL AND NOT EXISTS (
			SELECT FROM waiting w JOIN tasks t ON t.id = w.task_id
			WHERE w.origin_job_id = j.origin AND w.reason = 'dead' AND t.completed_at >= e.enumerated_at
			  AND starts_with(t.dedupe_key, '`+tasks.UnitPrefix+`'))`,
		rowIDs, b.Started, origins)
	if err != nil {
		return nil, nil, fmt.Errorf("enumerated sources: %w", err)
	}
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { done[id] = true; return nil }); err != nil {
		return nil, nil, fmt.Errorf("enumerated sources: %w", err)
	}
	if err := bs.servedSources(ctx, b, jobs, done); err != nil {
		return nil, nil, err
	}

	for _, job := range jobs {
		if job.Def.Source == nil || done[job.ID] || !job.Def.Source.OnDeploy {
			continue
		}
		op, ok := bs.sources.Enumerator(job)
		if !ok {
			continue
		}
		leaves, err := bs.dispatcher.LeavesToOthers(ctx, job, now)
		if err != nil {
			return nil, nil, err
		}
		if leaves || bs.pressure.Holds(job.OrgID, job.DAG) {
			unread = append(unread, job.Name)
			continue
		}
		if _, err := bs.enumerate(ctx, job, op, now); err != nil {
			if operators.IsPermanent(err) || now.Sub(b.Started) > EnumerateFor {
				return nil, nil, bs.failBuild(ctx, b, fmt.Sprintf("source %s: %s", job.Name, fault.Text(err)), now)
			}
			unread, cause = append(unread, job.Name), unreadable(job, err)
		}
		bs.wake.Send(wakeup.Claim)
	}
	return unread, cause, nil
}

// unreadable is the error of a turn that could not read a source: the next turns come later and later, and the version
// says why.
func unreadable(job *registry.Job, err error) error {
	return fault.New(fault.Unavailable, "source %s cannot be read yet: %w", job.Name, err)
}

// EnumerateFor is how long a build tries to read a source that answers with errors.
const EnumerateFor = time.Minute

// servedSources adds to done the sources of a version that is promoted for which another generation serves: what they
// have is compared with what serves (readAgain). The others are read once more, because nobody has read what came while
// the version waited.
func (bs *Builds) servedSources(
	ctx context.Context, b registry.Build, jobs []*registry.Job, done map[uuid.UUID]bool,
) error {
	unread := func(job *registry.Job) bool { return job.Def.Source != nil && !done[job.ID] }
	if b.Status != registry.Ready || !slices.ContainsFunc(jobs, unread) {
		return nil
	}

	return pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		pairs, err := registry.Counterparts(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		serves := map[uuid.UUID]bool{}
		for _, c := range pairs {
			serves[c.Candidate] = true
		}
		for _, job := range jobs {
			if len(job.Outputs) > 0 && serves[job.Outputs[0].Generation.Version] {
				done[job.ID] = true
			}
		}
		return nil
	})
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
		if err := bs.releaseLive(ctx, tx, b.ID, now); err != nil {
			return err
		}
		if err := bs.CancelUnused(ctx, tx, b.OrgID, b.DAG, tasks.ReasonAbandoned, now); err != nil {
			return err
		}
		return bs.EndUnwanted(ctx, tx, b.OrgID, b.DAG, b.ID, now)
	})
	if err == nil {
		bs.log.Warn("build failed", "dag", b.DAG, "version", b.Number, "reason", reason)
	}
	return err
}
