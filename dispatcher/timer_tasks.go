package dispatcher

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// TimerTask is one occurrence of a timer, wanted as a task.
type TimerTask struct {
	Org      uuid.UUID
	DAG, Job string
	Key      string // the same for the same occurrence
	Payload  json.RawMessage
	At       time.Time // when it was to be
}

// timerJob is the job of the active version that a timer names.
func (d *Dispatcher) timerJob(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string) (*registry.Job, error) {
	job, err := d.Registry.ActiveJob(ctx, tx, org, dagName, jobName)
	if err != nil {
		return nil, err
	}
	return job, timerOnly(job)
}

func timerOnly(job *registry.Job) error {
	if job.Def.Source == nil || job.Def.Source.Kind != "timer" {
		return fault.New(fault.Invalid, "%s is not a timer job", job.Address()).WithHint("give it `source: {kind: timer}`")
	}
	return nil
}

// CheckTimer refuses a timer of a job that is no timer job, or whose payload schema the payload does not fit.
func (d *Dispatcher) CheckTimer(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string, payload json.RawMessage) error {
	job, err := d.timerJob(ctx, tx, org, dagName, jobName)
	if err != nil {
		return err
	}
	schema, err := payloadSchema(job)
	if err != nil || schema == nil {
		return err
	}
	if err := schema.check(payload); err != nil {
		return fault.New(fault.Invalid, "delivery_payload: %s", err)
	}
	return nil
}

// EnqueueTimer makes the task of an occurrence, once for its key, in the transaction that moves the timer on. The payload
// is not checked again: a timer survives the edits of its job. Whoever commits calls Wake.
func (d *Dispatcher) EnqueueTimer(ctx context.Context, tx pgx.Tx, t TimerTask, now time.Time) error {
	job, err := d.shareQueue(ctx, tx, t.Org, t.DAG, t.Job)
	if err == nil {
		err = timerOnly(job)
	}
	if err != nil {
		return err
	}
	w := newTask{job: job, kind: "timer", dedupe: t.Key, payload: t.Payload}
	if len(job.Outputs) > 0 {
		w.partition = dag.WholeKey
		if job.Def.PartitionBy.Kind == dag.ByTime {
			w.partition = job.Def.PartitionBy.KeyAt(t.At)
		}
	}
	_, err = d.enqueueTx(ctx, tx, job, []newTask{w}, now)
	return err
}
