package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Fence is what a worker must present to commit anything: its attempt, and the token that only this attempt got.
type Fence struct {
	TaskID     uuid.UUID `json:"task_id"`
	Attempt    int       `json:"attempt"`
	LeaseToken uuid.UUID `json:"lease_token"`
}

// Row is the row of a task, locked for the transaction that moves it on.
type Row struct {
	ID, Org, Origin uuid.UUID
	Kind            Kind
	Class           Class
	Slot            string
	Status          Status
	reason          Reason
	Attempt         int
	token           *uuid.UUID
	failures        int
	maxAttempts     int
	Runtime         string
	priority        int
	Limits          []string
	Pins            []registry.Pin
	completionHash  string
	CancelAsked     bool // somebody asked to cancel it
	Worker          string
	startedAt       *time.Time
}

// Retryable reports whether people may retry a task of a status and reason: one that failed, or that a person canceled.
// Nothing but a person takes the latter up again.
func Retryable(status Status, reason Reason) bool {
	return status == Failed || status == Canceled && reason == ReasonCanceled
}

// Started returns when the attempt began; nil: none did.
func (r Row) Started() *time.Time { return r.startedAt }

// Retryable reports whether people may retry the task.
func (r Row) Retryable() bool { return Retryable(r.Status, r.reason) }

// LockTask locks the row of a fence's task. Every effect of a worker's call happens in the transaction of this lock.
func LockTask(ctx context.Context, tx pgx.Tx, f Fence) (Row, error) {
	rows, err := LockTasks(new(pg.Batch), []uuid.UUID{f.TaskID}).Get(ctx, tx)
	if err != nil {
		return Row{}, err
	}
	return RowOf(rows, f.TaskID)
}

// LockTasks locks rows, in the order of their ids.
func LockTasks(b *pg.Batch, tasks []uuid.UUID) *pg.Later[map[uuid.UUID]Row] {
	return taskRows(b, tasks, "tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE")
}

// ReadTasks reads rows without locking them. The lateral join looks up each row by itself: whatever the statistics say,
// the plan never reads all tasks of an org.
func ReadTasks(b *pg.Batch, tasks []uuid.UUID) *pg.Later[map[uuid.UUID]Row] {
	return taskRows(b, tasks, `unnest($1::uuid[]) AS wanted
		CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted LIMIT 1) AS t`)
}

// taskRows reads the rows that a FROM clause, whose argument $1 is the ids, yields.
func taskRows(b *pg.Batch, tasks []uuid.UUID, from string) *pg.Later[map[uuid.UUID]Row] {
	found := make(map[uuid.UUID]Row, len(tasks))

	var (
		r    Row
		pins []byte
	)
	into := []any{&r.ID, &r.Org, &r.Origin, &r.Kind, &r.Class, &r.Slot, &r.Status, &r.reason, &r.Attempt, &r.token,
		&r.failures, &r.maxAttempts, &r.Runtime, &r.priority, &r.Limits, &pins, &r.completionHash, &r.CancelAsked,
		&r.Worker, &r.startedAt}
	b.Query(fmt.Sprintf("lock %d tasks", len(tasks)), into, func() error {
		r.Pins = nil
		err := json.Unmarshal(pins, &r.Pins)
		found[r.ID] = r
		return err
	}, `
		SELECT id, org_id, job_id, kind, class, slot, status, coalesce(reason, ''), attempt, lease_token, failures,
		       max_attempts, runtime, priority, limits, coalesce(input_versions, '[]'), coalesce(completion_hash, ''),
		       cancel_requested_at IS NOT NULL, coalesce(worker_id, ''), started_at
		FROM `+from, tasks)
	return pg.Answer(b, &found)
}

// RowOf returns the row of a task, or a fault of kind NotFound.
func RowOf(rows map[uuid.UUID]Row, id uuid.UUID) (Row, error) {
	row, ok := rows[id]
	if !ok {
		return row, fault.New(fault.NotFound, "there is no task %s", id)
	}
	return row, nil
}

// Holds reports whether the fence belongs to the task's current attempt.
func (r Row) Holds(f Fence) bool {
	return r.Attempt == f.Attempt && r.token != nil && *r.token == f.LeaseToken
}

// MayComplete returns an error unless the fence may end the task now. A completion that comes after its lease ran out
// still may, as long as no newer attempt began and the lease is all that was lost. repeated reports that the task ended
// by this very completion, which is acknowledged and changes nothing.
func (r Row) MayComplete(f Fence, hash string) (repeated bool, err error) {
	if !r.Holds(f) {
		return false, r.FencedOff(f)
	}
	switch {
	case r.completionHash != "" && r.completionHash == hash && r.Status != Running:
		return true, nil
	case r.Status == Running, (r.Status == Failed || r.Status == Queued) && r.reason == ReasonLeaseExpired:
		return false, nil
	}
	return false, r.WithState(fault.New(fault.Conflict, "task %s is already %s", r.ID, r.Status))
}

// Ending is how an attempt, or an open task, ends.
type Ending struct {
	Status  Status // Completed, Failed or Canceled
	Reason  Reason
	State   string
	Message string
	Hash    string
	Outputs []OutputNote
	Spare   bool // Completed: it may have written data that it did not publish
	Actor   string
	RetryAt *time.Time // Failed: when the next attempt is due; nil: the task is dead
	Failed  int        // how much the attempt counts against max_attempts
}

// UnlessCanceled returns how a failed attempt ends: as e says, or canceled, without another try, if somebody asked for
// that.
func (r Row) UnlessCanceled(e Ending) Ending {
	if r.CancelAsked {
		e.Status, e.Reason, e.RetryAt, e.Failed = Canceled, ReasonCanceled, nil, 0
	}
	return e
}

// Ended is a task whose row is locked, and how it ends.
type Ended struct {
	Row
	Ending
}

// Finish ends tasks whose rows are locked, no two of one slot, in one round trip with the statements that wait in b.
// Each task leaves its set, gives back its limits, and lets the sibling that waited for its slot go on. The statement
// names the expected status, so an illegal transition changes no row. next collects the tasks that become claimable; if
// it is nil, the claim loop is woken.
func (st *Store) Finish(
	ctx context.Context, tx pgx.Tx, b *pg.Batch, tasks []Ended, next *Collector, now time.Time,
) error {
	var running []Ended
	freed := map[Limit]int{}
	for _, t := range tasks {
		if t.Row.Status == Running {
			running = append(running, t)
			AddFreed(freed, t.Org, t.Limits)
			continue
		}
		held, err := leaveQueue(ctx, tx, t.Row)
		if err != nil {
			return err
		}
		if held {
			AddFreed(freed, t.Org, t.Limits)
		}
	}

	lockLeases(b, running)
	if err := writeEndings(b, tasks, now); err != nil {
		return err
	}
	for _, t := range tasks {
		if t.Ending.Status == Failed {
			setAside(b, t.Row, t.Ending, now)
		}
	}
	siblings := freeSiblings(b, running)
	freedRoom := release(b, freed, next)
	if err := b.Send(ctx, tx); err != nil {
		return err
	}

	if err := st.observer.TasksEnded(ctx, tx, tasks, now); err != nil {
		return err
	}

	released, err := freedRoom.Get(ctx, tx)
	if err != nil {
		return err
	}
	unblocked, err := siblings.Get(ctx, tx)
	if err != nil {
		return err
	}
	return st.Place(ctx, tx, released.Room, append(released.tasks, unblocked...), now)
}

// lockLeases locks the leases of running tasks that end together. It locks the siblings that already wait first,
// because routers lock in this direction too.
func lockLeases(b *pg.Batch, running []Ended) {
	if len(running) < 2 {
		return
	}
	tasks := make([]uuid.UUID, len(running))
	for i, t := range running {
		tasks[i] = t.ID
	}
	origins, slots := slotsOf(running)
	b.Exec("lock siblings", `
		SELECT FROM waiting WHERE task_id = ANY(ARRAY(`+waitingSiblings+`)) ORDER BY task_id FOR UPDATE`,
		origins, slots)
	// The lock is a statement of its own: one that both sorts and deletes is planned as a join, which reads the whole
	// table.
	b.Exec("lock leases", `SELECT FROM leases WHERE task_id = ANY($1) ORDER BY task_id FOR UPDATE`, tasks)
}

// slotsOf returns the origins and slots of tasks, in order.
func slotsOf(tasks []Ended) (origins []uuid.UUID, slots []string) {
	origins, slots = make([]uuid.UUID, len(tasks)), make([]string, len(tasks))
	for i, t := range tasks {
		origins[i], slots[i] = t.Origin, t.Slot
	}
	return origins, slots
}

// leaveQueue removes an open task that is not running from its set, and reports whether it held its limits there. A
// late completion may meet a task that is ready again: if a claimer is just taking it, a newer attempt has begun.
func leaveQueue(ctx context.Context, tx pgx.Tx, r Row) (held bool, err error) {
	tag, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = $1`, r.ID)
	if err != nil || tag.RowsAffected() > 0 || r.Status != Queued {
		return false, err
	}
	tag, err = tx.Exec(ctx, `DELETE FROM ready WHERE task_id IN (
		SELECT task_id FROM ready WHERE task_id = $1 FOR UPDATE SKIP LOCKED)`, r.ID)
	if err != nil {
		return false, err
	}
	if tag.RowsAffected() == 0 {
		return false, fault.New(fault.Conflict, "task %s is being claimed: a newer attempt has begun", r.ID)
	}
	return true, nil
}

// writeEndings deletes the leases and writes the rows of the tasks, of their attempts, and of the audit trail. A first
// attempt gets its row here, with the staging that its lease recorded, unless everything that it may have written is
// published now: its revisions record where that is. The trail shows when an attempt began only once it ended without
// completing; until then, and for completed ones, the task's own row has that time.
func writeEndings(b *pg.Batch, tasks []Ended, now time.Time) error {
	rows := make([]endingRow, len(tasks))
	var trail []trailRow
	for i, t := range tasks {
		var notes []byte
		if len(t.Outputs) > 0 {
			var err error
			if notes, err = json.Marshal(t.Outputs); err != nil {
				return err
			}
		}
		rows[i] = endingRow{
			t.ID, t.Org, string(t.Ending.Status), string(t.Ending.Reason), t.Ending.State, t.Message, t.Hash,
			string(notes), t.RetryAt,
			t.Failed, string(t.Row.Status), t.Attempt, t.Worker, t.startedAt, t.Spare,
		}

		if t.Row.Status == Running && t.Ending.Status != Completed {
			began := EventID(*t.startedAt, t.ID)
			trail = append(trail, onTrailAs(began, t.Row, Queued, Running, t.Worker, "", nil, *t.startedAt))
		}
		detail, err := t.Ending.detail()
		if err != nil {
			return err
		}
		trail = append(trail, onTrail(t.Row, t.Row.Status, t.Ending.Status, t.Actor, t.Ending.State, detail, now))
	}

	first := tasks[0]
	what := fmt.Sprintf("end %d tasks, the first %s as %s", len(tasks), first.ID, first.Ending.Status)
	b.Count(what, func(rows int) error {
		if rows < len(tasks) {
			return fault.New(fault.Conflict, "task %s, or one of %d, is not %s any more",
				first.ID, len(tasks), first.Row.Status)
		}
		return nil
	}, endTasks, append([]any{now}, pg.Columns(rows)...)...)
	insertTrail(b, trail)
	return nil
}

// endTasks ends tasks at a moment ($1). A lease's last progress and state stay with what they were about.
//
// The lease rows are joined in full, since PostgreSQL can only hash a full join: it takes w for ten rows, and compared
// each of several hundred endings with each lease in a left one.
const endTasks = `
	WITH w AS (
		SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
			$9::text[], $10::timestamptz[], $11::int[], $12::text[], $13::int[], $14::text[],
			$15::timestamptz[], $16::boolean[])
			AS w(id, org, status, reason, state, message, hash, outputs, retry_at, failed, was, attempt, worker,
				started_at, spare)),
	released AS (DELETE FROM leases WHERE task_id = ANY($2) RETURNING task_id, staging, progress, state),
	ended AS MATERIALIZED (
		SELECT w.*, r.staging, r.progress AS reached, r.state AS last_state
		FROM w FULL JOIN released r ON r.task_id = w.id),
	tried AS (
		INSERT INTO task_attempts AS a
			(task_id, attempt, org_id, worker_id, started_at, ended_at, outcome, error, staging, progress, state)
		SELECT id, attempt, org, worker, started_at, $1,
			CASE WHEN reason IN ('', 'error') THEN status ELSE reason END, NULLIF(message, ''),
			coalesce(staging, '{}'), reached, last_state
		FROM ended e
		WHERE started_at IS NOT NULL AND (status <> 'Completed'
			OR EXISTS (SELECT FROM task_attempts a WHERE a.task_id = e.id AND a.attempt = e.attempt OFFSET 0)
			OR spare AND staging <> '{}')
		ON CONFLICT (task_id, attempt) DO UPDATE
		SET ended_at = EXCLUDED.ended_at, outcome = EXCLUDED.outcome, error = EXCLUDED.error,
			progress = EXCLUDED.progress, state = EXCLUDED.state
		WHERE a.ended_at IS NULL)
	UPDATE tasks t SET status = e.status, reason = NULLIF(e.reason, ''),
		state = coalesce(NULLIF(e.state, ''), e.last_state, t.state), error_message = NULLIF(e.message, ''),
		completion_hash = NULLIF(e.hash, ''), outputs = NULLIF(e.outputs, '')::jsonb,
		completed_at = CASE WHEN e.retry_at IS NULL THEN $1::timestamptz END, next_retry_at = e.retry_at,
		failures = LEAST(failures + e.failed, max_attempts),
		progress = CASE WHEN e.status = 'Completed' THEN 100 ELSE coalesce(e.reached, t.progress) END,
		version = version + 1
	FROM ended e
	WHERE t.id = e.id AND t.org_id = e.org AND t.status = e.was`

// endingRow is a row of w in endTasks; its fields are in the order of w's columns.
type endingRow struct {
	ID, Org                                       uuid.UUID
	Status, Reason, State, Message, Hash, Outputs string
	RetryAt                                       *time.Time
	Failed                                        int
	Was                                           string
	Attempt                                       int
	Worker                                        string
	StartedAt                                     *time.Time
	Spare                                         bool
}

// detail returns the JSON that the audit trail keeps of an ending, or nil.
func (e Ending) detail() ([]byte, error) {
	if e.Reason == "" && e.Message == "" && e.RetryAt == nil {
		return nil, nil
	}
	return json.Marshal(struct {
		Reason  Reason     `json:"reason,omitempty"`
		Error   string     `json:"error,omitempty"`
		RetryAt *time.Time `json:"retry_at,omitempty"`
	}{e.Reason, e.Message, e.RetryAt})
}

// setAside puts a failed task into the waiting set until its retry is due or, if no attempt is left, until somebody
// retries or skips it.
func setAside(b *pg.Batch, r Row, e Ending, now time.Time) {
	reason := WaitBackoff
	placed := now
	if e.RetryAt == nil {
		reason = WaitDead
	} else {
		placed = *e.RetryAt
	}
	b.Exec(fmt.Sprintf("set task %s aside", r.ID), `
		INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, available_at, rank, error_group, failed_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, error_group(NULLIF($8, '')), $9)`,
		r.ID, r.Org, r.Origin, r.Slot, reason, e.RetryAt, rankOf(r.priority, placed),
		fault.Headline(e.Message), now) // errors of several call paths are one group
}

// RetryAfter returns when a failed attempt is followed by another, or nil if by none. counts is how much the failure
// counts against the task's attempts; random, in [0, 1), spreads the back-off by ± 50 %.
func RetryAfter(
	r Row, retry dag.Retry, retryable bool, counts int, now time.Time, random float64,
) (retryAt *time.Time) {
	if !retryable || r.failures+counts >= r.maxAttempts {
		return nil
	}

	initial, limit, multiplier := retry.Initial, retry.Max, retry.Multiplier
	if initial <= 0 {
		initial = time.Second
	}
	if limit <= 0 {
		limit = 5 * time.Minute
	}
	if multiplier < 1 {
		multiplier = 2
	}

	delay := math.Min(float64(limit), float64(initial)*math.Pow(multiplier, float64(r.failures)))
	at := now.Add(time.Duration(delay * (0.5 + random)))
	return &at
}

// OutputNote describes one committed output in tasks.outputs.
type OutputNote struct {
	Output    int    `json:"output"`
	Partition string `json:"partition"`
	Revision  int64  `json:"revision"`
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	State     string `json:"state"`
}

// FencedOff returns the conflict for an attempt that is no longer the task's current one, with the task's state.
func (r Row) FencedOff(f Fence) error {
	return r.WithState(fault.New(fault.Conflict, "task %s is %s at attempt %d: attempt %d was fenced off",
		r.ID, r.Status, r.Attempt, f.Attempt))
}

// WithState adds the task's status, attempt and reason to a conflict, for programs to read.
func (r Row) WithState(e *fault.Error) *fault.Error {
	e.Problems = []fault.Problem{
		{Location: "task.status", Message: string(r.Status)},
		{Location: "task.attempt", Message: strconv.Itoa(r.Attempt)},
	}
	if r.reason != "" {
		e.Problems = append(e.Problems, fault.Problem{Location: "task.reason", Message: string(r.reason)})
	}
	return e
}

// MustRun returns a conflict unless the fence belongs to the running attempt.
func (r Row) MustRun(f Fence) error {
	switch {
	case !r.Holds(f):
		return r.FencedOff(f)
	case r.Status != Running:
		return r.WithState(fault.New(fault.Conflict, "task %s is already %s", r.ID, r.Status))
	}
	return nil
}
