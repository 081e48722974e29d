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

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Enqueue makes tasks of a manual job, one or many, in one transaction. An idempotency key that is known answers the
// task it named before.
func (d *Dispatcher) Enqueue(ctx context.Context, caller authz.Caller, dagName, jobName string, items []EnqueueItem) ([]Enqueued, error) {
	if err := d.hasRoom(); err != nil {
		return nil, fmt.Errorf("enqueue %s/%s: %w", dagName, jobName, err)
	}
	var out []Enqueued
	now := time.Now()
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		job, err := d.shareQueue(ctx, tx, caller.OrgID, dagName, jobName)
		if err != nil {
			return err
		}
		if job.Def.Source == nil || job.Def.Source.Kind != "manual" {
			return fault.New(fault.Invalid, "%s is not a manual job: its tasks come from its inputs or its schedule", job.Address()).
				WithHint("give it `source: {kind: manual}` to enqueue tasks by hand")
		}
		wanted, err := d.wantedItems(job, items)
		if err != nil {
			return err
		}
		if out, err = d.enqueueTx(ctx, tx, job, wanted, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "task.enqueue", job.Address(), map[string]any{"tasks": len(items)})
	})
	if err != nil {
		return nil, fmt.Errorf("enqueue %s/%s: %w", dagName, jobName, err)
	}
	d.wake.send(topicClaim)
	return out, nil
}

func (d *Dispatcher) wantedItems(job *registry.Job, items []EnqueueItem) ([]newTask, error) {
	var problems []fault.Problem
	wanted := make([]newTask, len(items))
	schema, err := payloadSchema(job)
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		w := newTask{job: job, kind: "manual", partition: item.Partition, payload: item.Payload, runAt: item.RunAt,
			maxAttempts: item.MaxAttempts, metadata: item.Metadata, concurrency: item.ConcurrencyKey}
		if item.Priority != nil {
			w.priority = *item.Priority
		}
		if w.partition == "" && len(job.Outputs) > 0 {
			w.partition = dag.WholeKey
		}
		at := func(message string) {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.items[%d]", i), Message: message})
		}
		if len(job.Outputs) > 0 && (job.Def.PartitionBy.Kind != dag.ByCursor || w.partition != dag.WholeKey) {
			if err := job.Def.PartitionBy.Valid(w.partition); err != nil {
				at(err.Error())
			} else if job.Def.PartitionBy.Kind == dag.ByCursor {
				at("what is next follows what is there: leave `partition` out")
			}
		}
		if schema != nil {
			if err := schema.check(item.Payload); err != nil {
				at("payload: " + err.Error())
			}
		}
		if w.inputHash, err = inputHash(job.Def.Dedupe, item.Payload); err != nil {
			at(err.Error())
		}
		switch {
		case item.IdempotencyKey != "":
			w.dedupe = "key:" + item.IdempotencyKey
		case w.inputHash != "":
			w.dedupe = "input:" + w.inputHash
		}
		wanted[i] = w
	}
	if len(problems) > 0 {
		e := fault.New(fault.Invalid, "%s: %s", problems[0].Location, problems[0].Message)
		e.Problems = problems
		return nil, e
	}
	return wanted, nil
}

// enqueueTx makes the tasks whose keys are not known. Asked for by hand, a task is made even where another is queued for
// the same output partition, for each has a payload of its own: it has a slot of its own too, and limitsOf has it wait. The
// caller shares the lock of the job's origin with others who do this; which of two makes the task of a key, the key decides.
func (d *Dispatcher) enqueueTx(ctx context.Context, tx pgx.Tx, job *registry.Job, wanted []newTask, now time.Time) ([]Enqueued, error) {
	known, err := knownKeys(ctx, tx, job, wanted)
	if err != nil {
		return nil, err
	}
	out := make([]Enqueued, len(wanted))
	var fresh []newTask
	for i, w := range wanted {
		if id, ok := known[w.dedupe]; ok && w.dedupe != "" {
			out[i] = Enqueued{ID: id}
			continue
		}
		w.id = uuid.Must(uuid.NewV7()) // in the order asked for, which is that of claims
		w.slot = "task:" + w.id.String()
		out[i] = Enqueued{ID: w.id, Created: true}
		if w.dedupe != "" {
			known[w.dedupe] = w.id
		}
		fresh = append(fresh, w)
	}
	made, err := d.create(ctx, tx, fresh, now)
	if err != nil || len(made.by) == len(fresh) {
		return out, err
	}
	// The insert has waited for whoever made the others meanwhile, so they are to be seen now.
	if known, err = knownKeys(ctx, tx, job, wanted); err != nil {
		return nil, err
	}
	for i, w := range wanted {
		if id, ok := known[w.dedupe]; ok && id != out[i].ID && w.dedupe != "" {
			out[i] = Enqueued{ID: id}
		}
	}
	return out, nil
}

// knownKeys finds the tasks that have keys of the wanted ones, under every definition that the job has had.
func knownKeys(ctx context.Context, tx pgx.Tx, job *registry.Job, wanted []newTask) (map[string]uuid.UUID, error) {
	var keys []string
	for _, w := range wanted {
		if w.dedupe != "" {
			keys = append(keys, w.dedupe)
		}
	}
	if len(keys) == 0 {
		return map[string]uuid.UUID{}, nil
	}
	origins, err := registry.OriginsNamed(ctx, tx, job)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT dedupe_key, id FROM tasks WHERE job_id = ANY($1) AND dedupe_key = ANY($2)`, origins, keys)
	if err != nil {
		return nil, fmt.Errorf("find idempotency keys: %w", err)
	}
	known := map[string]uuid.UUID{}
	var (
		key string
		id  uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error { known[key] = id; return nil })
	return known, err
}

// inputHash is the SHA-256 of the payload fields that make two tasks the same; empty where the job names none.
func inputHash(fields []string, payload json.RawMessage) (string, error) {
	if len(fields) == 0 {
		return "", nil
	}
	var values map[string]json.RawMessage
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &values); err != nil {
			return "", errors.New("payload: not a JSON object, but the job dedupes by its fields")
		}
	}
	h := sha256.New()
	for _, f := range fields {
		var v any
		_ = json.Unmarshal(values[f], &v) // a missing field hashes as null
		canonical, err := json.Marshal([]any{f, v})
		if err != nil {
			return "", err
		}
		h.Write(canonical)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
