package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// A task may ask for tasks of the jobs that its own job names in `enqueues`. The transaction that commits its work
// makes them, so an attempt that is fenced off makes none, and one that commits makes them once. A request that cannot
// be met (a payload that the schema refuses, a job that is not named) fails the attempt for good: no retry would
// succeed.

// askedOf holds the tasks that are asked for of one job, with their indexes among all tasks asked for.
type askedOf struct {
	job    *registry.Job
	wanted []tasks.Request
	at     []int
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

// resolveAsked checks the tasks that are asked for against their jobs, and groups them by job.
func (d *Dispatcher) resolveAsked(
	jobs map[string]*registry.Job, asked []operators.EnqueuedTask, trace string,
) ([]askedOf, error) {
	if len(asked) > maxAsked {
		return nil, fault.New(fault.Invalid, "%d tasks in one call; at most %d are allowed", len(asked), maxAsked).
			WithHint("let another task ask for the rest")
	}

	var all []askedOf
	items := map[*registry.Job][]EnqueueItem{}
	for i, t := range asked {
		job := jobs[t.Job]
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
		var err error
		if a.wanted, err = WantedItems(a.job, items[a.job]); err != nil {
			return nil, fmt.Errorf("tasks of %s: %w", a.job.Address(), err)
		}
		for i := range a.wanted {
			// The kind of a source that may be asked for is that of its tasks: manual or timer.
			a.wanted[i].Kind, a.wanted[i].Trace = tasks.Kind(a.job.Def.Source.Kind), trace
		}
	}
	return all, nil
}

// enqueueAsked makes the tasks that are asked for, and returns their ids in the order of the request: those of new
// tasks, or of the existing ones that have the idempotency keys.
func (d *Dispatcher) enqueueAsked(ctx context.Context, tx pgx.Tx, all []askedOf, now time.Time) ([]uuid.UUID, error) {
	n := 0
	for _, a := range all {
		n += len(a.at)
	}
	made := make([]uuid.UUID, n)
	for _, a := range all {
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
				w.Concurrency = tasks.RenderConcurrencyKey(w.Job.Def.ConcurrencyKey, w.Partition, w.Payload)
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
