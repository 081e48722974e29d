package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// advanceBuilds looks at every version that is being built: has its sources enumerated, its reactive jobs reconciled,
// and, when its gate opens, cuts over to it.
func (d *Dispatcher) advanceBuilds(ctx context.Context, now time.Time) (more bool, err error) {
	var builds []registry.Build
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		builds, err = registry.Builds(ctx, tx)
		return err
	})
	if err != nil {
		return false, err
	}
	d.building.Store(len(builds) > 0)
	var failed []error
	for _, b := range builds {
		if err := d.advance(ctx, b, now); err != nil {
			failed = append(failed, fmt.Errorf("build %s v%d: %w", b.DAG, b.Number, err))
		}
	}
	return false, errors.Join(failed...)
}

// progressed are the wake-ups to send when tasks have ended: claimers have room, and a build may be further than it was.
func (d *Dispatcher) progressed() topics {
	if d.building.Load() {
		return topics{topicClaim, topicBuild}
	}
	return topics{topicClaim}
}

func (d *Dispatcher) advance(ctx context.Context, b registry.Build, now time.Time) error {
	var jobs []*registry.Job
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		jobs, err = d.Registry.BuildJobs(ctx, tx, b.ID)
		return err
	})
	if err != nil {
		return err
	}
	// Partitions that are to stay come first: until they are published, what is made of them cannot be told.
	more, err := d.Registry.Inherit(ctx, b, inheritBatch)
	switch {
	case fault.Is(err, fault.Invalid):
		return d.failBuild(ctx, b, err.Error(), now)
	case err != nil || more:
		d.wake.send(topicBuild)
		return err
	}
	// What a job with effects outside, or a source that cannot be read again, would do, it does after the cutover.
	jobs = slices.DeleteFunc(jobs, d.Registry.ForwardOnly)
	unread, err := d.readSources(ctx, b, jobs, now)
	if err != nil {
		return err
	}
	var p progress
	var near, inWork bool
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		p = progress{unread: unread}
		if err := registry.LockDAGsShared(ctx, tx, []string{b.LockKey()}); err != nil {
			return err
		}
		// It may have been abandoned since it was listed, and what it had queued canceled.
		if inWork, err = registry.InWork(ctx, tx, b); err != nil || !inWork {
			return err
		}
		if err := d.reconcileBuild(ctx, tx, b, jobs, &p, now); err != nil || !p.open || len(p.dead) > 0 {
			return err
		}
		near, err = d.catchesUp(ctx, tx, b, jobs, &p)
		return err
	})
	if err != nil || !inWork {
		return err
	}
	ready, failed := gate(p)
	if ready { // as far as the version's own work goes
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error { return d.checkReused(ctx, tx, b, &p, now) })
		if err != nil {
			return err
		}
		ready, failed = gate(p)
	}
	if ready {
		again, lost, err := d.readAgain(ctx, b, jobs, now)
		if err != nil {
			return err
		}
		ready, failed = !again && lost == "", lost
		d.wake.send(topicClaim)
	}
	switch {
	case failed != "":
		return d.failBuild(ctx, b, failed, now)
	case ready:
		return d.cutover(ctx, b, jobs, now)
	case near:
		return d.holdLive(ctx, b, now)
	case p.stale > 0 || p.held > 0:
		d.wake.send(topicClaim)
	}
	return nil
}

// inheritBatch is how many partitions are taken over before other builds have their turn.
const inheritBatch = 200

// readSources has every source of the build enumerated once since it began, and tells which could not be.
func (d *Dispatcher) readSources(ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time) (unread []string, err error) {
	done, rowIDs := map[uuid.UUID]bool{}, make([]uuid.UUID, len(jobs))
	for i, job := range jobs {
		rowIDs[i] = job.ID
	}
	rows, err := d.Pool.Query(ctx, `
		SELECT job_id FROM enumerations WHERE job_id = ANY($1) AND enumerated_at >= $2 AND error IS NULL`, rowIDs, b.Started)
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
		op, ok := d.enumerator(job)
		if !ok {
			continue
		}
		if d.underPressure() {
			unread = append(unread, job.Name)
			continue
		}
		if _, err := d.enumerate(ctx, job, op, false, now); err != nil {
			if operators.IsPermanent(err) || now.Sub(b.Started) > enumerateFor {
				return nil, d.failBuild(ctx, b, fmt.Sprintf("source %s: %v", job.Name, err), now)
			}
			d.Log.Warn("source cannot be read yet", "dag", b.DAG, "job", job.Name, "error", err)
			unread = append(unread, job.Name)
		}
		d.wake.send(topicClaim)
	}
	return unread, nil
}

// enumerateFor is how long a build tries to read a source that answers with errors.
const enumerateFor = time.Minute

// reconcileBuild counts what is open and, where nothing is, makes the tasks that are still wanted: a build is driven by
// the same events as live work, and by this when one was lost.
func (d *Dispatcher) reconcileBuild(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *progress, now time.Time) error {
	origins := make([]uuid.UUID, len(jobs))
	var generations []uuid.UUID
	for i, job := range jobs {
		origins[i] = job.Origin
		for _, o := range job.Outputs {
			generations = append(generations, o.Generation.Version)
		}
	}
	if err := lockOrigins(ctx, tx, origins); err != nil {
		return err
	}
	if err := d.retryOld(ctx, tx, b, origins, now); err != nil {
		return err
	}
	var err error
	if p.open, err = anyOpen(ctx, tx, origins); err != nil {
		return err
	}
	if p.dead, err = deadTasks(ctx, tx, origins); err != nil {
		return err
	}
	if p.open || len(p.dead) > 0 {
		return nil
	}
	findings, err := d.examineAll(ctx, tx, jobs)
	if err != nil {
		return err
	}
	if d.underPressure() {
		if p.stale = countStale(findings); p.stale > 0 {
			return nil
		}
	}
	made, err := d.createFound(ctx, tx, findings, nil, now)
	if err != nil {
		return err
	}
	p.stale = len(made.by)
	if err := d.givenUp(ctx, tx, b, findings, made, p); err != nil {
		return err
	}
	return d.recheck(ctx, tx, b, jobs, generations, p, now)
}

func countStale(findings []finding) (n int) {
	for _, f := range findings {
		if f.verdict == stale {
			n++
		}
	}
	return n
}

// retryOld tries again what had failed before this build was taken up: that is what deploying it again is for.
func (d *Dispatcher) retryOld(ctx context.Context, tx pgx.Tx, b registry.Build, origins []uuid.UUID, now time.Time) error {
	_, err := d.promoteFailed(ctx, tx, `reason = 'dead' AND job_id = ANY($1) AND EXISTS (
		SELECT FROM tasks t WHERE t.id = waiting.task_id AND t.completed_at < $2)`, "SYSTEM", now, origins, b.Started)
	return err
}

// givenUp looks at what is wanted and was not made, because its task is known. Where that was done, it had nothing to
// publish; where it was skipped, the build goes on without it. Where it was canceled, the version would lack the partition:
// it fails, unless the task was canceled before this build was taken up, for then it is tried again.
func (d *Dispatcher) givenUp(ctx context.Context, tx pgx.Tx, b registry.Build, findings []finding, made created, p *progress) error {
	var origins []uuid.UUID
	var keys []string
	for _, f := range findings {
		if _, ok := made.by[slotOf{f.job.Origin, f.key}]; f.verdict == stale && !ok {
			origins, keys = append(origins, f.job.Origin), append(keys, f.dedupe)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	tag, err := tx.Exec(ctx, `
		UPDATE tasks t SET reason = $4 FROM unnest($1::uuid[], $2::text[]) AS w(job_id, dedupe_key)
		WHERE t.job_id = w.job_id AND t.dedupe_key = w.dedupe_key AND t.status = 'Canceled' AND t.completed_at < $3 AND t.reason IS DISTINCT FROM $5`,
		origins, keys, b.Started, reasonAbandoned, reasonSkipped)
	if err != nil {
		return fmt.Errorf("want canceled tasks again: %w", err)
	}
	p.stale += int(tag.RowsAffected())
	rows, err := tx.Query(ctx, `
		SELECT format('task %s of %s was canceled', t.id, job_address(t.job_id) || coalesce(' ' || t.partitions[1], ''))
		FROM tasks t JOIN unnest($1::uuid[], $2::text[]) AS w(job_id, dedupe_key) ON t.job_id = w.job_id AND t.dedupe_key = w.dedupe_key
		WHERE t.status = 'Canceled' AND t.completed_at >= $3 AND t.reason IS DISTINCT FROM $4 ORDER BY t.id LIMIT 10`, origins, keys, b.Started, reasonSkipped)
	if err != nil {
		return fmt.Errorf("find canceled tasks: %w", err)
	}
	canceled, err := pgx.CollectRows(rows, pgx.RowTo[string])
	p.dead = append(p.dead, canceled...)
	return err
}

// anyOpen reports whether a task of the origins is open and may still come to an end. It is asked after every completion,
// so it must not count: each part is one look into an index that begins with job_id.
func anyOpen(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (open bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM ready WHERE job_id = ANY($1)) OR EXISTS (SELECT FROM leases WHERE job_id = ANY($1))
		    OR EXISTS (SELECT FROM waiting WHERE job_id = ANY($1) AND reason <> 'dead')`, origins).Scan(&open)
	if err != nil {
		return false, fmt.Errorf("look for open tasks: %w", err)
	}
	return open, nil
}

// deadTasks tells which tasks of the origins failed for good, and why; the first few will do.
func deadTasks(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT format('task %s of %s failed for good: %s', t.id, job_address(t.job_id) || coalesce(' ' || t.partitions[1], ''), t.error_message)
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.job_id = ANY($1) AND w.reason = 'dead' ORDER BY t.id LIMIT 10`, origins)
	if err != nil {
		return nil, fmt.Errorf("find dead tasks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// recheck looks at the revisions that readers would not see. A rejected one that was checked before this build began is
// checked again, for its checks may be what was mended.
func (d *Dispatcher) recheck(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, generations []uuid.UUID, p *progress, now time.Time) error {
	undecided, err := registry.Unsettled(ctx, tx, generations)
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
		o := outputs[u.Version]
		if !u.Held && (u.Decided == nil || !u.Decided.Before(b.Started)) {
			text, err := rejection(ctx, tx, jobs, u)
			if err != nil {
				return err
			}
			p.rejected = append(p.rejected, text)
			continue
		}
		// Nothing is open and nothing is dead: a held revision has lost its check, a rejected one gets another.
		check, err := checkTask(o.job, o.index, u.Key, u.Revision, classBuild)
		if err != nil {
			return err
		}
		if canceled, err := canceledSince(ctx, tx, check, b.Started); err != nil {
			return err
		} else if canceled {
			p.rejected = append(p.rejected, fmt.Sprintf("the check of %s on partition %s was canceled", o.job.Address(), u.Key))
			continue
		}
		p.held++
		check.dedupe += ":" + b.Started.UTC().Format(time.RFC3339Nano)
		if err := registry.HoldAgain(ctx, tx, u.Ref, u.Revision); err != nil {
			return err
		}
		if _, err := d.create(ctx, tx, []newTask{check}, now); err != nil {
			return err
		}
	}
	return nil
}

// canceledSince reports whether a task of that slot was canceled since.
func canceledSince(ctx context.Context, tx pgx.Tx, t newTask, since time.Time) (canceled bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tasks WHERE job_id = $1 AND slot = $2 AND status = 'Canceled' AND completed_at >= $3)`,
		t.job.Origin, t.slot, since).Scan(&canceled)
	if err != nil {
		return false, fmt.Errorf("look for canceled checks: %w", err)
	}
	return canceled, nil
}

func (d *Dispatcher) failBuild(ctx context.Context, b registry.Build, reason string, now time.Time) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAG(ctx, tx, b.OrgID, b.DAG); err != nil {
			return err
		}
		if changed, err := registry.MarkFailed(ctx, tx, b, reason); err != nil || !changed {
			return err
		}
		if err := announceFailedDeploy(ctx, tx, b, now); err != nil {
			return err
		}
		return d.cancelUnused(ctx, tx, b.OrgID, b.DAG, reasonAbandoned, now)
	})
	if err == nil {
		d.Log.Warn("build failed", "dag", b.DAG, "version", b.Number, "reason", reason)
	}
	return err
}
