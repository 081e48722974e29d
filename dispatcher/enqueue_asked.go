package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// Tasks ask for tasks of the jobs that their own job names in `enqueues`, with what they commit: the same transaction makes
// them, so an attempt that is fenced off has asked for nothing, and one that commits has asked once. What cannot be made (a
// payload that the schema refuses, a job that is not named) ends the attempt, and no retry would mend it.

// askedOf is a number of tasks to be made of one job, with their places among all that were asked for.
type askedOf struct {
	job    *registry.Job
	wanted []newTask
	at     []int
}

// maxAsked bounds what one call may ask for.
const maxAsked = 1000

// lockAsked takes the locks for making what tasks ask for, and resolves the jobs, which are those of the version that
// serves. It is called before tasks' rows are locked: DAGs, then origins, then rows.
func (d *Dispatcher) lockAsked(ctx context.Context, tx pgx.Tx, from *registry.Job, tasks []operators.EnqueuedTask) (map[string]*registry.Job, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	if err := registry.LockDAGShared(ctx, tx, from.OrgID, from.DAG); err != nil {
		return nil, err
	}
	jobs := map[string]*registry.Job{}
	var origins []uuid.UUID
	for i, t := range tasks {
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
			return nil, refusedTask(i, "job", "%s cannot be enqueued: its source is not of kind manual or timer", job.Address())
		}
		jobs[t.Job] = job
		origins = append(origins, job.Origin)
	}
	return jobs, shareOrigins(ctx, tx, origins)
}

// resolveAsked checks what is asked for against the jobs it is asked of, and groups it by job.
func (d *Dispatcher) resolveAsked(jobs map[string]*registry.Job, tasks []operators.EnqueuedTask, trace string) ([]askedOf, error) {
	if len(tasks) > maxAsked {
		return nil, fault.New(fault.Invalid, "%d tasks at once; %d are the most", len(tasks), maxAsked).WithHint("ask for the others in a task of their own")
	}
	var all []askedOf
	items := map[*registry.Job][]EnqueueItem{}
	for i, t := range tasks {
		job := jobs[t.Job]
		n := slices.IndexFunc(all, func(a askedOf) bool { return a.job == job })
		if n < 0 {
			n = len(all)
			all = append(all, askedOf{job: job})
		}
		all[n].at = append(all[n].at, i)
		items[job] = append(items[job], EnqueueItem{IdempotencyKey: t.IdempotencyKey, Payload: t.Payload, Partition: t.PartitionKey, Priority: t.Priority,
			RunAt: t.RunAt, MaxAttempts: t.MaxAttempts, Metadata: t.Metadata, ConcurrencyKey: t.ConcurrencyKey})
	}
	for n := range all {
		a := &all[n]
		var err error
		if a.wanted, err = d.wantedItems(a.job, items[a.job]); err != nil {
			return nil, fmt.Errorf("tasks of %s: %w", a.job.Address(), err)
		}
		for i := range a.wanted {
			a.wanted[i].kind, a.wanted[i].trace = a.job.Def.Source.Kind, trace
		}
	}
	return all, nil
}

// enqueueAsked makes what was asked for, and answers the tasks in the order in which it was: new ones, or those that the
// idempotency keys named before.
func (d *Dispatcher) enqueueAsked(ctx context.Context, tx pgx.Tx, all []askedOf, now time.Time) ([]uuid.UUID, error) {
	n := 0
	for _, a := range all {
		n += len(a.at)
	}
	made := make([]uuid.UUID, n)
	for _, a := range all {
		out, err := d.enqueueTx(ctx, tx, a.job, a.wanted, now)
		if err != nil {
			return nil, fmt.Errorf("enqueue %s: %w", a.job.Address(), err)
		}
		for i, e := range out {
			made[a.at[i]] = e.ID
		}
	}
	return made, nil
}

// lockLimitsOf locks the limits of a task that ends and of those it asks for, in the one order: the former are given back
// after the latter were taken.
func lockLimitsOf(ctx context.Context, tx pgx.Tx, row taskRow, all []askedOf) error {
	wanted := map[limit]int{}
	countLimits(wanted, row.org, row.limits)
	for _, a := range all {
		for _, w := range a.wanted {
			if w.concurrency == "" {
				w.concurrency = renderConcurrencyKey(w.job.Def.ConcurrencyKey, w.partition, w.payload)
			}
			countLimits(wanted, w.job.OrgID, limitKeys(limitsOf(w)))
		}
	}
	orgs, keys := sortedLimits(wanted)
	_, err := tx.Exec(ctx, lockLimits, orgs, keys)
	return wrap(err, "lock limits")
}

func refusedTask(i int, field, format string, args ...any) error {
	e := fault.New(fault.Invalid, "tasks[%d].%s: "+format, append([]any{i, field}, args...)...)
	e.Problems = []fault.Problem{{Location: fmt.Sprintf("tasks[%d].%s", i, field), Message: fmt.Sprintf(format, args...)}}
	return e
}

// mayAsk is the name of a job that a task of another asks for; an error where `enqueues` does not name it.
func mayAsk(from *registry.Job, i int, address string) (string, error) {
	name := address
	if dagName, job, full := strings.Cut(address, "/"); full {
		if name = job; dagName != from.DAG {
			return "", refusedTask(i, "job", "%q is of another DAG: tasks of %s may ask for tasks of their own DAG", address, from.Address())
		}
	}
	if !slices.Contains(from.Def.Enqueues, name) {
		return "", refusedTask(i, "job", "%s does not name %q in `enqueues`", from.Address(), name)
	}
	return name, nil
}
