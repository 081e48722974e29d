package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// TaskFilter says which tasks to list, the newest first.
type TaskFilter struct {
	TaskSelection
	Before uuid.UUID // begin with tasks older than this one; uuid.Nil: with the newest
	Limit  int
}

// Attempt is one try at a task.
type Attempt struct {
	Number    int        `json:"attempt"`
	Worker    string     `json:"worker_id"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Outcome   string     `json:"outcome,omitempty"`
	Error     string     `json:"error,omitempty"`
}

// TaskDetail is a task with all that is known of it.
type TaskDetail struct {
	Task
	Attempts []Attempt   `json:"attempts"`
	Events   []TaskEvent `json:"events"`
}

// taskColumns is a task in one row, over tasks t, waiting w and leases l. Heartbeats write to the lease.
const taskColumns = `
	t.id, t.job_id, t.kind, t.status, coalesce(t.reason, ''), coalesce(w.reason, ''), coalesce(array_to_string(t.partitions, ','), ''),
	t.attempt, t.failures, t.max_attempts, t.priority, t.runtime, coalesce(l.progress, t.progress), coalesce(l.state, t.state, ''),
	coalesce(l.worker_id, t.worker_id, ''), coalesce(t.error_message, ''), coalesce(t.dedupe_key, ''), t.version,
	t.created_at, t.started_at, t.completed_at, coalesce(w.available_at, t.next_retry_at)`

// found is a task with the origin it hangs on.
type found struct {
	Task
	origin uuid.UUID
}

func (f *found) columns() []any {
	return []any{
		&f.ID, &f.origin, &f.Kind, &f.Status, &f.Reason, &f.Waiting, &f.Partition,
		&f.Attempt, &f.Failures, &f.MaxAttempts, &f.Priority, &f.Runtime, &f.Progress, &f.State,
		&f.Worker, &f.Error, &f.DedupeKey, &f.Version,
		&f.CreatedAt, &f.StartedAt, &f.CompletedAt, &f.NextRetryAt,
	}
}

// Tasks lists tasks. It relies on idx_tasks_org and idx_tasks_job, whose ids are in the order of creation.
func (d *Dispatcher) Tasks(ctx context.Context, caller authz.Caller, f TaskFilter) ([]Task, error) {
	tasks := []Task{}
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		where, args, err := d.selected(ctx, tx, caller, f.TaskSelection)
		if err != nil {
			return err
		}
		if f.Before != uuid.Nil {
			args = append(args, f.Before)
			where += fmt.Sprintf(" AND t.id < $%d", len(args))
		}
		args = append(args, f.Limit)
		rows, err := tx.Query(ctx, `
			SELECT `+taskColumns+`
			FROM tasks t
			LEFT JOIN waiting w ON w.task_id = t.id
			LEFT JOIN leases l ON l.task_id = t.id
			WHERE `+where+fmt.Sprintf(" ORDER BY t.id DESC LIMIT $%d", len(args)), args...)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (found, error) {
			var t found
			err := row.Scan(t.columns()...)
			return t, err
		})
		if err != nil {
			return err
		}
		tasks, err = d.show(ctx, tx, caller, list)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return tasks, nil
}

// show names the tasks' jobs, and takes out what the caller may not read: whoever may not see a dataset may see that a
// task made it, but not what went in, what came out or what an error quotes.
func (d *Dispatcher) show(ctx context.Context, tx pgx.Tx, caller authz.Caller, list []found) ([]Task, error) {
	origins := make([]uuid.UUID, 0, len(list))
	seen := map[uuid.UUID]bool{}
	for _, t := range list {
		if !seen[t.origin] {
			seen[t.origin] = true
			origins = append(origins, t.origin)
		}
	}
	jobs, err := d.Registry.Jobs(ctx, tx, origins)
	if err != nil {
		return nil, err
	}
	all := make([]*registry.Job, 0, len(jobs))
	for _, j := range jobs {
		all = append(all, j)
	}
	readable, err := d.Registry.ReadableJobs(ctx, tx, caller, all)
	if err != nil {
		return nil, err
	}
	tasks := make([]Task, len(list))
	for i, t := range list {
		t.DAG, t.Job = jobs[t.origin].DAG, jobs[t.origin].Name
		if !readable[t.origin] {
			t.Task = t.redacted()
		}
		tasks[i] = t.Task
	}
	return tasks, nil
}

// redacted is what everybody in the org may know of a task.
func (t Task) redacted() Task {
	t.Partition, t.State, t.Error, t.DedupeKey = "", "", "", ""
	t.Payload, t.InputVersions, t.Outputs, t.Result = nil, nil, nil, nil
	return t
}

// Task returns one task with its attempts and its last 100 events, the newest first.
func (d *Dispatcher) Task(ctx context.Context, caller authz.Caller, id uuid.UUID) (TaskDetail, error) {
	var detail TaskDetail
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		t, readable, err := d.task(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		detail.Task = t
		if detail.Attempts, err = attempts(ctx, tx, caller.OrgID, t); err != nil {
			return err
		}
		if detail.Events, err = taskEvents(ctx, tx, t, uuid.Nil, 100); err != nil {
			return err
		}
		if !readable {
			for i := range detail.Attempts {
				detail.Attempts[i].Error = ""
			}
			redactEvents(detail.Events)
		}
		return nil
	})
	if err != nil {
		return TaskDetail{}, fmt.Errorf("task %s: %w", id, err)
	}
	return detail, nil
}

// TaskByID returns one task.
func (d *Dispatcher) TaskByID(ctx context.Context, caller authz.Caller, id uuid.UUID) (Task, error) {
	var t Task
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		t, _, err = d.task(ctx, tx, caller, id)
		return err
	})
	if err != nil {
		return Task{}, fmt.Errorf("task %s: %w", id, err)
	}
	return t, nil
}

// task reads one task whole, and tells whether the caller may read what is in it.
func (d *Dispatcher) task(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID) (Task, bool, error) {
	var t found
	err := tx.QueryRow(ctx, `
		SELECT `+taskColumns+`, t.payload, t.input_versions, t.outputs, r.payload
		FROM tasks t
		LEFT JOIN waiting w ON w.task_id = t.id
		LEFT JOIN leases l ON l.task_id = t.id
		LEFT JOIN task_results r ON r.task_id = t.id
		WHERE t.org_id = $1 AND t.id = $2`, caller.OrgID, id).
		Scan(append(t.columns(), &t.Payload, &t.InputVersions, &t.Outputs, &t.Result)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return Task{}, false, fault.New(fault.NotFound, "there is no task %s", id).WithHint("`dagctl tasks list` shows those there are")
	}
	if err != nil {
		return Task{}, false, err
	}
	jobs, err := d.Registry.Jobs(ctx, tx, []uuid.UUID{t.origin})
	if err != nil {
		return Task{}, false, err
	}
	readable, err := d.Registry.ReadableJobs(ctx, tx, caller, []*registry.Job{jobs[t.origin]})
	if err != nil {
		return Task{}, false, err
	}
	t.DAG, t.Job = jobs[t.origin].DAG, jobs[t.origin].Name
	if !readable[t.origin] {
		return t.redacted(), false, nil
	}
	return t.Task, true, nil
}

// attempts lists the tries at a task. The current one may be on the task alone: history is written when it ends.
func attempts(ctx context.Context, tx pgx.Tx, org uuid.UUID, t Task) ([]Attempt, error) {
	rows, err := tx.Query(ctx, `
		SELECT attempt, worker_id, started_at, ended_at, coalesce(outcome, ''), coalesce(error, '')
		FROM task_attempts WHERE org_id = $1 AND task_id = $2 ORDER BY attempt`, org, t.ID)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
	if err != nil {
		return nil, err
	}
	if t.StartedAt != nil && (len(list) == 0 || list[len(list)-1].Number < t.Attempt) {
		current := Attempt{Number: t.Attempt, Worker: t.Worker, StartedAt: *t.StartedAt, EndedAt: t.CompletedAt, Error: t.Error}
		if t.CompletedAt != nil {
			current.Outcome = t.Status
		}
		list = append(list, current)
	}
	return append([]Attempt{}, list...), nil
}
