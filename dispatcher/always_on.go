package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// An always_on source is one long task. There is always one, over all dispatchers: whoever finds none makes it, so a task
// that ended is followed by the next, and one whose worker died is tried again like any other. It is drained, which asks it
// to end where it likes, when a cutover changes its definition, when it is paused, while too much is queued, and before its
// time is up; who does not end within drainFor is stopped and hands its lease back. One in a server that stops is drained
// too, for stopFor.

const (
	// drainFor is how long a task may go on that was asked to end.
	drainFor = 30 * time.Second
	// stopFor is how long one may go on whose server stops.
	stopFor = 10 * time.Second
	// deadFor is how long a source whose task failed for good stays dead before it is tried again.
	deadFor = time.Minute
	// renewBefore is how long before its time is up a task is drained, so that the next goes on from there.
	renewBefore = 5 * time.Minute
)

// standing is how the one task of an always_on source stands.
type standing struct {
	task     *uuid.UUID // the open one, or the one that died last
	running  bool
	drained  bool // it was asked to end
	backoff  bool // it failed, and waits
	queued   bool
	died     *time.Time // it failed for good, then
	timeout  time.Time
	message  string
	mustRest bool // paused, or too much is queued
}

// supervise decides what to do about an always_on source, and how it is called. It is pure.
func (s standing) supervise(now time.Time) (state string, start, drain bool) {
	switch {
	case s.running && s.drained:
		return "Draining", false, false
	case s.running && (s.mustRest || !now.Before(s.timeout.Add(-renewBefore))):
		return "Draining", false, true
	case s.running:
		return "Running", false, false
	case s.backoff:
		return "Dead", false, false
	case s.queued || s.mustRest:
		return "Pending", false, false
	case s.died != nil && now.Before(s.died.Add(deadFor)):
		return "Dead", false, false
	}
	return "Pending", true, false
}

// superviseSources looks at every always_on source. It relies on there being few.
func (d *Dispatcher) superviseSources(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `SELECT org_id, dag_name, job_name FROM sources WHERE always_on ORDER BY org_id, dag_name, job_name`)
	if err != nil {
		return false, fmt.Errorf("list always_on sources: %w", err)
	}
	type source struct {
		Org      uuid.UUID
		DAG, Job string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[source])
	if err != nil {
		return false, fmt.Errorf("list always_on sources: %w", err)
	}
	var failed []error
	for _, s := range all {
		var made created
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			made, err = d.superviseSource(ctx, tx, s.Org, s.DAG, s.Job, now)
			return err
		})
		if err != nil && !fault.Is(err, fault.NotFound) { // a cutover took it away
			failed = append(failed, fmt.Errorf("source %s/%s: %w", s.DAG, s.Job, err))
		}
		d.wake.send(made.topics()...)
	}
	return false, errors.Join(failed...)
}

func (d *Dispatcher) superviseSource(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, name string, now time.Time) (made created, err error) {
	job, err := d.lockedJob(ctx, tx, org, dagName, name)
	if err != nil {
		return made, err
	}
	if err := lockOrigins(ctx, tx, ids(job.Origin)); err != nil {
		return made, err
	}
	s, err := standingOf(ctx, tx, job.Origin)
	if err != nil {
		return made, err
	}
	pauses, err := pausesOf(ctx, tx, org)
	if err != nil {
		return made, err
	}
	s.mustRest = d.underPressure() || coveredBy(pauses, dagName, name) != nil
	state, start, drain := s.supervise(now)
	if start {
		t := firedTask(job, now)
		t.slot, t.dedupe = alwaysOnSlot, ""
		if made, err = d.create(ctx, tx, []newTask{t}, now); err != nil {
			return made, err
		}
		for _, m := range made.by {
			s.task = &m.id
		}
	}
	if drain {
		if _, err := tx.Exec(ctx, `UPDATE leases SET drain_requested_at = $2 WHERE job_id = $1 AND drain_requested_at IS NULL`, job.Origin, now); err != nil {
			return made, fmt.Errorf("drain: %w", err)
		}
	}
	_, err = tx.Exec(ctx, `
		UPDATE sources SET state = $4, task_id = $5, error = NULLIF($6, ''), last_fire_at = CASE WHEN $7 THEN $8 ELSE last_fire_at END, updated_at = $8
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3
		  AND (state, task_id, error) IS DISTINCT FROM ($4, $5::uuid, NULLIF($6, ''))`, org, dagName, name, state, s.task, s.message, start, now)
	return made, wrap(err, "note state")
}

// alwaysOnSlot is what the one task of an always_on source holds.
const alwaysOnSlot = "always_on"

// standingOf relies on the keys by (job, slot) of the small sets.
func standingOf(ctx context.Context, tx pgx.Tx, origin uuid.UUID) (s standing, err error) {
	rows, err := tx.Query(ctx, `
		SELECT l.task_id, 'running', l.drain_requested_at IS NOT NULL, l.timeout_at, '' FROM leases l WHERE l.job_id = $1 AND l.slot = $2
		UNION ALL SELECT r.task_id, 'queued', false, NULL, '' FROM ready r WHERE r.job_id = $1 AND r.slot = $2
		UNION ALL SELECT w.task_id, w.reason, false, t.completed_at, coalesce(t.error_message, '')
		FROM waiting w JOIN tasks t ON t.id = w.task_id WHERE w.job_id = $1 AND w.slot = $2`, origin, alwaysOnSlot)
	if err != nil {
		return s, fmt.Errorf("look for its task: %w", err)
	}
	var (
		id      uuid.UUID
		how     string
		drained bool
		at      *time.Time
		message string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &how, &drained, &at, &message}, func() error {
		task := id
		switch s.task = &task; how {
		case "running":
			s.running, s.drained, s.timeout = true, drained, *at
		case "dead":
			s.died, s.message = at, message
		case "backoff":
			s.backoff, s.message = true, message
		default:
			s.queued = true
		}
		return nil
	})
	return s, err
}

// definitionOf tells two definitions of a source apart.
func definitionOf(job *registry.Job) (string, error) {
	text, err := json.Marshal(job.Def)
	return fmt.Sprintf("%x", sha256.Sum256(text)), err
}

// drainChanged asks the tasks of always_on sources to end whose definition the cutover changes, before it notes the new one.
func drainChanged(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, now time.Time) error {
	for _, job := range jobs {
		if job.Def.Source == nil || job.Def.Source.Kind != dag.SourceAlwaysOn {
			continue
		}
		definition, err := definitionOf(job)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			WITH changed AS (
				UPDATE sources SET definition = $4 WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND definition IS DISTINCT FROM $4
				RETURNING org_id)
			UPDATE leases l SET drain_requested_at = $6 FROM changed c
			WHERE l.org_id = c.org_id AND l.job_id = $5 AND l.slot = $7 AND l.drain_requested_at IS NULL`,
			b.OrgID, b.DAG, job.Name, definition, job.Origin, now, alwaysOnSlot); err != nil {
			return fmt.Errorf("drain %s: %w", job.Address(), err)
		}
	}
	return nil
}

var errDrained = errors.New("the task did not end in time when it was drained")

// awaitDrain closes drain when the task is asked to end, or its process is, and stops it where it does not.
func (d *Dispatcher) awaitDrain(ctx context.Context, t claimed, process <-chan struct{}, drain chan struct{}, stop context.CancelCauseFunc) {
	tick := time.NewTicker(min(d.Poll, time.Second))
	defer tick.Stop()
	for asked := false; !asked; {
		select {
		case <-ctx.Done():
			return
		case <-process:
			asked = true
			continue
		case <-tick.C:
		}
		err := d.Pool.QueryRow(ctx, `SELECT drain_requested_at IS NOT NULL FROM leases WHERE task_id = $1 AND lease_token = $2`, t.TaskID, t.LeaseToken).Scan(&asked)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) && ctx.Err() == nil {
			d.Log.Warn("could not look whether a task is drained", "task", t.TaskID, "error", err)
		}
	}
	close(drain)
	longest := time.After(drainFor)
	select {
	case <-ctx.Done():
		return
	case <-process:
		longest = time.After(stopFor)
	case <-longest:
		stop(errDrained)
		return
	}
	select {
	case <-ctx.Done():
	case <-longest:
		stop(errDrained)
	}
}

// isDrained reports whether a run was asked to end: how it ended then is not its failure.
func isDrained(t claimed) bool {
	select {
	case <-t.assignment.Drain:
		return true
	default: // a run that nothing can drain has no channel
		return false
	}
}
