package sources

import (
	"context"
	"encoding/json"
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
	DAG, Job string
	Key      string // the same for the same occurrence
	Payload  json.RawMessage
	At       time.Time // when it was due
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

// CheckTimer returns an error if the job is not a timer job, or if the payload does not match its payload schema.
func (src *Sources) CheckTimer(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string, payload json.RawMessage,
) error {
	job, err := src.timerJob(ctx, tx, org, dagName, jobName)
	if err != nil {
		return err
	}
	schema, err := dispatcher.PayloadSchema(job)
	if err != nil || schema == nil {
		return err
	}
	if err := schema.Check(payload); err != nil {
		return fault.New(fault.Invalid, "delivery_payload: %s", err)
	}
	return nil
}

// EnqueueTimer makes the task of an occurrence, once for its key, in the transaction that moves the timer on. The
// payload is not checked again: a timer survives edits of its job. The caller calls Wake after its COMMIT.
func (src *Sources) EnqueueTimer(ctx context.Context, tx pgx.Tx, t TimerTask, now time.Time) error {
	job, err := src.dispatcher.SharedJob(ctx, tx, t.Org, t.DAG, t.Job)
	if err == nil {
		err = timerOnly(job)
	}
	if err != nil {
		return err
	}

	w := tasks.Request{Job: job, Kind: tasks.KindTimer, Dedupe: t.Key, Payload: t.Payload}
	if len(job.Outputs) > 0 {
		w.Partition = dag.WholeKey
		if job.Def.PartitionBy.Kind == dag.ByTime {
			w.Partition = job.Def.PartitionBy.KeyAt(t.At)
		}
	}
	_, err = src.dispatcher.EnqueueTx(ctx, tx, job, []tasks.Request{w}, now)
	return err
}
