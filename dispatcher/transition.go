package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// taskRow is a task, locked for the transaction that moves it on.
type taskRow struct {
	id, org, job   uuid.UUID
	kind           string
	slot           string
	status, reason string
	attempt        int
	token          *uuid.UUID
	failures       int
	maxAttempts    int
	runtime        string
	priority       int
	limits         []string
	pins           []registry.Pin
	completionHash string
	cancelAsked    bool // somebody asked for its end
	worker         string
	startedAt      *time.Time
}

// lockTask locks the row of a fence's task. Every effect of a worker's call is in the transaction of this lock.
func lockTask(ctx context.Context, tx pgx.Tx, f Fence) (taskRow, error) {
	rows, err := lockTasks(ctx, tx, ids(f.TaskID))
	if err != nil {
		return taskRow{}, err
	}
	return rowOf(rows, f.TaskID)
}

// lockTasks locks rows, in the order of their ids.
func lockTasks(ctx context.Context, tx pgx.Tx, tasks []uuid.UUID) (map[uuid.UUID]taskRow, error) {
	var b pg.Batch
	found := queueLockTasks(&b, tasks)
	return found, b.Send(ctx, tx)
}

// readTasks is lockTasks without the locks.
func readTasks(ctx context.Context, tx pgx.Tx, tasks []uuid.UUID) (map[uuid.UUID]taskRow, error) {
	var b pg.Batch
	found := queueReadTasks(&b, tasks)
	return found, b.Send(ctx, tx)
}

// queueLockTasks is lockTasks as a part of a batch: the answer is filled in when that is sent.
func queueLockTasks(b *pg.Batch, tasks []uuid.UUID) map[uuid.UUID]taskRow {
	return queueTasks(b, tasks, "tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE")
}

// queueReadTasks reads the rows without locks, each by itself: whatever this machine's statistics say, not all of an org's.
func queueReadTasks(b *pg.Batch, tasks []uuid.UUID) map[uuid.UUID]taskRow {
	return queueTasks(b, tasks, "unnest($1::uuid[]) AS wanted CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted LIMIT 1) AS t")
}

func queueTasks(b *pg.Batch, tasks []uuid.UUID, from string) map[uuid.UUID]taskRow {
	found := make(map[uuid.UUID]taskRow, len(tasks))
	var (
		r    taskRow
		pins []byte
	)
	b.Query(fmt.Sprintf("lock %d tasks", len(tasks)), []any{&r.id, &r.org, &r.job, &r.kind, &r.slot, &r.status, &r.reason, &r.attempt, &r.token,
		&r.failures, &r.maxAttempts, &r.runtime, &r.priority, &r.limits, &pins, &r.completionHash, &r.cancelAsked, &r.worker, &r.startedAt}, func() error {
		r.pins = nil
		err := json.Unmarshal(pins, &r.pins)
		found[r.id] = r
		return err
	}, `
		SELECT id, org_id, job_id, kind, slot, status, coalesce(reason, ''), attempt, lease_token, failures, max_attempts, runtime,
		       priority, limits, coalesce(input_versions, '[]'), coalesce(completion_hash, ''), cancel_requested_at IS NOT NULL,
		       coalesce(worker_id, ''), started_at
		FROM `+from, tasks)
	return found
}

func rowOf(rows map[uuid.UUID]taskRow, id uuid.UUID) (taskRow, error) {
	row, ok := rows[id]
	if !ok {
		return row, fault.New(fault.NotFound, "there is no task %s", id)
	}
	return row, nil
}

// holds reports whether the fence is of the task's current attempt.
func (r taskRow) holds(f Fence) bool {
	return r.attempt == f.Attempt && r.token != nil && *r.token == f.LeaseToken
}

// mayComplete says whether a fence may end the task now. One that comes after its lease ran out still may, as long as no
// newer attempt began and the lease was all that it lost; the same completion again is acknowledged and changes nothing.
func (r taskRow) mayComplete(f Fence, hash string) (repeated bool, err error) {
	if !r.holds(f) {
		return false, r.fencedOff(f)
	}
	switch {
	case r.completionHash != "" && r.completionHash == hash && r.status != "Running":
		return true, nil
	case r.status == "Running", (r.status == "Failed" || r.status == "Queued") && r.reason == reasonLeaseExpired:
		return false, nil
	}
	return false, r.stands(fault.New(fault.Conflict, "task %s is %s already", r.id, r.status))
}

// Reasons of failed and canceled tasks.
const (
	reasonLeaseExpired = "lease_expired"
	reasonTimeout      = "timeout"
	reasonError        = "error"
	reasonCanceled     = "canceled"
	reasonSuperseded   = "superseded"
	reasonAbandoned    = "abandoned"
	reasonSkipped      = "skipped"
	reasonHandedBack   = "handed_back"
)

// ending is how an attempt, or an open task, ends.
type ending struct {
	status  string // Completed, Failed or Canceled
	reason  string
	state   string
	message string
	hash    string
	outputs []outputNote
	spare   bool // Completed: it may have written what it did not publish
	actor   string
	retryAt *time.Time // Failed: when it is tried again; nil: it is dead
	failed  int        // how much it counts against max_attempts
}

// unlessCanceled is how an attempt that failed ends: one that somebody has canceled is not tried again.
func (r taskRow) unlessCanceled(e ending) ending {
	if r.cancelAsked {
		e.status, e.reason, e.retryAt, e.failed = "Canceled", reasonCanceled, nil, 0
	}
	return e
}

// ended is a task whose row is locked, and how it ends.
type ended struct {
	taskRow
	ending
}

// finish ends a task whose row is locked.
func (d *Dispatcher) finish(ctx context.Context, tx pgx.Tx, r taskRow, e ending, now time.Time) error {
	return d.finishAll(ctx, tx, []ended{{r, e}}, now)
}

// finishAll ends tasks whose rows are locked, no two of one slot.
func (d *Dispatcher) finishAll(ctx context.Context, tx pgx.Tx, tasks []ended, now time.Time) error {
	return d.finishWith(ctx, tx, new(pg.Batch), tasks, now)
}

// finishWith is finishAll together with what b has: each task leaves whichever set it is in, gives back its limits, and
// lets the sibling that waited for its slot go on. The expected state is in the statement, so an illegal transition changes
// no row.
func (d *Dispatcher) finishWith(ctx context.Context, tx pgx.Tx, b *pg.Batch, tasks []ended, now time.Time) error {
	var running []ended
	freed := map[limit]int{}
	for _, t := range tasks {
		if t.taskRow.status == "Running" {
			running = append(running, t)
			countLimits(freed, t.org, t.limits)
			continue
		}
		held, err := leaveQueue(ctx, tx, t.taskRow)
		if err != nil {
			return err
		}
		if held {
			countLimits(freed, t.org, t.limits)
		}
	}
	queueLockLeases(b, running)
	if err := queueEndings(b, tasks, now); err != nil {
		return err
	}
	for _, t := range tasks {
		if t.ending.status == "Failed" {
			queueWait(b, t.taskRow, t.ending, now)
		}
	}
	siblings := queueFreeSiblings(b, running)
	in, next := queueRelease(b, freed)
	if err := b.Send(ctx, tx); err != nil {
		return err
	}
	if err := announceDead(ctx, tx, tasks, now); err != nil {
		return err
	}
	pg.AfterCommit(ctx, func() {
		d.metrics.ended(tasks)
		d.roomInFunctions(tasks)
	})
	return d.placeIn(ctx, tx, in, append(*next, *siblings...), now)
}

// queueLockLeases locks the leases of running tasks that are to end together. Siblings that wait already are locked before:
// routers lock in this direction too.
func queueLockLeases(b *pg.Batch, running []ended) {
	if len(running) < 2 {
		return
	}
	tasks := make([]uuid.UUID, len(running))
	for i, t := range running {
		tasks[i] = t.id
	}
	jobs, slots := slotsOf(running)
	b.Exec("lock siblings", `
		SELECT FROM waiting WHERE task_id = ANY(ARRAY(`+waitingSiblings+`)) ORDER BY task_id FOR UPDATE`, jobs, slots)
	// By a statement of its own: one that both sorts and deletes is planned as a join, which reads the whole table.
	b.Exec("lock leases", `SELECT FROM leases WHERE task_id = ANY($1) ORDER BY task_id FOR UPDATE`, tasks)
}

func slotsOf(tasks []ended) (jobs []uuid.UUID, slots []string) {
	jobs, slots = make([]uuid.UUID, len(tasks)), make([]string, len(tasks))
	for i, t := range tasks {
		jobs[i], slots[i] = t.job, t.slot
	}
	return jobs, slots
}

// leaveQueue removes a task that is open but does not run from the set it is in; held tells whether it held its limits
// there. A late completion meets a task that is ready again: if a claimer is just taking it, a newer attempt has begun.
func leaveQueue(ctx context.Context, tx pgx.Tx, r taskRow) (held bool, err error) {
	tag, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = $1`, r.id)
	if err != nil || tag.RowsAffected() > 0 || r.status != "Queued" {
		return false, err
	}
	tag, err = tx.Exec(ctx, `DELETE FROM ready WHERE task_id IN (SELECT task_id FROM ready WHERE task_id = $1 FOR UPDATE SKIP LOCKED)`, r.id)
	if err != nil {
		return false, err
	}
	if tag.RowsAffected() == 0 {
		return false, fault.New(fault.Conflict, "task %s is being claimed: a newer attempt has begun", r.id)
	}
	return true, nil
}

// queueEndings takes away the leases and writes the tasks' rows, those of their attempts, and the audit trail. A first attempt
// gets its row here, with what its lease knew of its staging, unless all that it may have written is published now: its
// revisions know where that is. An attempt's beginning is on the trail from its end on, if it did not complete; until then,
// and of completed ones, the task's own row tells it.
func queueEndings(b *pg.Batch, tasks []ended, now time.Time) error {
	var (
		ids, orgs                                                           []uuid.UUID
		statuses, reasons, states, messages, hashes, outputs, from, workers []string
		retries, started                                                    []*time.Time
		failed, attempts                                                    []int
		spare                                                               []bool
		trail                                                               trailRows
	)
	for _, t := range tasks {
		var notes []byte
		if len(t.outputs) > 0 {
			var err error
			if notes, err = json.Marshal(t.outputs); err != nil {
				return err
			}
		}
		ids, orgs, statuses = append(ids, t.id), append(orgs, t.org), append(statuses, t.ending.status)
		reasons, states, messages = append(reasons, t.ending.reason), append(states, t.ending.state), append(messages, t.message)
		hashes, outputs, retries = append(hashes, t.hash), append(outputs, string(notes)), append(retries, t.retryAt)
		failed, from, attempts = append(failed, t.failed), append(from, t.taskRow.status), append(attempts, t.attempt)
		workers, started, spare = append(workers, t.worker), append(started, t.startedAt), append(spare, t.spare)
		if t.taskRow.status == "Running" && t.ending.status != "Completed" {
			trail.add(t.taskRow, "Queued", "Running", t.worker, "", nil, *t.startedAt)
		}
		detail, err := t.ending.detail()
		if err != nil {
			return err
		}
		trail.add(t.taskRow, t.taskRow.status, t.ending.status, t.actor, t.ending.state, detail, now)
	}
	first := tasks[0]
	b.Count(fmt.Sprintf("end %d tasks, the first %s as %s", len(tasks), first.id, first.ending.status), func(rows int) error {
		if rows < len(tasks) {
			return fault.New(fault.Conflict, "task %s, or one of %d, is not %s any more", first.id, len(tasks), first.taskRow.status)
		}
		return nil
	}, `
		WITH w AS (
			SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
				$10::timestamptz[], $11::int[], $12::text[], $13::int[], $14::text[], $15::timestamptz[], $16::boolean[])
				AS w(id, org, status, reason, state, message, hash, outputs, retry_at, failed, was, attempt, worker, started_at, spare)),
		released AS (DELETE FROM leases WHERE task_id = ANY($2) RETURNING task_id, staging),
		tried AS (
			INSERT INTO task_attempts AS a (task_id, attempt, org_id, worker_id, started_at, ended_at, outcome, error, staging)
			SELECT id, attempt, org, worker, started_at, $1, CASE WHEN reason IN ('', 'error') THEN status ELSE reason END, NULLIF(message, ''),
				coalesce((SELECT staging FROM released WHERE task_id = id), '{}')
			FROM w
			WHERE started_at IS NOT NULL AND (status <> 'Completed' OR EXISTS (SELECT FROM task_attempts a WHERE a.task_id = w.id AND a.attempt = w.attempt OFFSET 0)
				OR spare AND EXISTS (SELECT FROM released WHERE task_id = id AND staging <> '{}'))
			ON CONFLICT (task_id, attempt) DO UPDATE SET ended_at = EXCLUDED.ended_at, outcome = EXCLUDED.outcome, error = EXCLUDED.error
			WHERE a.ended_at IS NULL)
		UPDATE tasks t SET status = w.status, reason = NULLIF(w.reason, ''), state = coalesce(NULLIF(w.state, ''), t.state),
			error_message = NULLIF(w.message, ''), completion_hash = NULLIF(w.hash, ''), outputs = NULLIF(w.outputs, '')::jsonb,
			completed_at = CASE WHEN w.retry_at IS NULL THEN $1::timestamptz END, next_retry_at = w.retry_at,
			failures = failures + w.failed, progress = CASE WHEN w.status = 'Completed' THEN 100 ELSE progress END, version = version + 1
		FROM w WHERE t.id = w.id AND t.org_id = w.org AND t.status = w.was`,
		now, ids, orgs, statuses, reasons, states, messages, hashes, outputs, retries, failed, from, attempts, workers, started, spare)
	trail.insert(b)
	return nil
}

// detail is what the audit trail tells of an ending.
func (e ending) detail() ([]byte, error) {
	if e.reason == "" && e.message == "" && e.retryAt == nil {
		return nil, nil
	}
	return json.Marshal(struct {
		Reason  string     `json:"reason,omitempty"`
		Error   string     `json:"error,omitempty"`
		RetryAt *time.Time `json:"retry_at,omitempty"`
	}{e.reason, e.message, e.retryAt})
}

// queueWait lists a failed task among the waiting: until its retry is due, or, with no attempt left, until somebody
// retries or skips it.
func queueWait(b *pg.Batch, r taskRow, e ending, now time.Time) {
	reason := "backoff"
	placed := now
	if e.retryAt == nil {
		reason = "dead"
	} else {
		placed = *e.retryAt
	}
	b.Exec(fmt.Sprintf("set task %s aside", r.id), `
		INSERT INTO waiting (task_id, org_id, job_id, slot, reason, available_at, rank)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, r.id, r.org, r.job, r.slot, reason, e.retryAt, rankOf(classOf(r.kind), r.priority, placed))
}

func classOf(kind string) int {
	switch kind {
	case "build":
		return classBuild
	case "backfill":
		return classBackfill
	}
	return classLive
}

// failure decides what follows a failed attempt: another one after a back-off, or none. It is pure; random is in [0, 1).
func failure(r taskRow, retry dag.Retry, retryable bool, counts int, now time.Time, random float64) (retryAt *time.Time) {
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

// fail ends an attempt that did not do its work, if the fence still holds.
func (d *Dispatcher) failTx(ctx context.Context, tx pgx.Tx, t claimed, reason string, cause error, retryable bool, now time.Time) error {
	row, err := lockTask(ctx, tx, t.Fence)
	if err != nil {
		return err
	}
	if !row.holds(t.Fence) || row.status != "Running" {
		return fault.New(fault.Conflict, "task %s is %s at attempt %d: attempt %d was fenced off", row.id, row.status, row.attempt, t.Attempt)
	}
	return d.finish(ctx, tx, row, row.unlessCanceled(ending{status: "Failed", reason: reason, message: cause.Error(), actor: "WORKER", failed: 1,
		retryAt: failure(row, t.job.Def.Retry, retryable, 1, now, rand.Float64())}), now)
}
