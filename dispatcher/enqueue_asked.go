package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task may ask for tasks of the jobs that its own job names in `enqueues`. The transaction that commits its work
// makes them, so an attempt that is fenced off makes none, and one that commits makes them once. A request that cannot
// be met (a payload that the schema refuses, a job that is not named) fails the attempt for good: no retry would
// succeed. In place of a task it may ask for a timer of a timer job.

// askedOf holds the tasks that are asked for of one job, with their indexes among all that is asked for.
type askedOf struct {
	job    *registry.Job
	wanted []tasks.Request
	at     []int
}

// askedAll holds all that a task asks for.
type askedAll struct {
	tasks  []askedOf
	timers []AskedTimer
}

// len returns how many tasks and timers are asked for.
func (a askedAll) len() int {
	n := len(a.timers)
	for _, of := range a.tasks {
		n += len(of.at)
	}
	return n
}

// maxAsked is how many tasks one call may ask for.
const maxAsked = 1000

// lockAsked takes the locks for making the tasks that a task asks for, and returns their jobs in the version that
// serves, by the names in the request. It is called before task rows are locked: DAGs, then origins, then rows.
func (d *Dispatcher) lockAsked(
	ctx context.Context, tx pgx.Tx, from *registry.Job, batch []operators.EnqueuedTask,
) (map[string]*registry.Job, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	if err := registry.LockDAGShared(ctx, tx, from.OrgID, from.DAG); err != nil {
		return nil, err
	}

	jobs := map[string]*registry.Job{}
	var origins []uuid.UUID
	for i, t := range batch {
		name, err := mayAsk(from, i, t.Job)
		if err != nil {
			return nil, err
		}
		if jobs[t.Job] != nil {
			continue
		}

		job, err := d.Registry.ActiveJob(ctx, tx, from.OrgID, from.DAG, name)
		if fault.Is(err, fault.NotFound) {
			return nil, refusedTask(i, "job", "%s/%s is not a job of the version that serves", from.DAG, name)
		}
		if err != nil {
			return nil, err
		}
		if s := job.Def.Source; s == nil || s.Kind != "manual" && s.Kind != "timer" {
			return nil, refusedTask(i, "job", "%s cannot be enqueued: its source is not of kind manual or timer",
				job.Address())
		}
		jobs[t.Job] = job
		origins = append(origins, job.Origin)
	}
	return jobs, tasks.ShareOrigins(ctx, tx, origins)
}

// resolveAsked checks what a task asks for against the jobs, and groups the tasks by job.
func (d *Dispatcher) resolveAsked(
	jobs map[string]*registry.Job, asked []operators.EnqueuedTask, by uuid.UUID, trace string,
) (found askedAll, err error) {
	if len(asked) > maxAsked {
		return found, fault.New(fault.Invalid, "%d tasks in one call; at most %d are allowed", len(asked), maxAsked).
			WithHint("let another task ask for the rest")
	}

	var all []askedOf
	items := map[*registry.Job][]EnqueueItem{}
	for i, t := range asked {
		job := jobs[t.Job]
		if t.Timer != nil {
			timer, err := askedTimer(job, i, t, by)
			if err != nil {
				return found, err
			}
			found.timers = append(found.timers, timer)
			continue
		}

		n := slices.IndexFunc(all, func(a askedOf) bool { return a.job == job })
		if n < 0 {
			n = len(all)
			all = append(all, askedOf{job: job})
		}
		all[n].at = append(all[n].at, i)
		items[job] = append(items[job], EnqueueItem{IdempotencyKey: t.IdempotencyKey, Payload: t.Payload,
			Partition: t.PartitionKey, Priority: t.Priority, RunAt: t.RunAt, MaxAttempts: t.MaxAttempts,
			Metadata: t.Metadata, ConcurrencyKey: t.ConcurrencyKey})
	}

	for n := range all {
		a := &all[n]
		if a.wanted, err = WantedItems(a.job, items[a.job], clock.Now()); err != nil {
			return found, fmt.Errorf("tasks of %s: %w", a.job.Address(), err)
		}
		for i := range a.wanted {
			// The kind of a source that may be asked for is that of its tasks: manual or timer.
			a.wanted[i].Kind, a.wanted[i].Trace = tasks.Kind(a.job.Def.Source.Kind), trace
			a.wanted[i].By = "task:" + by.String()
		}
	}
	found.tasks = all
	return found, nil
}

// makeAsked makes what is asked for, and returns the ids in the order of the request: those of new tasks and timers, or
// of the existing ones that have the idempotency keys.
func (d *Dispatcher) makeAsked(ctx context.Context, tx pgx.Tx, all askedAll, now time.Time) ([]uuid.UUID, error) {
	made := make([]uuid.UUID, all.len())

	if len(all.timers) > 0 {
		ids, err := d.Timers.MakeAsked(ctx, tx, all.timers, now)
		if err != nil {
			return nil, fmt.Errorf("make timers: %w", err)
		}
		for i, t := range all.timers {
			made[t.At] = ids[i]
		}
	}

	for _, a := range all.tasks {
		out, err := d.EnqueueTx(ctx, tx, a.job, a.wanted, now)
		if err != nil {
			return nil, fmt.Errorf("enqueue %s: %w", a.job.Address(), err)
		}
		for i, e := range out {
			made[a.at[i]] = e.ID
		}
	}
	return made, nil
}

// lockLimitsOf locks the limits of a task that ends and of the tasks it asks for together, in the one order of limits,
// because the transaction takes the latter before it gives the former back.
func lockLimitsOf(ctx context.Context, tx pgx.Tx, row tasks.Row, all []askedOf) error {
	wanted := map[tasks.Limit]int{}
	tasks.AddFreed(wanted, row.Org, row.Limits)
	for _, a := range all {
		for _, w := range a.wanted {
			if w.Concurrency == "" {
				w.Concurrency = tasks.RenderKey(w.Job.Def.ConcurrencyKey, w.Partition, w.Payload)
			}
			tasks.AddFreed(wanted, w.Job.OrgID, tasks.LimitKeys(tasks.LimitsOf(w)))
		}
	}

	orgs, keys := tasks.SortedLimits(wanted)
	_, err := tx.Exec(ctx, tasks.LockLimits, orgs, keys)
	return fault.Wrap(err, "lock limits")
}

func refusedTask(i int, field, format string, args ...any) error {
	e := fault.New(fault.Invalid, "tasks[%d].%s: "+format, append([]any{i, field}, args...)...)
	where := fmt.Sprintf("tasks[%d].%s", i, field)
	e.Problems = []fault.Problem{{Location: where, Message: fmt.Sprintf(format, args...)}}
	return e
}

// mayAsk returns the name of the job that a task asks for, or an error if `enqueues` does not name it.
func mayAsk(from *registry.Job, i int, address string) (string, error) {
	name := address
	if dagName, job, full := strings.Cut(address, "/"); full {
		if name = job; dagName != from.DAG {
			return "", refusedTask(i, "job",
				"%q is in another DAG: tasks of %s may ask only for tasks of their own DAG", address, from.Address())
		}
	}
	if !slices.Contains(from.Def.Enqueues, name) {
		return "", refusedTask(i, "job", "%s does not name %q in `enqueues`", from.Address(), name)
	}
	return name, nil
}

// AskedTimer is a timer that a task asks for.
type AskedTimer struct {
	Job            *registry.Job // a timer job
	IdempotencyKey string        // one timer per key in the org; empty: none
	Payload        json.RawMessage
	When           protocol.Timer
	By             string // task:ID
	At             int    // its index among all that the task asks for
}

// TimerMaker makes timers. Package timers implements it.
type TimerMaker interface {
	// MakeAsked makes the timers that a task asks for, all of one org, and returns their ids in order.
	MakeAsked(ctx context.Context, tx pgx.Tx, asked []AskedTimer, now time.Time) ([]uuid.UUID, error)
}

// RefusedTimer returns the error of a timer that cannot be made.
func RefusedTimer(a AskedTimer, cause error) error {
	return refusedTask(a.At, "timer", "%s", fault.Text(cause))
}

// askedTimer checks a request for a timer.
func askedTimer(job *registry.Job, i int, t operators.EnqueuedTask, by uuid.UUID) (a AskedTimer, err error) {
	if job.Def.Source.Kind != "timer" {
		return a, refusedTask(i, "timer", "%s is not a timer job", job.Address())
	}
	if t.PartitionKey != "" || t.Priority != nil || t.RunAt != nil || t.MaxAttempts != 0 || t.Metadata != nil ||
		t.ConcurrencyKey != "" {
		return a, refusedTask(i, "timer", "with a timer go job, payload and idempotency_key only")
	}

	check, err := TimerPayload(job)
	if err != nil {
		return a, err
	}
	if err := check(t.Payload); err != nil {
		return a, refusedTask(i, "payload", "%s", fault.Text(err))
	}
	return AskedTimer{Job: job, IdempotencyKey: t.IdempotencyKey, Payload: t.Payload, When: *t.Timer,
		By: "task:" + by.String(), At: i}, nil
}

// TimerPayload returns the check of payloads of a timer job.
func TimerPayload(job *registry.Job) (func(json.RawMessage) error, error) {
	schema, err := PayloadSchema(job)
	if err != nil {
		return nil, err
	}
	return func(payload json.RawMessage) error {
		if err := literal.Storable(payload); err != nil {
			return fault.New(fault.Invalid, "delivery_payload: %w", err)
		}
		if schema == nil {
			return nil
		}
		if err := schema.Check(payload); err != nil {
			return fault.New(fault.Invalid, "delivery_payload: %s", err)
		}
		return nil
	}, nil
}
