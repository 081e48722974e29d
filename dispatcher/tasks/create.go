package tasks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Request asks for one task.
type Request struct {
	ID          uuid.UUID // set if the task has a slot of its own, which no other task can have; otherwise zero
	Job         *registry.Job
	Kind        Kind
	Slot        string
	Dedupe      string // empty: none
	Partition   string // output partition; empty: none
	Payload     json.RawMessage
	InputHash   string
	Concurrency string // rendered concurrency_key; empty: none
	Priority    *int   // nil: the job's
	Class       Class
	MaxAttempts int
	Runtime     string
	RunAt       *time.Time
	Metadata    json.RawMessage
	Trace       string // traceparent of the event that asks for it
	By          string // the principal, or task:ID, that asks for it; empty: the platform

	// Pins are the revisions to read, as found under the lock of the origin; nil: they are found when it is claimed.
	Pins []registry.Pin
}

func (w Request) priority() int {
	if w.Priority == nil {
		return w.Job.Def.Priority
	}
	return *w.Priority
}

// Slot names what at most one queued and one running task of an origin may hold.
type Slot struct {
	Origin uuid.UUID
	Key    string
}

// Made is the task that stands for a request: a new one, or the one that was already queued.
type Made struct {
	ID    uuid.UUID
	IsNew bool
}

// Created holds, by slot, the task that stands for each request. A request whose unit of work is already done or given
// up is absent.
type Created struct {
	By map[Slot]Made
}

// Topics returns the wake-ups to send after COMMIT, beside those for tasks that are claimable now.
func (c Created) Topics() wakeup.Topics {
	for _, m := range c.By {
		if !m.IsNew {
			return wakeup.Topics{wakeup.Claim} // claimers passed over the row, which this transaction locked
		}
	}
	return nil
}

// Creation is the argument of Create.
type Creation struct {
	Wanted []Request
	Slots  *pg.Later[Occupancy] // what the tasks' slots hold; nil: Create looks
	Next   *Collector           // collects the tasks that become claimable; nil: the claim loop is woken
}

// Create makes tasks and puts each into the set where it belongs. The caller holds the locks of their origins, so
// nobody else queues a task for the same slots meanwhile; a running task may end at any moment, which the lock on its
// lease settles.
//
// A unit of work is made only once: its dedupe key identifies it. A task that was merely canceled, because a cutover or
// an abandoned build had no use for it or another task was to do its work, is taken up again under its old id.
func (st *Store) Create(ctx context.Context, tx pgx.Tx, asked Creation, now time.Time) (Created, error) {
	if asked.Slots == nil {
		asked.Slots = Occupied(new(pg.Batch), sharedSlots(asked.Wanted))
	}
	there, err := asked.Slots.Get(ctx, tx)
	if err != nil {
		return Created{}, err
	}

	out := Created{By: map[Slot]Made{}}
	slices.SortStableFunc(asked.Wanted, inOrder)
	fresh := out.attach(asked.Wanted, there)
	if len(fresh) == 0 {
		return out, nil
	}
	return out, st.insert(ctx, tx, fresh, there, out, asked.Next, now)
}

// sharedSlots returns the slots of the requests that other tasks may hold.
func sharedSlots(wanted []Request) []Slot {
	var slots []Slot
	for _, w := range wanted {
		if w.ID == uuid.Nil {
			slots = append(slots, Slot{w.Job.Origin, w.Slot})
		}
	}
	return slots
}

// inOrder compares requests in the order in which every transaction inserts tasks, so that two transactions that make
// the same tasks cannot deadlock. Tasks with slots of their own keep the order of the requests, which is that of their
// ids.
func inOrder(a, b Request) int {
	return cmp.Or(bytes.Compare(a.Job.Origin[:], b.Job.Origin[:]), bytes.Compare(a.ID[:], b.ID[:]),
		strings.Compare(a.Dedupe, b.Dedupe), strings.Compare(a.Slot, b.Slot))
}

// attach records the queued task for each request whose slot holds one, and returns the requests to insert.
func (c Created) attach(wanted []Request, there Occupancy) []Request {
	fresh := wanted[:0:0]
	for _, w := range wanted {
		s := Slot{w.Job.Origin, w.Slot}
		if id, ok := there.queued[s]; ok {
			c.By[s] = Made{ID: id}
			continue
		}
		if w.Dedupe != "" && there.doing[s] == w.Dedupe {
			continue // it is running; an insert would wait for its row, and its completion waits for the lease we hold
		}
		there.queued[s] = uuid.Nil // two requests for one slot in one call are one
		fresh = append(fresh, w)
	}
	return fresh
}

// insert inserts tasks, records them in out, and places them. A task that nothing blocks becomes claimable in the round
// trip that inserts it.
func (st *Store) insert(
	ctx context.Context, tx pgx.Tx, fresh []Request, there Occupancy, out Created, next *Collector, now time.Time,
) error {
	var b pg.Batch
	spans := st.tracing.begin(ctx, fresh)
	inserted, err := insertTasks(&b, fresh, now)
	if err != nil {
		return err
	}

	placing := make([]Placement, len(fresh))
	for i, w := range fresh {
		placing[i] = Placement{
			Task: w.ID, Org: w.Job.OrgID, Origin: w.Job.Origin, slot: w.Slot, runtime: w.Runtime,
			needs: NeedsOf(&w.Job.Def, w.Kind), dag: w.Job.DAG, Rank: rankOf(w.priority(), now), Limits: LimitsOf(w),
			RunAt: w.RunAt, sibling: there.running[Slot{w.Job.Origin, w.Slot}],
		}
	}

	ready := unblocked(placing, there, now)
	st.insertReady(&b, ready)
	if next != nil && next.TakeFirst != nil && len(ready) == len(fresh) {
		next.TakeFirst(&b, fresh, placing)
	}

	made, err := inserted.Get(ctx, tx)
	if err != nil {
		return err
	}
	st.tracing.end(ctx, spans, made)

	// Tasks that were inserted as ready are in place; others are placed below.
	free := make(map[uuid.UUID]bool, len(ready))
	for _, p := range ready {
		free[p.Task] = true
	}
	var (
		placed []uuid.UUID
		rest   []Placement
	)
	for i, p := range placing {
		if made[i] == uuid.Nil {
			continue // already done or given up
		}
		out.By[Slot{p.Origin, p.slot}] = Made{ID: made[i], IsNew: true}
		if made[i] == p.Task && free[p.Task] {
			placed = append(placed, p.Task)
			continue
		}
		p.Task = made[i] // a canceled task that is taken up again has another id
		rest = append(rest, p)
	}

	st.claimable(ctx, next, placed)
	if err := supersedeFailed(ctx, tx, rest, there.failed, now); err != nil {
		return err
	}
	return st.Place(ctx, tx, NewRoom(next), rest, now)
}

// unblocked returns the tasks that nothing blocks.
func unblocked(placing []Placement, there Occupancy, now time.Time) (ready []Placement) {
	for _, p := range placing {
		if p.isFree(now) && len(there.failed[Slot{p.Origin, p.slot}]) == 0 {
			ready = append(ready, p)
		}
	}
	return ready
}

// supersedeFailed ends failed tasks, dead or waiting for a retry, whose slots get a new task: the new task reads what
// they would have read, or what replaced it.
func supersedeFailed(
	ctx context.Context, tx pgx.Tx, placing []Placement, failed map[Slot][]uuid.UUID, now time.Time,
) error {
	var over []uuid.UUID
	for _, p := range placing {
		over = append(over, failed[Slot{p.Origin, p.slot}]...)
	}
	if len(over) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = ANY($1)`, over); err != nil {
		return fmt.Errorf("supersede failed tasks: %w", err)
	}
	return requeueRows(ctx, tx, nil, over, "SYSTEM", now)
}

// Occupancy is what slots hold.
type Occupancy struct {
	queued, running map[Slot]uuid.UUID
	failed          map[Slot][]uuid.UUID // dead, or waiting for a retry
	doing           map[Slot]string      // dedupe key of the running task
}

// Occupied returns what slots hold. It looks and locks in the direction in which tasks move, from waiting to ready to
// leases, so it meets a task that moves meanwhile further on: a task found queued cannot be claimed before this
// transaction ends, and a lease cannot be released unnoticed by the sibling that is about to wait for it. It looks no
// further at a slot that it found queued; otherwise it could deadlock with a completion that promotes that very
// sibling. Each slot is looked up by itself, so that no plan begins with all open tasks; locks are taken in the order
// of ids, as everywhere.
func Occupied(b *pg.Batch, slots []Slot) *pg.Later[Occupancy] {
	found := Occupancy{queued: map[Slot]uuid.UUID{}, running: map[Slot]uuid.UUID{}, failed: map[Slot][]uuid.UUID{},
		doing: map[Slot]string{}}
	if len(slots) == 0 {
		return pg.Known(found)
	}

	origins, names := make([]uuid.UUID, len(slots)), make([]string, len(slots))
	for i, s := range slots {
		origins[i], names[i] = s.Origin, s.Key
	}

	var (
		s      Slot
		id     uuid.UUID
		failed bool
		dedupe string
	)
	b.Query("find waiting tasks", []any{&s.Origin, &s.Key, &id, &failed}, func() error {
		if failed {
			found.failed[s] = append(found.failed[s], id)
		} else {
			found.queued[s] = id
		}
		return nil
	}, `
		SELECT q.origin_job_id, q.slot, q.task_id, q.reason IN ('backoff', 'dead') FROM waiting q
		JOIN unnest($1::uuid[], $2::text[]) AS w(origin, slot) ON q.origin_job_id = w.origin AND q.slot = w.slot
		ORDER BY q.task_id FOR SHARE OF q`, origins, names)

	b.Query("find claimable tasks", []any{&s.Origin, &s.Key, &id}, func() error {
		found.queued[s] = id
		return nil
	}, `
		SELECT r.origin_job_id, r.slot, r.task_id FROM ready r WHERE r.task_id = ANY (ARRAY(
			SELECT o.task_id FROM unnest($1::uuid[], $2::text[]) AS w(origin, slot)
			CROSS JOIN LATERAL (
				SELECT task_id FROM ready o WHERE o.origin_job_id = w.origin AND o.slot = w.slot LIMIT 1) AS o
			WHERE NOT EXISTS (
				SELECT FROM waiting q WHERE q.origin_job_id = w.origin AND q.slot = w.slot
				AND q.reason NOT IN ('backoff', 'dead') OFFSET 0)))
		ORDER BY r.task_id FOR SHARE OF r`, origins, names)

	b.Query("lock leases", []any{&s.Origin, &s.Key, &id, &dedupe}, func() error {
		found.running[s], found.doing[s] = id, dedupe
		return nil
	}, `
		SELECT l.origin_job_id, l.slot, l.task_id,
			coalesce((SELECT t.dedupe_key FROM tasks t WHERE t.id = l.task_id), '')
		FROM leases l WHERE l.task_id = ANY (ARRAY(
			SELECT o.task_id FROM unnest($1::uuid[], $2::text[]) AS w(origin, slot)
			CROSS JOIN LATERAL (
				SELECT task_id FROM leases o WHERE o.origin_job_id = w.origin AND o.slot = w.slot LIMIT 1) AS o
			WHERE NOT EXISTS (
				SELECT FROM waiting q WHERE q.origin_job_id = w.origin AND q.slot = w.slot
				AND q.reason NOT IN ('backoff', 'dead') OFFSET 0)
			  AND NOT EXISTS (SELECT FROM ready r WHERE r.origin_job_id = w.origin AND r.slot = w.slot OFFSET 0)))
		ORDER BY l.task_id FOR SHARE OF l`, origins, names)
	return pg.Answer(b, &found)
}

// insertTasks writes the rows, under new ids if none are given, and returns their ids: the old id of a canceled task
// that is taken up again, and uuid.Nil if the dedupe key belongs to work that is done or given up.
func insertTasks(b *pg.Batch, wanted []Request, now time.Time) (*pg.Later[[]uuid.UUID], error) {
	var (
		ids, orgs, origins                                []uuid.UUID
		kinds, slots, runtimes, needs, partitions, limits []string
		dedupes, payloads, hashes, concurrency, metadata  []*string
		creators                                          []string
		maxAttempts, priorities, classes                  []int
		runAts                                            []*time.Time
	)

	index := make(map[Slot]int, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		if w.Runtime == "" {
			w.Runtime = w.Job.Def.Runtime
		}
		if w.MaxAttempts == 0 {
			w.MaxAttempts = w.Job.Def.MaxAttempts
		}
		if w.Concurrency == "" && w.Kind != KindCheck {
			w.Concurrency = RenderKey(w.Job.Def.ConcurrencyKey, w.Partition, w.Payload)
		}
		if w.ID == uuid.Nil {
			w.ID = uuid.Must(uuid.NewV7())
		}

		ids, orgs, origins = append(ids, w.ID), append(orgs, w.Job.OrgID), append(origins, w.Job.Origin)
		index[Slot{w.Job.Origin, w.Slot}] = i

		keys := ""
		if list := LimitKeys(LimitsOf(*w)); len(list) > 0 {
			text, err := json.Marshal(list)
			if err != nil {
				return nil, err
			}
			keys = string(text)
		}

		kinds, slots, runtimes = append(kinds, string(w.Kind)), append(slots, w.Slot), append(runtimes, w.Runtime)
		needs, limits = append(needs, NeedsOf(&w.Job.Def, w.Kind)), append(limits, keys)
		partitions, dedupes = append(partitions, w.Partition), append(dedupes, NullIfEmpty(w.Dedupe))
		payloads = append(payloads, NullIfEmpty(string(w.Payload)))
		metadata, creators = append(metadata, NullIfEmpty(string(w.Metadata))), append(creators, w.By)
		hashes, concurrency = append(hashes, NullIfEmpty(w.InputHash)), append(concurrency, NullIfEmpty(w.Concurrency))
		maxAttempts, priorities = append(maxAttempts, w.MaxAttempts), append(priorities, w.priority())
		runAts, classes = append(runAts, w.RunAt), append(classes, int(w.Class))
	}

	made := make([]uuid.UUID, len(wanted))
	var (
		s      Slot
		id     uuid.UUID
		dedupe string
	)
	b.Query(fmt.Sprintf("insert %d tasks", len(wanted)), []any{&id, &s.Origin, &s.Key, &dedupe}, func() error {
		if i, ok := index[s]; ok && wanted[i].Dedupe == dedupe {
			made[i] = id
		}
		return nil
	}, `
		WITH made AS (
			INSERT INTO tasks (id, org_id, job_id, kind, dedupe_key, slot, max_attempts, runtime, needs, priority,
				partitions, payload, input_hash, concurrency_key, limits, metadata, run_at, class, created_by, created_at)
			SELECT id, org, origin, kind, dedupe, slot, max_attempts, runtime, needs, priority,
				CASE WHEN partition <> '' THEN ARRAY[partition] END, NULLIF(payload::jsonb, 'null'), hash, concurrency,
				CASE WHEN limits = '' THEN '{}' ELSE ARRAY(SELECT jsonb_array_elements_text(limits::jsonb)) END,
				coalesce(NULLIF(metadata::jsonb, 'null'), '{}'), run_at, class, NULLIF(creator, ''), $1
			FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::int[], $9::text[],
				$10::int[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
				$17::timestamptz[], $18::text[], $19::smallint[], $20::text[])
				AS w(id, org, origin, kind, dedupe, slot, max_attempts, runtime, priority, partition, payload, hash,
					concurrency, limits, metadata, run_at, needs, class, creator)
			ORDER BY origin, dedupe
			ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO UPDATE
			SET status = 'Queued', kind = EXCLUDED.kind, reason = NULL, failures = 0, error_message = NULL,
			    completed_at = NULL, cancel_requested_at = NULL, next_retry_at = NULL, runtime = EXCLUDED.runtime,
			    max_attempts = EXCLUDED.max_attempts, needs = EXCLUDED.needs, limits = EXCLUDED.limits,
			    metadata = tasks.metadata || EXCLUDED.metadata, class = EXCLUDED.class, version = tasks.version + 1
			WHERE tasks.status = 'Canceled' AND tasks.reason IN ('superseded', 'abandoned', 'merged')
			RETURNING id, job_id, dedupe_key, slot, org_id, attempt, xmax::text <> '0' AS revived),
		trail AS ( -- a new task needs no event: its row says when it was queued
			INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, at)
			SELECT uuid_v7(), org_id, id, attempt, 'Canceled', 'Queued', 'SYSTEM', $1 FROM made WHERE revived)
		SELECT id, job_id, slot, coalesce(dedupe_key, '') FROM made`,
		now, ids, orgs, origins, kinds, dedupes, slots, maxAttempts, runtimes, priorities, partitions, payloads, hashes,
		concurrency, limits, metadata, runAts, needs, classes, creators)
	return pg.Answer(b, &made), nil
}

// NullIfEmpty returns nil for an empty string, which becomes NULL in SQL.
func NullIfEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
