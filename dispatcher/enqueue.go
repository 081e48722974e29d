package dispatcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// notManual says where the tasks of a job come from that takes none made by hand.
func notManual(job *registry.Job) error {
	from, hint := "its inputs", fmt.Sprintf("`dagctl backfill %s` computes partitions again", job.Address())
	if s := job.Def.Source; s != nil {
		switch s.Kind {
		case "timer":
			from = "timers"
			hint = fmt.Sprintf("`dagctl timers create %s --at LOCAL --timezone ZONE` makes one", job.Address())
		case "webhook":
			from, hint = "deliveries to its address", fmt.Sprintf("`dagctl why %s` says what came", job.Address())
		case "always_on":
			from = "its own run, which does not end"
			hint = fmt.Sprintf("`dagctl why %s` says how it goes", job.Address())
		case dag.SourceDeploy:
			from, hint = "the rows that its DAG has", "edit them, and `dagctl deploy` makes them again"
		default:
			from = "its schedule"
			hint = fmt.Sprintf("`dagctl run %s` without a payload and options of tasks reads it now", job.Address())
		}
	}

	return fault.New(fault.Invalid, "%s is not a manual job: its tasks come from %s", job.Address(), from).
		WithHint("%s; `source: {kind: manual}` takes tasks made by hand", hint)
}

// Enqueue makes tasks of a manual job in one transaction. For an idempotency key that is known it returns the existing
// task.
func (d *Dispatcher) Enqueue(
	ctx context.Context, caller authz.Caller, dagName, jobName string, items []EnqueueItem,
) ([]Enqueued, error) {
	var out []Enqueued
	now := clock.Now()
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		job, err := d.SharedJob(ctx, tx, caller.OrgID, dagName, jobName)
		if err != nil {
			return err
		}
		if job.Def.Source == nil || job.Def.Source.Kind != "manual" {
			return notManual(job)
		}

		if err := d.Pressure.HasRoom(caller.OrgID, job.Def.Runtime); err != nil {
			return err
		}
		wanted, err := WantedItems(job, items, now)
		if err != nil {
			return err
		}
		for i := range wanted {
			wanted[i].By = caller.Actor
		}
		if out, err = d.EnqueueTx(ctx, tx, job, wanted, now); err != nil {
			return err
		}
		err = authz.Audit(ctx, tx, caller, "task.enqueue", job.Address(), map[string]any{"tasks": len(items)})
		if err != nil {
			return err
		}
		return TakeQueued(ctx, tx, caller.OrgID, out, now)
	})
	if err != nil {
		return nil, fmt.Errorf("enqueue %s/%s: %w", dagName, jobName, err)
	}

	d.Wakeups.Send(wakeup.Claim)
	return out, nil
}

// TakeQueued takes the tasks that were made from the org's quota of queued tasks. It is the last statement before the
// COMMIT, because others of the org wait for its lock.
func TakeQueued(ctx context.Context, tx pgx.Tx, org uuid.UUID, out []Enqueued, now time.Time) error {
	made := int64(0)
	for _, e := range out {
		if e.Created {
			made++
		}
	}
	if made == 0 {
		return nil
	}
	return authz.TakeQuota(ctx, tx, org, authz.QueuedTasks, made, now)
}

// WantedItems checks the items of a request, and returns the tasks they ask for. The error lists the problems of all
// items.
func WantedItems(job *registry.Job, items []EnqueueItem, now time.Time) ([]tasks.Request, error) {
	schema, err := PayloadSchema(job)
	if err != nil {
		return nil, err
	}

	var problems []fault.Problem
	wanted := make([]tasks.Request, len(items))
	for i, item := range items {
		w, wrong := wantedTask(job, schema, item, now)
		for _, message := range wrong {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.items[%d]", i), Message: message})
		}
		wanted[i] = w
	}
	return wanted, refuse(problems)
}

// wantedTask returns the task that an item asks for, and what is wrong with the item. It is pure.
func wantedTask(
	job *registry.Job, payload *schema, item EnqueueItem, now time.Time,
) (w tasks.Request, wrong []string) {
	w = tasks.Request{Job: job, Kind: tasks.KindManual, Partition: item.Partition, Payload: item.Payload,
		RunAt:       item.RunAt,
		MaxAttempts: item.MaxAttempts, Metadata: item.Metadata, Concurrency: item.ConcurrencyKey,
		Priority: item.Priority}
	if w.Partition == "" && len(job.Outputs) > 0 {
		w.Partition = dag.WholeKey
	}

	if message := wrongPartition(job, w.Partition, now); message != "" {
		wrong = append(wrong, message)
	}
	if !isObject(item.Metadata) {
		wrong = append(wrong, "metadata: it is not a JSON object")
	}
	if err := literal.Storable(item.Metadata); err != nil {
		wrong = append(wrong, "metadata: "+err.Error())
	}
	if err := literal.Storable(item.Payload); err != nil {
		wrong = append(wrong, "payload: "+err.Error())
	} else if payload != nil {
		if err := payload.Check(item.Payload); err != nil {
			wrong = append(wrong, "payload: "+err.Error())
		}
	}
	var err error
	if w.InputHash, err = inputHash(job.Def.Dedupe, item.Payload); err != nil {
		wrong = append(wrong, err.Error())
	}

	switch {
	case item.IdempotencyKey != "":
		w.Dedupe = "key:" + item.IdempotencyKey
	case w.InputHash != "":
		w.Dedupe = "input:" + w.InputHash
	}
	return w, wrong
}

// isObject reports whether a text is a JSON object, null or nothing.
func isObject(text json.RawMessage) bool {
	var fields map[string]json.RawMessage
	return len(text) == 0 || json.Unmarshal(text, &fields) == nil
}

// wrongPartition returns the reason why a task of the job cannot make a partition, or an empty string if it can.
func wrongPartition(job *registry.Job, partition string, now time.Time) string {
	by := job.Def.TasksBy()
	if len(job.Outputs) == 0 || by.Kind == dag.ByCursor && partition == dag.WholeKey {
		return ""
	}
	if err := by.Valid(partition); err != nil {
		if partition == dag.WholeKey { // what stands for none
			return needsPartition(by, now)
		}
		return err.Error()
	}

	if by.Kind == dag.ByCursor {
		return "the next segment follows the last one: leave `partition` out"
	}
	if err := job.Def.RefuseAsking(partition, now); err != nil {
		return fault.Text(err)
	}
	return ""
}

// needsPartition says to a task that names none which partition it could make.
func needsPartition(by dag.Partitioning, now time.Time) string {
	text := fmt.Sprintf("the job makes %s, and each task one of them: say which (`--partition KEY`)", by)
	if by.Kind == dag.ByTime {
		return text + ", such as " + by.LastComplete(now)
	}
	return text
}

// EnqueueTx makes the tasks whose keys are not known. A task asked for by hand is made even if another is queued for
// the same output partition, because each has its own payload: so each has its own slot, and a limit makes it wait. The
// caller holds the shared lock of the job's origin; of two transactions with the same key, only one makes its task.
func (d *Dispatcher) EnqueueTx(
	ctx context.Context, tx pgx.Tx, job *registry.Job, wanted []tasks.Request, now time.Time,
) ([]Enqueued, error) {
	known, err := knownKeys(ctx, tx, job, wanted)
	if err != nil {
		return nil, err
	}
	out := make([]Enqueued, len(wanted))
	var fresh []tasks.Request
	for i, w := range wanted {
		if id, ok := known[w.Dedupe]; ok && w.Dedupe != "" {
			out[i] = Enqueued{ID: id}
			continue
		}
		w.ID = uuid.Must(uuid.NewV7()) // ids ascend in the order of the request, so claims follow it
		w.Slot = "task:" + w.ID.String()
		out[i] = Enqueued{ID: w.ID, Created: true}
		if w.Dedupe != "" {
			known[w.Dedupe] = w.ID
		}
		fresh = append(fresh, w)
	}

	made, err := d.Tasks.Create(ctx, tx, tasks.Creation{Wanted: fresh}, now)
	if err != nil || len(made.By) == len(fresh) {
		return out, err
	}

	// Create waited for the transactions that made the other tasks, so those are visible now.
	if known, err = knownKeys(ctx, tx, job, wanted); err != nil {
		return nil, err
	}
	for i, w := range wanted {
		if id, ok := known[w.Dedupe]; ok && id != out[i].ID && w.Dedupe != "" {
			out[i] = Enqueued{ID: id}
		}
	}
	return out, nil
}

// knownKeys returns the existing tasks that have the keys of wanted tasks, under any definition that the job ever had.
func knownKeys(
	ctx context.Context, tx pgx.Tx, job *registry.Job, wanted []tasks.Request,
) (map[string]uuid.UUID, error) {
	var keys []string
	for _, w := range wanted {
		if w.Dedupe != "" {
			keys = append(keys, w.Dedupe)
		}
	}
	if len(keys) == 0 {
		return map[string]uuid.UUID{}, nil
	}

	origins, err := deploy.OriginsOfJob(ctx, tx, job)
	if err != nil {
		return nil, err
	}
	if err := giveUpKeys(ctx, tx, origins, keys); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT dedupe_key, id FROM tasks WHERE job_id = ANY($1) AND dedupe_key = ANY($2)`,
		origins, keys)
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

// giveUpKeys takes keys from canceled tasks that have them, whose trails keep them: what somebody canceled may be asked
// for again. A task that somebody skipped keeps its key, because that decided that the work is not to be done.
func giveUpKeys(ctx context.Context, tx pgx.Tx, origins []uuid.UUID, keys []string) error {
	_, err := tx.Exec(ctx, `
		WITH held AS (
			SELECT id, dedupe_key FROM tasks
			WHERE job_id = ANY($1) AND dedupe_key = ANY($2) AND status = 'Canceled' AND reason <> 'skipped'
			ORDER BY id FOR UPDATE),
		free AS (
			UPDATE tasks t SET dedupe_key = NULL, version = version + 1 FROM held
			WHERE t.id = held.id RETURNING t.id, t.org_id, t.attempt, held.dedupe_key)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, detail, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Canceled', 'Canceled', 'SYSTEM',
		       jsonb_build_object('gave_up_key', dedupe_key), now() FROM free`, origins, keys)
	if err != nil {
		return fmt.Errorf("free the keys of canceled tasks: %w", err)
	}
	return nil
}

// inputHash returns the SHA-256 of the payload fields that make two tasks the same. It is empty if the job names none.
func inputHash(fields []string, payload json.RawMessage) (string, error) {
	if len(fields) == 0 {
		return "", nil
	}
	var values map[string]json.RawMessage
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &values); err != nil {
			return "", errors.New("payload: not a JSON object, but the job deduplicates by its fields")
		}
	}

	h := sha256.New()
	for _, f := range fields {
		v, _ := literal.Decode(values[f]) // a missing field hashes as null
		canonical, err := json.Marshal([]any{f, v})
		if err != nil {
			return "", err
		}
		h.Write(canonical)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// Empty reports whether no field of the item is set, apart from the concurrency key.
func (item EnqueueItem) Empty() bool {
	return item.IdempotencyKey == "" && item.Payload == nil && item.Partition == "" && item.Priority == nil &&
		item.RunAt == nil && item.MaxAttempts == 0 && item.Metadata == nil
}

// EnqueueItem asks for one task of a manual job.
type EnqueueItem struct {
	IdempotencyKey string          `json:"idempotency_key,omitempty" maxLength:"200"`
	Payload        json.RawMessage `json:"payload,omitempty"`
	Partition      string          `json:"partition,omitempty" maxLength:"200"`
	Priority       *int            `json:"priority,omitempty" minimum:"-1000" maximum:"1000"`
	RunAt          *time.Time      `json:"run_at,omitempty"`
	MaxAttempts    int             `json:"max_attempts,omitempty" minimum:"1" maximum:"100"`
	Metadata       json.RawMessage `json:"metadata,omitempty" doc:"A JSON object"`
	ConcurrencyKey string          `json:"concurrency_key,omitempty" maxLength:"200" doc:"One running task per key in the org; default: what the job's template makes of the payload"`
}

// Enqueued answers one EnqueueItem.
type Enqueued struct {
	ID      uuid.UUID `json:"id"`
	Created bool      `json:"created" doc:"False if the idempotency key was known: the id is the existing task's"`
}

// SharedJob returns a job as LockedJob does, and shares the lock of its origin: several transactions may make tasks of
// a manual, timer or webhook job at a time.
func (d *Dispatcher) SharedJob(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string,
) (*registry.Job, error) {
	job, err := d.LockedJob(ctx, tx, org, dagName, jobName)
	if err != nil {
		return nil, err
	}
	return job, tasks.ShareOrigins(ctx, tx, []uuid.UUID{job.Origin})
}

// LockedJob returns a job of the version that serves, under the shared lock of its DAG: otherwise a cutover could give
// the job another origin.
func (d *Dispatcher) LockedJob(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string,
) (*registry.Job, error) {
	if err := registry.LockDAGShared(ctx, tx, org, dagName); err != nil {
		return nil, err
	}
	return d.Registry.ActiveJob(ctx, tx, org, dagName, jobName)
}

// schema is a job's compiled payload schema.
type schema struct{ compiled *jsonschema.Schema }

// PayloadSchema compiles the schema of a job's payload. It returns nil if the job has none.
func PayloadSchema(job *registry.Job) (*schema, error) {
	text := job.Def.PayloadSchema
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}

	compiled, err := dag.CompilePayload(text)
	if err != nil { // of a version of an earlier build
		return nil, fault.New(fault.Invalid, "payload_schema of %s: %w", job.Address(), err).
			WithHint("mend it, and deploy the DAG")
	}
	return &schema{compiled}, nil
}

// Check returns an error of one line if a payload does not match the schema.
func (s *schema) Check(payload json.RawMessage) error {
	if len(payload) == 0 {
		payload = json.RawMessage("null")
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return dag.PayloadError(s.compiled.Validate(value))
}
