package views

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// mostCaused bounds how many tasks, and how many of their events, are followed.
const mostCaused = 1000

// Caused is what something set off: its own tasks, the tasks that consumers made of their events, and so on, over all
// DAGs. What the caller may not look into is not there, and neither is what only that set off.
type Caused struct {
	Tasks []CausedTask `json:"tasks" doc:"At most 1,000, each behind the one that caused it"`
	Open  bool         `json:"open" doc:"Something of it is still to be done"`
	More  bool         `json:"more,omitempty" doc:"There are more tasks, which are not here and of which open says nothing"`
	Error string       `json:"error,omitempty" doc:"Of a source: why it could not be read"`
	Until *time.Time   `json:"until,omitempty" doc:"Of a source that has been read: the time to pass as until from now on"`
}

// CausedTask is a task, and what caused it.
type CausedTask struct {
	Task
	By *uuid.UUID `json:"caused_by,omitempty" doc:"The task whose event caused it, or whose output it checks; the first one where there are several"`

	Rejected bool `json:"rejected,omitempty" doc:"Checks rejected something that it made, or that it checked"`
}

// EndedWell reports whether a task has ended and left nothing undone: it completed, and its outputs passed, or another
// does its work.
func (t CausedTask) EndedWell() bool {
	return t.Status == string(tasks.Completed) && !t.Rejected ||
		t.Status == string(tasks.Canceled) && tasks.Reason(t.Reason).Revivable()
}

// IsOpen reports whether something is still to be done for a task, without a person.
func (t Task) IsOpen() bool {
	switch tasks.Status(t.Status) {
	case tasks.Queued, tasks.Running:
		return true
	case tasks.Failed:
		return t.Waiting == string(tasks.WaitBackoff)
	}
	return false
}

// causal walks from tasks to what they caused, step by step, in a snapshot: between an event and the tasks that are
// made of it nothing can be missed.
type causal struct {
	Caused
	vs     *Views
	tx     pgx.Tx
	caller authz.Caller
	seen   map[uuid.UUID]bool
}

// cause is a task and, if there is one, the task that caused it.
type cause struct {
	Task uuid.UUID
	By   *uuid.UUID
}

// CausedByTask returns a task and what it set off.
func (vs *Views) CausedByTask(ctx context.Context, caller authz.Caller, id uuid.UUID) (Caused, error) {
	return vs.caused(ctx, caller, fmt.Sprintf("what task %s set off", id), func(c *causal) error {
		if err := c.follow(ctx, []uuid.UUID{id}); err != nil {
			return err
		}
		if len(c.Tasks) == 0 {
			return noTask(id)
		}
		return nil
	})
}

// CausedByBackfill returns the tasks of a backfill that the caller may see, and what they set off.
func (vs *Views) CausedByBackfill(ctx context.Context, caller authz.Caller, id uuid.UUID) (Caused, error) {
	return vs.caused(ctx, caller, fmt.Sprintf("what backfill %s set off", id), func(c *causal) error {
		err := c.tx.QueryRow(ctx, `SELECT status = 'Running' FROM backfills WHERE org_id = $1 AND id = $2`,
			caller.OrgID, id).Scan(&c.Open)
		if errors.Is(err, pgx.ErrNoRows) {
			return fault.New(fault.NotFound, "there is no backfill %s", id)
		}
		if err != nil {
			return err
		}
		return c.followAll(ctx, `
			SELECT p.task_id FROM backfill_partitions p JOIN backfills b ON b.id = p.backfill_id
			WHERE b.org_id = $1 AND b.id = $2 AND p.task_id IS NOT NULL ORDER BY p.partition_key LIMIT $3`,
			caller.OrgID, id, mostCaused+1)
	})
}

// CausedBySource returns the tasks that a source made from one time to another, and what they set off. It is open until
// the source has been read that was due at the first of them. Without the second the newest tasks count too.
func (vs *Views) CausedBySource(
	ctx context.Context, caller authz.Caller, dagName, name string, since, until, now time.Time,
) (Caused, error) {
	return vs.caused(ctx, caller, "what "+dagName+"/"+name+" set off", func(c *causal) error {
		if err := registry.RequireShown(ctx, c.tx, caller, dagName, name); err != nil {
			return err
		}
		job, err := vs.registry.ActiveJob(ctx, c.tx, caller.OrgID, dagName, name)
		if err != nil {
			return err
		}
		if job.Def.Source == nil {
			return fault.New(fault.Invalid, "%s is no source: its tasks come from its inputs", job.Address())
		}

		if until.IsZero() {
			until = now
			if err := c.lookAtSource(ctx, job, since, now); err != nil {
				return err
			}
		}
		// It relies on idx_tasks_job.
		return c.followAll(ctx, `
			SELECT id FROM tasks
			WHERE org_id = $1 AND job_id = $2 AND kind = 'source' AND created_at BETWEEN $3 AND $4
			ORDER BY id LIMIT $5`, caller.OrgID, job.Origin, since, until, mostCaused+1)
	})
}

// lookAtSource notes whether a source has been read that was due at a time, and what was wrong with that.
func (c *causal) lookAtSource(ctx context.Context, job *registry.Job, due, now time.Time) error {
	err := c.tx.QueryRow(ctx, `
		SELECT coalesce(next_fire_at <= $4, false), coalesce(error, '')
		FROM sources WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`, c.caller.OrgID, job.DAG, job.Name, due).
		Scan(&c.Open, &c.Error)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fault.New(fault.Conflict, "%s does not serve yet", job.Address())
	case err != nil:
		return err
	case c.Open:
		c.Error = "" // of the reading before
	default:
		c.Until = &now
	}
	return nil
}

// caused answers with what a function follows.
func (vs *Views) caused(
	ctx context.Context, caller authz.Caller, what string, follow func(c *causal) error,
) (found Caused, err error) {
	err = pg.InOrgSnapshot(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		c := causal{Caused: Caused{Tasks: []CausedTask{}}, vs: vs, tx: tx, caller: caller, seen: map[uuid.UUID]bool{}}
		err := follow(&c)
		found = c.Caused
		return err
	})
	return found, fault.Wrap(err, what)
}

// followAll follows the tasks that a query finds.
func (c *causal) followAll(ctx context.Context, query string, args ...any) error {
	rows, err := c.tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	return c.follow(ctx, ids)
}

// follow adds tasks and all that they caused, one round for each step.
func (c *causal) follow(ctx context.Context, ids []uuid.UUID) error {
	next := make([]cause, len(ids))
	for i, id := range ids {
		next[i].Task = id
	}

	for len(next) > 0 {
		found, err := c.add(ctx, next)
		if err != nil || len(found) == 0 {
			return err
		}
		checks, err := c.checksOf(ctx, found)
		if err != nil {
			return err
		}
		consumers, err := c.consumersOf(ctx, found)
		if err != nil {
			return err
		}
		next = append(checks, consumers...)
	}
	return nil
}

// add adds those of some tasks that are not there yet and that the caller may look into, and returns them.
func (c *causal) add(ctx context.Context, causes []cause) ([]found, error) {
	by := map[uuid.UUID]*uuid.UUID{}
	var ids []uuid.UUID
	for _, k := range causes {
		if c.seen[k.Task] {
			continue
		}
		c.seen[k.Task] = true
		ids, by[k.Task] = append(ids, k.Task), k.By
	}

	rows, err := c.tx.Query(ctx, `
		SELECT `+taskColumns+`, t.outputs FROM tasks t
		LEFT JOIN waiting w ON w.task_id = t.id
		LEFT JOIN leases l ON l.task_id = t.id
		WHERE t.org_id = $1 AND t.id = ANY($2) ORDER BY t.id`, c.caller.OrgID, ids)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f found, err error) {
		return f, row.Scan(append(f.columns(), &f.Outputs)...)
	})
	if err != nil {
		return nil, err
	}
	if all, err = c.shown(ctx, all); err != nil {
		return nil, err
	}
	if room := mostCaused - len(c.Tasks); len(all) > room {
		all, c.More = all[:room], true
	}

	named, err := c.vs.show(ctx, c.tx, c.caller, all)
	if err != nil {
		return nil, err
	}
	for i, t := range named {
		t.Outputs = nil
		notes, err := all[i].notes()
		if err != nil {
			return nil, err
		}
		rejected := slices.ContainsFunc(notes, func(n tasks.OutputNote) bool { return n.State == "Rejected" })
		c.Tasks = append(c.Tasks, CausedTask{Task: t, By: by[t.ID], Rejected: rejected})
		c.Open = c.Open || t.IsOpen()
	}
	return all, nil
}

// shown returns those of some tasks whose jobs the caller may look into.
func (c *causal) shown(ctx context.Context, all []found) ([]found, error) {
	origins := make([]uuid.UUID, len(all))
	for i, t := range all {
		origins[i] = t.origin
	}
	hidden, err := c.vs.registry.HiddenAmong(ctx, c.tx, c.caller, tasks.SortedIDs(origins))
	return slices.DeleteFunc(all, func(t found) bool { return hidden[t.origin] }), err
}

// notes returns what a task noted of its outputs.
func (f found) notes() (notes []tasks.OutputNote, err error) {
	if len(f.Outputs) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(f.Outputs, &notes); err != nil {
		return nil, fmt.Errorf("outputs of task %s: %w", f.ID, err)
	}
	return notes, nil
}

// checksOf returns the tasks that check what some tasks made. It relies on idx_tasks_job_dedupe.
func (c *causal) checksOf(ctx context.Context, made []found) ([]cause, error) {
	var makers, origins []uuid.UUID
	var keys []string
	for _, t := range made {
		notes, err := t.notes()
		if err != nil {
			return nil, err
		}
		for _, n := range notes[:min(len(notes), mostCaused)] {
			makers, origins = append(makers, t.ID), append(origins, t.origin)
			keys = append(keys, fmt.Sprintf("check:%d:%s@%d", n.Output, n.Partition, n.Revision))
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}

	rows, err := c.tx.Query(ctx, `
		SELECT t.id, k.maker FROM unnest($2::uuid[], $3::uuid[], $4::text[]) AS k(maker, origin, key)
		CROSS JOIN LATERAL (
			SELECT id FROM tasks WHERE org_id = $1 AND job_id = k.origin AND dedupe_key = k.key OFFSET 0) AS t
		ORDER BY t.id`, c.caller.OrgID, makers, origins, keys)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[cause])
}

// producedEvent is an event, and what the task is called that it alone triggers.
type producedEvent struct {
	id, version, producer uuid.UUID
	key                   string
}

// eventsOf returns the events of some tasks. It relies on idx_events_producer.
func (c *causal) eventsOf(ctx context.Context, made []found) ([]producedEvent, error) {
	ids := make([]uuid.UUID, len(made))
	for i, t := range made {
		ids[i] = t.ID
	}
	rows, err := c.tx.Query(ctx, `
		SELECT id, dataset_uuid, dataset_version, producer_task_id, coalesce(partition_key, ''), coalesce(revision, 0),
			cursor_value IS NOT NULL
		FROM events WHERE org_id = $1 AND producer_task_id = ANY($2) ORDER BY id LIMIT $3`,
		c.caller.OrgID, ids, mostCaused+1)
	if err != nil {
		return nil, err
	}

	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e producedEvent, err error) {
		var dataset uuid.UUID
		var partition string
		var revision int64
		var follows bool
		err = row.Scan(&e.id, &dataset, &e.version, &e.producer, &partition, &revision, &follows)
		if !follows { // the outcome of a position is always a row
			e.key = stale.RevisionKey(dataset, e.version, partition, revision)
		}
		return e, err
	})
	if len(events) > mostCaused {
		events, c.More = events[:mostCaused], true
	}
	return events, err
}

// consumersOf returns the tasks that read the events of some tasks, and notes whether events have yet to be routed.
func (c *causal) consumersOf(ctx context.Context, made []found) ([]cause, error) {
	events, err := c.eventsOf(ctx, made)
	if err != nil || len(events) == 0 {
		return nil, err
	}
	var ids, versions []uuid.UUID
	byVersion := map[uuid.UUID][]producedEvent{}
	for _, e := range events {
		ids, versions = append(ids, e.id), append(versions, e.version)
		byVersion[e.version] = append(byVersion[e.version], e)
	}
	if !c.Open {
		if c.Open, err = c.unrouted(ctx, ids); err != nil {
			return nil, err
		}
	}

	consumers, err := c.vs.registry.Consumers(new(pg.Batch), tasks.SortedIDs(versions)).Get(ctx, c.tx)
	if err != nil {
		return nil, err
	}
	var producers, origins []uuid.UUID
	var keys []string
	for _, consumer := range consumers {
		for _, e := range byVersion[consumer.Generation] {
			if e.key != "" {
				producers, origins = append(producers, e.producer), append(origins, consumer.Job.Origin)
				keys = append(keys, e.key)
			}
		}
	}

	// What the view event_outcomes says, asked by key: idx_tasks_job_dedupe and the key of event_consumers.
	rows, err := c.tx.Query(ctx, `
		SELECT t.id, k.producer FROM unnest($2::uuid[], $3::uuid[], $4::text[]) AS k(producer, origin, key)
		CROSS JOIN LATERAL (
			SELECT id FROM tasks WHERE org_id = $1 AND job_id = k.origin AND dedupe_key = k.key OFFSET 0) AS t
		UNION ALL
		SELECT o.task_id, e.producer_task_id FROM event_consumers o JOIN events e ON e.id = o.event_id AND e.org_id = $1
		WHERE o.org_id = $1 AND o.event_id = ANY($5) AND o.task_id IS NOT NULL
		ORDER BY 1`, c.caller.OrgID, producers, origins, keys, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[cause])
}

// unrouted reports whether the router has yet to route some of the events. It relies on idx_outbox_pending.
func (c *causal) unrouted(ctx context.Context, events []uuid.UUID) (left bool, err error) {
	texts := make([]string, len(events))
	for i, id := range events {
		texts[i] = id.String()
	}
	err = c.tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM outbox
			WHERE org_id = $1 AND kind = 'route_event' AND status = 'Pending'
			  AND payload -> 'event_ids' ?| $2::text[])`,
		c.caller.OrgID, texts).Scan(&left)
	return left, err
}
