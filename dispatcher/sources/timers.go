package sources

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// TimerTask is one occurrence of a timer, to be made a task.
type TimerTask struct {
	Org      uuid.UUID
	Timer    uuid.UUID
	DAG, Job string
	Key      string // the same for the same occurrence
	Payload  json.RawMessage
	At       time.Time // when it was due
	Local    string    // the same, as the zone's clocks show it
	Timezone string
}

// metadata is what the task knows of its timer.
func (t TimerTask) metadata() (json.RawMessage, error) {
	return json.Marshal(map[string]any{"timer": map[string]any{"id": t.Timer, "key": t.Key, "due_at": t.At,
		"due_local": t.Local, "timezone": t.Timezone}})
}

// timerJob returns the job of the active version that a timer names.
func (src *Sources) timerJob(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string,
) (*registry.Job, error) {
	job, err := src.registry.ActiveJob(ctx, tx, org, dagName, jobName)
	if err != nil {
		return nil, err
	}
	return job, timerOnly(job)
}

// timerOnly returns an error unless the job is a timer job.
func timerOnly(job *registry.Job) error {
	if job.Def.Source == nil || job.Def.Source.Kind != "timer" {
		return fault.New(fault.Invalid, "%s is not a timer job", job.Address()).
			WithHint("give it `source: {kind: timer}`")
	}
	return nil
}

// TimerCheck returns an error if a job is not a timer job, or if a payload does not match its payload schema.
type TimerCheck func(dagName, jobName string, payload json.RawMessage) error

// TimerChecks returns a TimerCheck for the timers of one request, which looks each job up once.
func (src *Sources) TimerChecks(ctx context.Context, tx pgx.Tx, org uuid.UUID) TimerCheck {
	type target struct {
		check func(payload json.RawMessage) error
		err   error
	}
	targets := map[[2]string]target{}

	return func(dagName, jobName string, payload json.RawMessage) error {
		name := [2]string{dagName, jobName}
		t, known := targets[name]
		if !known {
			var job *registry.Job
			if job, t.err = src.timerJob(ctx, tx, org, dagName, jobName); t.err == nil {
				t.check, t.err = dispatcher.TimerPayload(job)
			}
			targets[name] = t
		}
		if t.err != nil {
			return t.err
		}
		return t.check(payload)
	}
}

// EnqueueTimer makes the task of an occurrence, once for its key, in the transaction that moves the timer on, and
// returns its id. The payload is not checked again: a timer survives edits of its job. The caller calls Wake after its
// COMMIT.
func (src *Sources) EnqueueTimer(ctx context.Context, tx pgx.Tx, t TimerTask, now time.Time,
) (uuid.UUID, error) {
	job, err := src.dispatcher.SharedJob(ctx, tx, t.Org, t.DAG, t.Job)
	if err == nil {
		err = timerOnly(job)
	}
	if err != nil {
		return uuid.Nil, err
	}

	w := tasks.Request{Job: job, Kind: tasks.KindTimer, Dedupe: t.Key, Payload: t.Payload}
	if w.Metadata, err = t.metadata(); err != nil {
		return uuid.Nil, err
	}
	if len(job.Outputs) > 0 {
		w.Partition = dag.WholeKey
		if job.Def.TasksBy().Kind == dag.ByTime {
			w.Partition = job.Def.PartitionBy.KeyAt(t.At)
		}
	}
	made, err := src.dispatcher.EnqueueTx(ctx, tx, job, []tasks.Request{w}, now)
	if err != nil {
		return uuid.Nil, err
	}
	return made[0].ID, nil
}

// TimerOutcome is how the task of an occurrence goes.
type TimerOutcome struct {
	Status string // of the task
	Error  string // of its last attempt, or why it was canceled
	Over   bool   // it has ended, and nothing but a person makes it run again
}

// TimerOutcomes returns how tasks go; those that are not kept any more are absent.
func TimerOutcomes(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]TimerOutcome, error) {
	found := map[uuid.UUID]TimerOutcome{}
	if len(ids) == 0 {
		return found, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT t.id, t.status, coalesce(CASE t.status WHEN 'Canceled' THEN t.reason ELSE t.error_message END, ''),
			t.status IN ('Completed', 'Canceled') OR t.status = 'Failed' AND EXISTS (
				SELECT FROM waiting w WHERE w.task_id = t.id AND w.reason = 'dead')
		FROM shown_tasks t WHERE t.id = ANY($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("tasks of timers: %w", err)
	}

	var (
		id uuid.UUID
		o  TimerOutcome
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &o.Status, &o.Error, &o.Over}, func() error {
		found[id] = o
		return nil
	})
	return found, err
}
