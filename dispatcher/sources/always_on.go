package sources

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
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// An always_on source is one long task. There is always exactly one, across all dispatchers: a dispatcher that finds
// none makes it, so the next task follows one that ended, and a task whose worker died is tried again like any other.
// It is drained, which asks it to end at a point of its choice, when a cutover changes its definition, when it is
// paused, while too much is queued, and before its time is up; a task that does not end in the time given to drain is
// stopped and hands its lease back. A server that stops drains its tasks too.

const (
	// DeadFor is how long a source whose task failed for good stays dead before it is tried again.
	DeadFor = time.Minute
	// renewBefore is how long before its time is up a task is drained, so that the next task goes on from there.
	renewBefore = 5 * time.Minute
)

// The states of an always_on source.
const (
	statePending  = "Pending" // its task has yet to start
	stateRunning  = "Running"
	stateDraining = "Draining" // its task is to hand over to the next one
	stateDead     = "Dead"     // its task failed
)

// standing is the state of the one task of an always_on source.
type standing struct {
	task     *uuid.UUID // the open task, or the last one that died
	running  bool
	drained  bool // it was asked to end
	backoff  bool // it failed, and waits for its retry
	queued   bool
	died     *time.Time // when it failed for good
	timeout  time.Time
	message  string
	mustRest bool // paused, or too much is queued
}

// supervise returns the state of an always_on source to show, and whether to start a task of it or to drain the running
// one.
func (s standing) supervise(now time.Time) (state string, start, drain bool) {
	switch {
	case s.running && s.drained:
		return stateDraining, false, false
	case s.running && (s.mustRest || !now.Before(s.timeout.Add(-renewBefore))):
		return stateDraining, false, true
	case s.running:
		return stateRunning, false, false
	case s.backoff:
		return stateDead, false, false
	case s.queued || s.mustRest:
		return statePending, false, false
	case s.died != nil && now.Before(s.died.Add(DeadFor)):
		return stateDead, false, false
	}
	return statePending, true, false
}

// Supervise looks at every always_on source. It relies on there being few.
func (src *Sources) Supervise(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := src.pool.Query(ctx, `
		SELECT org_id, dag_name, job_name FROM sources WHERE always_on ORDER BY org_id, dag_name, job_name`)
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
		var made tasks.Created
		err := pg.InTx(ctx, src.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			made, err = src.superviseOne(ctx, tx, s.Org, s.DAG, s.Job, now)
			return err
		})
		if err != nil && !fault.Is(err, fault.NotFound) { // NotFound: a cutover removed it
			failed = append(failed, fmt.Errorf("source %s/%s: %w", s.DAG, s.Job, err))
		}
		src.wake.Send(made.Topics()...)
	}
	return false, errors.Join(failed...)
}

// superviseOne starts or drains the task of one always_on source, and records its state.
func (src *Sources) superviseOne(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, name string, now time.Time,
) (made tasks.Created, err error) {
	job, err := src.dispatcher.LockedJob(ctx, tx, org, dagName, name)
	if err != nil {
		return made, err
	}
	if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{job.Origin}); err != nil {
		return made, err
	}

	s, err := standingOf(ctx, tx, job.Origin)
	if err != nil {
		return made, err
	}
	pauses, err := tasks.PausesOf(ctx, tx, org)
	if err != nil {
		return made, err
	}
	s.mustRest = src.pressure.Holds(org, dagName) || tasks.WidestPause(pauses, dagName, name) != nil

	state, start, drain := s.supervise(now)
	if start {
		t := firedTask(job, now)
		t.Slot, t.Dedupe = dispatcher.AlwaysOnSlot, ""
		if made, err = src.tasks.Create(ctx, tx, tasks.Creation{Wanted: []tasks.Request{t}}, now); err != nil {
			return made, err
		}
		for _, m := range made.By {
			s.task = &m.ID
		}
	}
	if drain {
		if _, err := tx.Exec(ctx, `
			UPDATE leases SET drain_requested_at = $2 WHERE origin_job_id = $1 AND drain_requested_at IS NULL`,
			job.Origin, now); err != nil {
			return made, fmt.Errorf("drain: %w", err)
		}
	}

	_, err = tx.Exec(ctx, `
		UPDATE sources SET state = $4, task_id = $5, error = NULLIF($6, ''),
			last_fire_at = CASE WHEN $7 THEN $8 ELSE last_fire_at END, updated_at = $8
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3
		  AND (state, task_id, error) IS DISTINCT FROM ($4, $5::uuid, NULLIF($6, ''))`,
		org, dagName, name, state, s.task, s.message, start, now)
	return made, fault.Wrap(err, "note state")
}

// standingOf reads the state of an origin's always_on task. It relies on the keys by (origin_job_id, slot) of the small
// sets.
func standingOf(ctx context.Context, tx pgx.Tx, origin uuid.UUID) (s standing, err error) {
	rows, err := tx.Query(ctx, `
		SELECT l.task_id, 'running', l.drain_requested_at IS NOT NULL, l.timeout_at, ''
		FROM leases l WHERE l.origin_job_id = $1 AND l.slot = $2
		UNION ALL SELECT r.task_id, 'queued', false, NULL, '' FROM ready r WHERE r.origin_job_id = $1 AND r.slot = $2
		UNION ALL SELECT w.task_id, w.reason, false, t.completed_at, coalesce(t.error_message, '')
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.origin_job_id = $1 AND w.slot = $2`, origin, dispatcher.AlwaysOnSlot)
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
		case string(tasks.WaitDead):
			s.died, s.message = at, message
		case string(tasks.WaitBackoff):
			s.backoff, s.message = true, message
		default:
			s.queued = true
		}
		return nil
	})
	return s, err
}

// definitionOf returns a hash of a source's definition.
func definitionOf(job *registry.Job) (string, error) {
	text, err := json.Marshal(job.Def)
	return fmt.Sprintf("%x", sha256.Sum256(text)), err
}

// drainChanged asks those tasks of always_on sources to end whose definition the cutover changes, and records the new
// definitions.
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
				UPDATE sources SET definition = $4
				WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND definition IS DISTINCT FROM $4
				RETURNING org_id)
			UPDATE leases l SET drain_requested_at = $6 FROM changed c
			WHERE l.org_id = c.org_id AND l.origin_job_id = $5 AND l.slot = $7 AND l.drain_requested_at IS NULL`,
			b.OrgID, b.DAG, job.Name, definition, job.Origin, now, dispatcher.AlwaysOnSlot); err != nil {
			return fmt.Errorf("drain %s: %w", job.Address(), err)
		}
	}
	return nil
}
