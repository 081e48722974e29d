package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// dueSource is a source of an active version whose time has come.
type dueSource struct {
	Org     uuid.UUID
	DAG     string
	Name    string
	FireAt  time.Time
	Held    bool          // it was due earlier, and had to wait
	asked   bool          // somebody wants it now
	job     *registry.Job // the active one
	nextDue *time.Time    // nil: no clock fires it again
	failed  error
}

// collectDue collects rows of org, DAG, job and the time for which each is due.
func collectDue(rows pgx.Rows) ([]dueSource, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s dueSource, err error) {
		return s, row.Scan(&s.Org, &s.DAG, &s.Name, &s.FireAt)
	})
}

// Fire fires the sources that are due, each once across all dispatchers, and begins to read those that list what there
// is. While too much is queued they stay due, and every time of a schedule that passes meanwhile is made up for.
func (src *Sources) Fire(ctx context.Context, now time.Time) (more bool, err error) {
	if src.looked.IsZero() {
		src.looked = now
	}
	if err := src.hold(ctx, now); err != nil {
		return false, err
	}
	due, err := src.takeDue(ctx, now)
	if err != nil {
		return false, err
	}
	src.looked = now

	by, failed := src.dueBy(now), []error{src.read(ctx, now)}
	for _, s := range due {
		if s.failed != nil {
			failed = append(failed, src.noteFailed(ctx, s))
		}
		more = more || s.nextDue != nil && !s.nextDue.After(by) // it is still catching up
	}
	if len(due) > 0 {
		src.wake.Send(wakeup.Claim)
	}
	return more, errors.Join(failed...)
}

// hold notes which sources are due and have to wait because of what is queued.
func (src *Sources) hold(ctx context.Context, now time.Time) error {
	held := src.pressure.Held()
	if !held.Any() {
		return nil
	}
	_, err := src.pool.Exec(ctx, `
		UPDATE sources SET held = true
		WHERE next_fire_at <= $1 AND NOT held AND NOT enumerates AND `+held.Condition(2)+` AND `+tasks.NotPaused,
		append([]any{src.dueBy(now)}, held.Args()...)...)
	if err != nil {
		return fmt.Errorf("note which sources wait: %w", err)
	}
	return nil
}

// takeDue fires due sources that make one task each time: one transaction moves each on to its next time and makes its
// task.
func (src *Sources) takeDue(ctx context.Context, now time.Time) ([]dueSource, error) {
	var due []dueSource
	held := src.pressure.Held()
	err := pg.InTx(ctx, src.pool, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT org_id, dag_name, job_name, next_fire_at, held, asked FROM sources
			WHERE next_fire_at <= $1 AND NOT enumerates AND state <> 'Draining' AND NOT `+held.Condition(2)+`
			  AND `+tasks.NotPaused+`
			ORDER BY next_fire_at LIMIT 100 FOR UPDATE SKIP LOCKED`, append([]any{src.dueBy(now)}, held.Args()...)...)
		if err != nil {
			return err
		}
		due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s dueSource, err error) {
			return s, row.Scan(&s.Org, &s.DAG, &s.Name, &s.FireAt, &s.Held, &s.asked)
		})
		if err != nil {
			return err
		}

		if err := src.lockDue(ctx, tx, due); err != nil {
			return err
		}

		for i := range due {
			// Each source has a savepoint: one that cannot be fired holds up no other, and is tried again later.
			s := &due[i]
			if s.failed == nil {
				s.failed = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return src.fireOne(ctx, tx, s, now) })
			}
			if s.failed == nil {
				continue
			}
			if err := setNextFire(ctx, tx, s.Org, s.DAG, s.Name, now.Add(fireAgain)); err != nil {
				return errors.Join(s.failed, err)
			}
		}
		return nil
	})
	return due, err
}

// lockDue finds the jobs of due sources, and locks all their origins in the order in which everybody does.
func (src *Sources) lockDue(ctx context.Context, tx pgx.Tx, due []dueSource) error {
	var origins []uuid.UUID
	for i := range due {
		s := &due[i]
		if s.job, s.failed = src.registry.ActiveJob(ctx, tx, s.Org, s.DAG, s.Name); s.failed == nil {
			origins = append(origins, s.job.Origin)
		}
	}
	return tasks.LockOrigins(ctx, tx, origins)
}

// setNextFire sets when a source fires next.
func setNextFire(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, name string, at time.Time) error {
	_, err := tx.Exec(ctx, `
		UPDATE sources SET next_fire_at = $4 WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`,
		org, dagName, name, at)
	return err
}

// fireAgain is how long a source that could not be fired or read waits.
const fireAgain = time.Minute

// fireOne moves a source, whose job is locked, on to its next time, and makes its task. Times that passed since this
// process looked last, or while the source was held, were missed because of us: each is made up for. While a task of a
// polled source is open, its times pass: otherwise each would begin anew what waits for its retry, and failures would
// never add up.
func (src *Sources) fireOne(ctx context.Context, tx pgx.Tx, s *dueSource, now time.Time) error {
	job := s.job
	if _, ok := src.Enumerator(job); ok {
		return src.setEnumerates(ctx, tx, job, true) // it is read instead
	}

	ours := s.Held || !s.FireAt.Before(src.looked)
	var err error
	if s.nextDue, err = nextFire(job.Def.Source, s.FireAt, now, ours); err != nil {
		return err
	}
	held := ours && s.nextDue != nil && !s.nextDue.After(now)
	if _, err := tx.Exec(ctx, `
		UPDATE sources SET next_fire_at = $4, last_fire_at = $5, state = 'Running', error = NULL, updated_at = $5, held = $6,
			asked = false
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`,
		s.Org, s.DAG, s.Name, s.nextDue, now, held); err != nil {
		return err
	}

	task := firedTask(job, s.FireAt)
	if job.Def.Source.Kind == "poll" && !s.asked {
		open, err := tasks.IsOpen(ctx, tx, tasks.Slot{Origin: job.Origin, Key: task.Slot})
		if err != nil || open {
			return err // the next time looks for what comes after it
		}
	}
	return src.begin(ctx, tx, s, task, now)
}

// begin makes the task of a source. It notes what failed before in its place, which the task supersedes: nobody would
// see any more that the source fails until the task is out of attempts, too.
func (src *Sources) begin(ctx context.Context, tx pgx.Tx, s *dueSource, task tasks.Request, now time.Time) error {
	slot := tasks.Slot{Origin: task.Job.Origin, Key: task.Slot}
	failure, err := tasks.LastFailure(ctx, tx, slot)
	if err != nil {
		return err
	}
	created, err := src.tasks.Create(ctx, tx, tasks.Creation{Wanted: []tasks.Request{task}}, now)
	if err != nil || !created.By[slot].IsNew {
		return err
	}

	var text *string
	var at *time.Time
	if failure != nil {
		text, at = &failure.Error, &failure.At
	}
	_, err = tx.Exec(ctx, `
		UPDATE sources SET failing = $4, failing_task = $6,
			failing_since = CASE WHEN $5::timestamptz IS NOT NULL THEN coalesce(failing_since, $5) END
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND ($4::text IS NOT NULL OR failing IS NOT NULL)`,
		s.Org, s.DAG, s.Name, text, at, created.By[slot].ID)
	return fault.Wrap(err, "note whether the source fails")
}

// FiredPrefix begins the dedupe keys of the tasks of sources that list nothing: each of their times makes one.
const FiredPrefix = "fire:"

// firedTask returns the one task of a source that cannot enumerate. It makes the partition of that instant or, on a
// schedule, the last window that was complete then. The instant is its dedupe key, so that it is made once.
func firedTask(job *registry.Job, at time.Time) tasks.Request {
	key := dag.WholeKey
	if job.Def.TasksBy().Kind == dag.ByTime {
		if job.Def.Source.Kind == "cron" {
			key = job.Def.PartitionBy.LastComplete(at)
		} else {
			key = job.Def.PartitionBy.KeyAt(at)
		}
	}
	payload, _ := json.Marshal(map[string]string{"scheduled_at": at.UTC().Format(time.RFC3339)})
	return tasks.Request{Job: job, Kind: tasks.KindSource, Slot: key, Partition: key, Payload: payload,
		Dedupe: FiredPrefix + at.UTC().Format(time.RFC3339Nano)}
}

// noteFailed records why a source could not be fired.
func (src *Sources) noteFailed(ctx context.Context, s dueSource) error {
	_, err := src.pool.Exec(ctx, `UPDATE sources SET error = $4 WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`,
		s.Org, s.DAG, s.Name, s.failed.Error())
	return errors.Join(fmt.Errorf("source %s/%s: %w", s.DAG, s.Name, s.failed), err)
}

// Sync makes the rows of a DAG's sources those of its new version, in the transaction of the cutover. A source that
// existed before keeps its time. After a rollback, sources that poll look at once for data that came while the other
// version was active.
func (src *Sources) Sync(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, reason string, now time.Time,
) error {
	before, err := fireTimes(ctx, tx, b)
	if err != nil {
		return err
	}

	names, nexts, paths, steady, lists := []string{}, []*time.Time{}, []*string{}, []bool{}, []bool{}
	var runAs []string
	for _, job := range jobs {
		if job.Def.Source == nil {
			continue
		}
		next, err := src.firstFire(job, now)
		if err != nil {
			return err
		}
		if reason == deploy.ByRollback && job.Def.Source.Kind == "poll" {
			next = &now
		}
		if next, err = resumeAt(job.Def.Source, before[job.Name], next); err != nil {
			return err
		}
		names, nexts = append(names, job.Name), append(nexts, next)
		paths = append(paths, tasks.NullIfEmpty(job.Def.Source.Path))
		steady = append(steady, job.Def.Source.Kind == dag.SourceAlwaysOn)
		_, enumerates := src.Enumerator(job)
		lists, runAs = append(lists, enumerates), append(runAs, job.Def.RunsAs())
	}

	// Two jobs may swap their paths, which are unique.
	if _, err := tx.Exec(ctx, `
		UPDATE sources SET hook_path = NULL WHERE org_id = $1 AND dag_name = $2 AND hook_path IS NOT NULL`,
		b.OrgID, b.DAG); err != nil {
		return fmt.Errorf("sources of %s: %w", b.DAG, err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO sources (org_id, dag_name, job_name, state, next_fire_at, hook_path, updated_at, always_on, enumerates,
			operator)
		SELECT $1, $2, w.name, 'Pending', w.next, w.path, $6, w.steady, w.lists, w.operator
		FROM unnest($3::text[], $4::timestamptz[], $5::text[], $7::boolean[], $8::boolean[], $9::text[])
			AS w(name, next, path, steady, lists, operator)
		ON CONFLICT (org_id, dag_name, job_name) DO UPDATE
		SET next_fire_at = EXCLUDED.next_fire_at, hook_path = EXCLUDED.hook_path, updated_at = $6,
			always_on = EXCLUDED.always_on, enumerates = EXCLUDED.enumerates, operator = EXCLUDED.operator`,
		b.OrgID, b.DAG, names, nexts, paths, now, steady, lists, runAs)
	if taken := new(pgconn.PgError); errors.As(err, &taken) && taken.ConstraintName == "idx_sources_hook" {
		return fault.New(fault.Conflict, "a webhook of %s has the path of another DAG's by now", b.DAG).
			WithHint("give one of them another path")
	}
	if err != nil {
		return fmt.Errorf("sources of %s: %w", b.DAG, err)
	}

	if _, err = tx.Exec(ctx, `
		DELETE FROM sources WHERE org_id = $1 AND dag_name = $2 AND job_name <> ALL($3)`,
		b.OrgID, b.DAG, names); err != nil {
		return err
	}
	return drainChanged(ctx, tx, b, jobs, now)
}

// fireTimes locks a DAG's sources and returns when each fires next, by job name.
func fireTimes(ctx context.Context, tx pgx.Tx, b registry.Build) (map[string]*time.Time, error) {
	rows, err := tx.Query(ctx, `
		SELECT job_name, next_fire_at FROM sources
		WHERE org_id = $1 AND dag_name = $2 ORDER BY job_name FOR UPDATE`, b.OrgID, b.DAG)
	if err != nil {
		return nil, fmt.Errorf("sources of %s: %w", b.DAG, err)
	}
	times := map[string]*time.Time{}
	var name string
	var at *time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &at}, func() error { times[name] = at; return nil })
	return times, err
}

// firstFire returns when a source that just became active fires for the first time; nil: no clock fires it. With
// on_deploy that is at once, unless the build has already read everything.
func (src *Sources) firstFire(job *registry.Job, now time.Time) (*time.Time, error) {
	_, enumerable := src.Enumerator(job)
	if job.Def.Source.Kind == dag.SourceAlwaysOn {
		return nil, nil // Supervise starts it
	}
	if job.Def.Source.OnDeploy && job.Def.Asked() { // partitions have ended since the build read it
		return &now, nil
	}
	if job.Def.Source.OnDeploy && (!enumerable || src.registry.ForwardOnly(job)) && job.Def.Source.Kind != "manual" {
		return &now, nil
	}
	return nextFire(job.Def.Source, now, now, false)
}
