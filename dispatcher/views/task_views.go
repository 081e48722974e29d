package views

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Task is one unit of work, as people see it.
type Task struct {
	ID            uuid.UUID       `json:"id"`
	DAG           string          `json:"dag"`
	Job           string          `json:"job"`
	Kind          string          `json:"kind" enum:"reactive,source,manual,timer,build,backfill,invalidation,check"`
	Status        string          `json:"status" enum:"Queued,Running,Completed,Failed,Canceled"`
	Reason        string          `json:"reason,omitempty"`
	Waiting       string          `json:"waiting,omitempty" enum:"sibling,limit,backoff,run_at,paused,dead" doc:"Why an open task may not be claimed now"`
	Partition     string          `json:"partition,omitempty"`
	Attempt       int             `json:"attempt"`
	Failures      int             `json:"failures"`
	MaxAttempts   int             `json:"max_attempts"`
	Priority      int             `json:"priority"`
	Runtime       string          `json:"runtime"`
	Progress      int             `json:"progress"`
	State         string          `json:"state,omitempty"`
	Worker        string          `json:"worker_id,omitempty"`
	Error         string          `json:"error,omitempty"`
	DedupeKey     string          `json:"dedupe_key,omitempty"`
	CreatedBy     string          `json:"created_by,omitempty" doc:"The person or token, or task:ID, that asked for it; absent: the platform made it"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`
	Payload       json.RawMessage `json:"payload,omitempty"`
	InputVersions json.RawMessage `json:"input_versions,omitempty"`
	Outputs       json.RawMessage `json:"outputs,omitempty"`
	Result        json.RawMessage `json:"result,omitempty"`
	Version       int             `json:"version"`
	CreatedAt     time.Time       `json:"created_at"`
	StartedAt     *time.Time      `json:"started_at,omitempty"`
	CompletedAt   *time.Time      `json:"completed_at,omitempty"`
	NextRetryAt   *time.Time      `json:"next_retry_at,omitempty"`
}

// Took returns how long the last attempt ran of a task that has completed or failed. When one was canceled says nothing
// of its last attempt, which may have ended long before: its attempts do.
func (t Task) Took() (d time.Duration, ended bool) {
	if t.StartedAt == nil || t.CompletedAt == nil || t.Status == string(tasks.Canceled) {
		return 0, false
	}
	return t.CompletedAt.Sub(*t.StartedAt), true
}

// Tries returns how many attempts count so far, out of MaxAttempts: those that were handed back do not.
func (t Task) Tries() int {
	if t.Status == string(tasks.Running) || t.Status == string(tasks.Completed) {
		return min(t.Attempt, t.Failures+1)
	}
	return t.Failures
}

// TaskFilter says which tasks to list, the newest first.
type TaskFilter struct {
	TaskSelection
	Before uuid.UUID // begin with tasks older than this one; uuid.Nil: with the newest
	Limit  int
}

// Attempt is one attempt at a task.
type Attempt struct {
	Number    int        `json:"attempt"`
	Worker    string     `json:"worker_id"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Outcome   string     `json:"outcome,omitempty"`
	Error     string     `json:"error,omitempty"`
	Progress  int        `json:"progress,omitempty" doc:"How far it came, in percent, as its last heartbeat said"`
	State     string     `json:"state,omitempty"`
}

// Reached returns how far the attempt came, in words; empty: it said nothing of that.
func (a Attempt) Reached() string {
	if a.Progress == 0 {
		return a.State
	}
	return strings.TrimSpace(fmt.Sprintf("%d %% %s", a.Progress, a.State))
}

// TaskDetail is a task with its attempts and its last events.
type TaskDetail struct {
	Task
	Attempts []Attempt   `json:"attempts"`
	Events   []TaskEvent `json:"events"`

	Read  []TaskPart `json:"read,omitempty" doc:"The revisions that it reads, at most 200 of them"`
	Made  []TaskPart `json:"made,omitempty" doc:"The revisions that it has made"`
	Lease *Lease     `json:"lease,omitempty" doc:"Of a running task"`

	RanSeconds    float64 `json:"ran_seconds" doc:"How long its attempts ran, all together"`
	WaitedSeconds float64 `json:"waited_seconds" doc:"How long it was open and no attempt ran: for its turn, between attempts, or for a person"`

	Retired bool `json:"retired,omitempty" doc:"No version runs this definition of the job any more: a retry is refused"`
}

// taskColumns selects a found, from tasks or shown_tasks t, waiting w and leases l. A running task has its progress and
// state in the lease, to which heartbeats write. Of a task that is only outlined nobody knows the slot.
const taskColumns = `
	t.id, t.job_id, t.kind, t.status, coalesce(t.reason, ''), coalesce(w.reason, ''),
	coalesce(array_to_string(t.partitions, ','), ''),
	t.attempt, t.failures, t.max_attempts, t.priority, t.runtime,
	coalesce(l.progress, t.progress), coalesce(CASE WHEN t.slot IS NOT NULL THEN l.state END, t.state, ''),
	coalesce(l.worker_id, t.worker_id, ''), coalesce(t.error_message, ''), coalesce(t.dedupe_key, ''), t.version,
	coalesce(t.created_by, ''),
	CASE jsonb_typeof(t.metadata) WHEN 'object' THEN NULLIF(t.metadata - 'traceparent', '{}') ELSE t.metadata END,
	t.created_at, t.started_at, t.completed_at, coalesce(w.available_at, t.next_retry_at)`

// found is a task with its origin.
type found struct {
	Task
	origin uuid.UUID
}

// columns returns where to scan taskColumns.
func (f *found) columns() []any {
	return []any{
		&f.ID, &f.origin, &f.Kind, &f.Status, &f.Reason, &f.Waiting, &f.Partition,
		&f.Attempt, &f.Failures, &f.MaxAttempts, &f.Priority, &f.Runtime, &f.Progress, &f.State,
		&f.Worker, &f.Error, &f.DedupeKey, &f.Version, &f.CreatedBy, &f.Metadata,
		&f.CreatedAt, &f.StartedAt, &f.CompletedAt, &f.NextRetryAt,
	}
}

// Tasks lists tasks. It relies on idx_tasks_org and idx_tasks_job, whose ids are in the order of creation.
func (vs *Views) Tasks(ctx context.Context, caller authz.Caller, f TaskFilter) ([]Task, error) {
	tasks := []Task{}
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		where, args, err := vs.Selected(ctx, tx, caller, f.TaskSelection)
		if err != nil {
			return err
		}

		if f.Before != uuid.Nil {
			args = append(args, f.Before)
			where += fmt.Sprintf(" AND t.id < $%d", len(args))
		}

		args = append(args, f.Limit)
		if set := f.stateSet(); set != "" { // only those that are listed are looked up
			newest := `SELECT o.task_id FROM (` + set + `) AS o`
			if f.Before != uuid.Nil {
				newest += fmt.Sprintf(" WHERE o.task_id < $%d", len(args)-1)
			}
			newest += fmt.Sprintf(" ORDER BY o.task_id DESC LIMIT $%d", len(args))
			where = strings.Replace(where, within(set), within(newest), 1)
		}
		if f.onlyJob() { // whose tasks may be few among those of all jobs
			where += " AND " + within(newestOfJobs(f.Before != uuid.Nil))
		}
		rows, err := tx.Query(ctx, `
			SELECT `+taskColumns+`
			FROM `+f.table()+` t
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

		tasks, err = vs.show(ctx, tx, caller, list)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return tasks, nil
}

// onlyJob reports whether nothing but a job selects the tasks.
func (f TaskFilter) onlyJob() bool {
	return f.Job != "" && reflect.DeepEqual(f.TaskSelection, TaskSelection{DAG: f.DAG, Job: f.Job})
}

// newestOfJobs selects the newest tasks of origins, which are $2, from a small part of idx_tasks_job. The last
// parameter is how many; before that comes the task that they are older than, if there is one.
func newestOfJobs(before bool) string {
	older, limit := "", "$3"
	if before {
		older, limit = "AND x.id < $3", "$4"
	}
	return `SELECT n.id FROM unnest($2::uuid[]) AS o(id)
		CROSS JOIN LATERAL (SELECT x.id FROM task_outlines x WHERE x.org_id = $1 AND x.job_id = o.id ` + older + `
			ORDER BY x.id DESC LIMIT ` + limit + `) AS n
		ORDER BY n.id DESC LIMIT ` + limit
}

// show adds the names of the tasks' jobs, and removes what the caller may not read. A caller who may not see a dataset
// may see that a task made it, but not what went in, what came out or what an error quotes.
func (vs *Views) show(ctx context.Context, tx pgx.Tx, caller authz.Caller, list []found) ([]Task, error) {
	origins := make([]uuid.UUID, 0, len(list))
	seen := map[uuid.UUID]bool{}
	for _, t := range list {
		if !seen[t.origin] {
			seen[t.origin] = true
			origins = append(origins, t.origin)
		}
	}

	jobs, err := vs.registry.KnownJobs(ctx, tx, origins)
	if err != nil {
		return nil, err
	}
	all := make([]*registry.Job, 0, len(jobs))
	for _, j := range jobs {
		all = append(all, j)
	}
	readable, err := vs.registry.ReadableJobs(ctx, tx, caller, all)
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

// redacted returns what everybody in the org may know of a task.
func (t Task) redacted() Task {
	t.Partition, t.State, t.Error, t.DedupeKey = "", "", "", ""
	t.Payload, t.InputVersions, t.Outputs, t.Result, t.Metadata = nil, nil, nil, nil, nil
	return t
}

// DAGOfTask returns the DAG that a task, named by its id, belongs to, for routes that act on tasks; see authz.Finder.
func (vs *Views) DAGOfTask(ctx context.Context, caller authz.Caller, values ...string) (dag string, err error) {
	id, err := uuid.Parse(values[0])
	if err != nil {
		return "", nil // the handler says what is wrong with it
	}

	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var origin uuid.UUID
		err := tx.QueryRow(ctx, `SELECT split_part(job_address(job_id), '/', 1), job_id FROM tasks
			WHERE org_id = $1 AND id = $2`, caller.OrgID, id).Scan(&dag, &origin)
		if errors.Is(err, pgx.ErrNoRows) {
			return noTask(id)
		}
		if err != nil {
			return err
		}
		hidden, err := vs.registry.HiddenAmong(ctx, tx, caller, []uuid.UUID{origin})
		if err == nil && hidden[origin] {
			return noTask(id)
		}
		return err
	})
	return dag, err
}

// noTask is the error about a task that does not exist, or that is hidden from whoever acts on it.
func noTask(id uuid.UUID) error {
	return fault.New(fault.NotFound, "there is no task %s", id).WithHint("`dagctl tasks list` shows those there are")
}

// DAGOfJob returns the DAG of a job, named by both, for routes that act on jobs and sources; see authz.Finder. A job
// that no version of a DAG has is refused here, as a hidden one is: before anything of the request is looked at.
func (vs *Views) DAGOfJob(ctx context.Context, caller authz.Caller, values ...string) (dag string, err error) {
	dag, name := values[0], values[1]
	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.RequireShown(ctx, tx, caller, dag, name); err != nil {
			return err
		}
		if origins, err := vs.registry.Origins(ctx, tx, caller, dag, name); err != nil || len(origins) > 0 {
			return err
		}
		if known, err := vs.registry.Origins(ctx, tx, caller, dag, ""); err != nil || len(known) == 0 {
			return err // the handler says that there is no such DAG
		}
		return noJob(ctx, tx, caller, dag, name)
	})
	return dag, err
}

// Task returns one task with its attempts and its last 100 events, the newest first.
func (vs *Views) Task(ctx context.Context, caller authz.Caller, id uuid.UUID) (TaskDetail, error) {
	var detail TaskDetail
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		t, readable, err := vs.FindTask(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		detail.Task = t
		if detail.Attempts, err = attempts(ctx, tx, caller.OrgID, t); err != nil {
			return err
		}
		detail.addTimes(clock.Now())
		if detail.Events, err = taskEvents(ctx, tx, t, uuid.Nil, 100); err != nil {
			return err
		}
		if detail.Lease, err = leaseOf(ctx, tx, caller.OrgID, id); err != nil {
			return err
		}
		if readable {
			if detail.Retired, err = retired(ctx, tx, caller.OrgID, id); err != nil {
				return err
			}
		}
		if err := vs.addParts(ctx, tx, caller, &detail); err != nil {
			return err
		}

		if !readable {
			for i := range detail.Attempts {
				detail.Attempts[i].Error, detail.Attempts[i].State = "", ""
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

// addTimes adds how long the attempts ran until now, and how long the task waited besides. A dead task waits for a
// person.
func (d *TaskDetail) addTimes(now time.Time) {
	until := now
	if d.CompletedAt != nil && d.Waiting == "" {
		until = *d.CompletedAt
	}

	var ran time.Duration
	for _, a := range d.Attempts {
		ended := until
		if a.EndedAt != nil {
			ended = *a.EndedAt
		}
		ran += max(ended.Sub(a.StartedAt), 0)
	}
	d.RanSeconds, d.WaitedSeconds = ran.Seconds(), max(until.Sub(d.CreatedAt)-ran, 0).Seconds()
}

// retired reports whether no version runs the definition of a task's job any more; false if the caller cannot see the
// task's row.
func retired(ctx context.Context, tx pgx.Tx, org, id uuid.UUID) (bool, error) {
	var origin uuid.UUID
	err := tx.QueryRow(ctx, `SELECT job_id FROM tasks WHERE org_id = $1 AND id = $2`, org, id).Scan(&origin)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	inWork, err := registry.OriginsInWork(ctx, tx, []uuid.UUID{origin})
	return !inWork[origin], err
}

// TaskByID returns one task.
func (vs *Views) TaskByID(ctx context.Context, caller authz.Caller, id uuid.UUID) (Task, error) {
	var t Task
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		t, _, err = vs.FindTask(ctx, tx, caller, id)
		return err
	})
	if err != nil {
		return Task{}, fmt.Errorf("task %s: %w", id, err)
	}
	return t, nil
}

// FindTask returns one task, and reports whether the caller may read its contents; if not, they are removed.
func (vs *Views) FindTask(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID) (Task, bool, error) {
	var t found
	err := tx.QueryRow(ctx, `
		SELECT `+taskColumns+`, t.payload, t.input_versions, t.outputs, r.payload
		FROM shown_tasks t
		LEFT JOIN waiting w ON w.task_id = t.id
		LEFT JOIN leases l ON l.task_id = t.id
		LEFT JOIN task_results r ON r.task_id = t.id
		WHERE t.org_id = $1 AND t.id = $2`, caller.OrgID, id).
		Scan(append(t.columns(), &t.Payload, &t.InputVersions, &t.Outputs, &t.Result)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return Task{}, false, noTask(id)
	}
	if err != nil {
		return Task{}, false, err
	}

	jobs, err := vs.registry.KnownJobs(ctx, tx, []uuid.UUID{t.origin})
	if err != nil {
		return Task{}, false, err
	}
	readable, err := vs.registry.ReadableJobs(ctx, tx, caller, []*registry.Job{jobs[t.origin]})
	if err != nil {
		return Task{}, false, err
	}

	t.DAG, t.Job = jobs[t.origin].DAG, jobs[t.origin].Name
	if !readable[t.origin] {
		return t.redacted(), false, nil
	}
	return t.Task, true, nil
}

// attempts lists the attempts at a task. The current one may have no row yet, because that is written when it ends; the
// task's own row then describes it.
func attempts(ctx context.Context, tx pgx.Tx, org uuid.UUID, t Task) ([]Attempt, error) {
	rows, err := tx.Query(ctx, `
		SELECT attempt, worker_id, started_at, ended_at, coalesce(outcome, ''), coalesce(error, ''),
			coalesce(progress, 0), coalesce(state, '')
		FROM task_attempts WHERE org_id = $1 AND task_id = $2 ORDER BY attempt`, org, t.ID)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
	if err != nil {
		return nil, err
	}

	if t.StartedAt != nil && (len(list) == 0 || list[len(list)-1].Number < t.Attempt) {
		current := Attempt{
			Number: t.Attempt, Worker: t.Worker, StartedAt: *t.StartedAt, EndedAt: t.CompletedAt, Error: t.Error,
			Progress: t.Progress, State: t.State,
		}
		if t.CompletedAt != nil {
			current.Outcome = t.Status
		}
		list = append(list, current)
	}
	return append([]Attempt{}, list...), nil
}

// ReadableTask reports whether a task has ended. For a caller who may not read what the task makes, the error is
// fault.NotFound.
func (vs *Views) ReadableTask(ctx context.Context, caller authz.Caller, id uuid.UUID) (ended bool, err error) {
	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		_, readable, err := vs.FindTask(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if !readable {
			return fault.New(fault.NotFound, "there is no log of task %s", id)
		}
		ended, err = HasEnded(ctx, tx, caller.OrgID, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("task %s: %w", id, err)
	}
	return ended, nil
}

// HasEnded reports whether a task has ended: completed, canceled, or failed with no attempt to come. A task that no
// longer exists has ended.
func HasEnded(ctx context.Context, tx pgx.Tx, org, id uuid.UUID) (ended bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT NOT EXISTS (
			SELECT FROM tasks t LEFT JOIN waiting w ON w.task_id = t.id
			WHERE t.org_id = $1 AND t.id = $2 AND t.status NOT IN ('Completed', 'Canceled')
			      AND (t.status <> 'Failed' OR coalesce(w.available_at, t.next_retry_at) IS NOT NULL))`, org, id).
		Scan(&ended)
	return ended, err
}
