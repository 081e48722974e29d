package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// class is how urgent a task is by what it is for: rankOf puts those of a higher class back.
const (
	classLive     = 0
	classBuild    = 1
	classBackfill = 2
)

// newTask asks for one task.
type newTask struct {
	id          uuid.UUID // given where the task has a slot of its own, which nothing else can have; otherwise zero
	job         *registry.Job
	kind        string
	slot        string
	dedupe      string // empty: none
	partition   string // output partition; empty: none
	payload     json.RawMessage
	inputHash   string
	concurrency string // rendered concurrency_key; empty: none
	priority    int
	class       int
	maxAttempts int
	runtime     string
	runAt       *time.Time
	metadata    json.RawMessage
	trace       string         // traceparent of what it follows from
	pins        []registry.Pin // what it is to read, as found under the lock of its origin; nil: that is found when it is claimed
}

type slotOf struct {
	origin uuid.UUID
	slot   string
}

// madeTask is the task that stands for a request: a new one, or the one that was queued already.
type madeTask struct {
	id    uuid.UUID
	isNew bool
}

// created tells what became of requests. One whose unit of work was done or given up before is absent.
type created struct {
	by map[slotOf]madeTask
}

// topics are the wake-ups to send after COMMIT, beside those for tasks that are claimable now.
func (c created) topics() topics {
	for _, m := range c.by {
		if !m.isNew {
			return topics{topicClaim} // claimers passed over the row, which is locked while it is attached to
		}
	}
	return nil
}

// createFound makes the tasks that findings call for.
func (d *Dispatcher) createFound(ctx context.Context, tx pgx.Tx, findings []finding, live map[uuid.UUID]bool, now time.Time) (created, error) {
	var (
		b     pg.Batch
		slots []slotOf
		read  []uuid.UUID
	)
	for _, f := range findings {
		if f.verdict == stale {
			slots = append(slots, slotOf{f.job.Origin, f.key})
			for _, p := range f.pins {
				read = append(read, p.Version)
			}
		}
	}
	filling, there := queueFilling(&b, dedupeIDs(read)), queueOccupied(&b, slots)
	if err := b.Send(ctx, tx); err != nil {
		return created{}, err
	}
	return d.createWhere(ctx, tx, findings, *filling, there, live, now)
}

// createWhere is createFound where it is known what running backfills fill, and what the slots of the findings have.
func (d *Dispatcher) createWhere(ctx context.Context, tx pgx.Tx, findings []finding, filling []uuid.UUID, there occupancy, live map[uuid.UUID]bool, now time.Time) (created, error) {
	holdBack(findings, filling)
	var wanted []newTask
	for _, f := range findings {
		if f.verdict != stale {
			continue
		}
		t := newTask{job: f.job, kind: "reactive", slot: f.key, partition: f.key, dedupe: f.dedupe, class: classLive, trace: f.trace, pins: f.pins}
		if !live[f.job.Origin] {
			t.kind, t.class = "build", classBuild
		}
		wanted = append(wanted, t)
	}
	return d.createIn(ctx, tx, wanted, there, now)
}

// create makes tasks and puts each into the set where it belongs. The caller holds the locks of their origins, so per
// slot nothing else is queued meanwhile; what is running may end at any moment, which the lock on its lease settles.
//
// A unit of work that is known by its dedupe key is not made twice. One that was only canceled, because a cutover or
// an abandoned build had no use for it or another task was to do its work, is taken up again under its old id.
func (d *Dispatcher) create(ctx context.Context, tx pgx.Tx, wanted []newTask, now time.Time) (created, error) {
	var slots []slotOf
	for _, w := range wanted {
		if w.id == uuid.Nil {
			slots = append(slots, slotOf{w.job.Origin, w.slot})
		}
	}
	there, err := occupied(ctx, tx, slots)
	if err != nil {
		return created{}, err
	}
	return d.createIn(ctx, tx, wanted, there, now)
}

// createIn is create where it is known what the slots have.
func (d *Dispatcher) createIn(ctx context.Context, tx pgx.Tx, wanted []newTask, there occupancy, now time.Time) (created, error) {
	out := created{by: map[slotOf]madeTask{}}
	// In one order everywhere, so that two transactions that make the same tasks cannot deadlock.
	slices.SortStableFunc(wanted, func(a, b newTask) int {
		if c := slices.Compare(a.job.Origin[:], b.job.Origin[:]); c != 0 {
			return c
		}
		if c := slices.Compare(a.id[:], b.id[:]); c != 0 { // of their own slots, in the order asked for
			return c
		}
		return slices.Compare([]byte(a.dedupe+"\x00"+a.slot), []byte(b.dedupe+"\x00"+b.slot))
	})
	fresh := wanted[:0:0]
	for _, w := range wanted {
		s := slotOf{w.job.Origin, w.slot}
		if id, ok := there.queued[s]; ok {
			out.by[s] = madeTask{id: id}
			continue
		}
		if w.dedupe != "" && there.doing[s] == w.dedupe {
			continue // it is being done; to insert it would wait for its row, whose completion waits for the lease
		}
		there.queued[s] = uuid.Nil // two requests for one slot in one call are one
		fresh = append(fresh, w)
	}
	if len(fresh) == 0 {
		return out, nil
	}
	// What nothing stands in the way of becomes claimable in the round trip that inserts it.
	var (
		b       pg.Batch
		spans   = d.tracing.made(ctx, fresh)
		placing = make([]placement, len(fresh))
		free    = make(map[uuid.UUID]bool, len(fresh))
		ready   []placement
	)
	made, err := queueInsertTasks(&b, fresh, now)
	if err != nil {
		return out, err
	}
	for i, w := range fresh {
		s := slotOf{w.job.Origin, w.slot}
		p := placement{task: w.id, org: w.job.OrgID, job: w.job.Origin, slot: w.slot, runtime: w.runtime, needs: needsOf(&w.job.Def, w.kind),
			rank: rankOf(w.class, w.priority, now), limits: limitsOf(w), runAt: w.runAt, sibling: there.running[s]}
		if placing[i] = p; p.isFree(now) && len(there.failed[s]) == 0 {
			free[p.task], ready = true, append(ready, p)
		}
	}
	d.queueInsertReady(&b, ready)
	d.queueNext(ctx, &b, fresh, placing, free)
	if err := b.Send(ctx, tx); err != nil {
		return out, err
	}
	d.tracing.inserted(ctx, spans, made)
	var (
		placed []uuid.UUID
		rest   []placement
	)
	for i, p := range placing {
		if made[i] == uuid.Nil {
			continue // done or given up before
		}
		out.by[slotOf{p.job, p.slot}] = madeTask{id: made[i], isNew: true}
		if made[i] == fresh[i].id && free[p.task] {
			placed = append(placed, p.task)
			continue
		}
		p.task = made[i]
		rest = append(rest, p)
	}
	if len(placed) > 0 {
		d.claimable(ctx, placed)
	}
	if err := supersedeFailed(ctx, tx, rest, there.failed, now); err != nil {
		return out, err
	}
	return out, d.place(ctx, tx, rest, now)
}

// supersedeFailed ends tasks that failed for the slots of new ones, dead or waiting for a retry: the new task reads
// what they would have read, or what has come in its place.
func supersedeFailed(ctx context.Context, tx pgx.Tx, placing []placement, failed map[slotOf][]uuid.UUID, now time.Time) error {
	var over []uuid.UUID
	for _, p := range placing {
		over = append(over, failed[slotOf{p.job, p.slot}]...)
	}
	if len(over) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = ANY($1)`, over); err != nil {
		return fmt.Errorf("supersede failed tasks: %w", err)
	}
	return requeueRows(ctx, tx, nil, over, "SYSTEM", now)
}

// occupancy is what there is in slots.
type occupancy struct {
	queued, running map[slotOf]uuid.UUID
	failed          map[slotOf][]uuid.UUID // dead, or waiting for a retry
	doing           map[slotOf]string      // dedupe key of what is running
}

// occupied tells what the wanted slots have. It looks and locks in the direction in which tasks move, from waiting to ready to
// leases, so that one which moves meanwhile is met further on: what is found queued cannot be claimed before this transaction
// ends, and a lease cannot be released unnoticed by the sibling that is about to wait for it. A slot found queued is looked at
// no further, which keeps this from deadlocking with a completion that promotes the very sibling. Each slot is looked up by
// itself, in plans that do not begin with all that is open; locks are taken in the order of ids, as everywhere.
func occupied(ctx context.Context, tx pgx.Tx, slots []slotOf) (occupancy, error) {
	var b pg.Batch
	found := queueOccupied(&b, slots)
	return found, b.Send(ctx, tx)
}

// queueOccupied is occupied as a part of a batch: the answer is filled in when that is sent.
func queueOccupied(b *pg.Batch, slots []slotOf) occupancy {
	found := occupancy{queued: map[slotOf]uuid.UUID{}, running: map[slotOf]uuid.UUID{}, failed: map[slotOf][]uuid.UUID{}, doing: map[slotOf]string{}}
	if len(slots) == 0 {
		return found
	}
	origins, names := make([]uuid.UUID, len(slots)), make([]string, len(slots))
	for i, s := range slots {
		origins[i], names[i] = s.origin, s.slot
	}
	var (
		s      slotOf
		id     uuid.UUID
		failed bool
		dedupe string
	)
	b.Query("find waiting tasks", []any{&s.origin, &s.slot, &id, &failed}, func() error {
		if failed {
			found.failed[s] = append(found.failed[s], id)
		} else {
			found.queued[s] = id
		}
		return nil
	}, `
		SELECT q.job_id, q.slot, q.task_id, q.reason IN ('backoff', 'dead') FROM waiting q
		JOIN unnest($1::uuid[], $2::text[]) AS w(job_id, slot) ON q.job_id = w.job_id AND q.slot = w.slot
		ORDER BY q.task_id FOR SHARE OF q`, origins, names)
	b.Query("find claimable tasks", []any{&s.origin, &s.slot, &id}, func() error {
		found.queued[s] = id
		return nil
	}, `
		SELECT r.job_id, r.slot, r.task_id FROM ready r WHERE r.task_id = ANY (ARRAY(
			SELECT o.task_id FROM unnest($1::uuid[], $2::text[]) AS w(job_id, slot)
			CROSS JOIN LATERAL (SELECT task_id FROM ready o WHERE o.job_id = w.job_id AND o.slot = w.slot LIMIT 1) AS o
			WHERE NOT EXISTS (SELECT FROM waiting q WHERE q.job_id = w.job_id AND q.slot = w.slot AND q.reason NOT IN ('backoff', 'dead') OFFSET 0)))
		ORDER BY r.task_id FOR SHARE OF r`, origins, names)
	b.Query("lock leases", []any{&s.origin, &s.slot, &id, &dedupe}, func() error {
		found.running[s], found.doing[s] = id, dedupe
		return nil
	}, `
		SELECT l.job_id, l.slot, l.task_id, coalesce((SELECT t.dedupe_key FROM tasks t WHERE t.id = l.task_id), '')
		FROM leases l WHERE l.task_id = ANY (ARRAY(
			SELECT o.task_id FROM unnest($1::uuid[], $2::text[]) AS w(job_id, slot)
			CROSS JOIN LATERAL (SELECT task_id FROM leases o WHERE o.job_id = w.job_id AND o.slot = w.slot LIMIT 1) AS o
			WHERE NOT EXISTS (SELECT FROM waiting q WHERE q.job_id = w.job_id AND q.slot = w.slot AND q.reason NOT IN ('backoff', 'dead') OFFSET 0)
			  AND NOT EXISTS (SELECT FROM ready r WHERE r.job_id = w.job_id AND r.slot = w.slot OFFSET 0)))
		ORDER BY l.task_id FOR SHARE OF l`, origins, names)
	return found
}

// queueInsertTasks writes the rows, under new ids where none are given. Once b is sent, made tells under which they are:
// another where a canceled one is taken up again, uuid.Nil where the dedupe key is that of work done or given up.
func queueInsertTasks(b *pg.Batch, wanted []newTask, now time.Time) (made []uuid.UUID, err error) {
	var (
		ids, orgs, jobs                                   = make([]uuid.UUID, len(wanted)), make([]uuid.UUID, len(wanted)), make([]uuid.UUID, len(wanted))
		kinds, slots, runtimes, needs, partitions, limits []string
		dedupes, payloads, hashes, concurrency, metadata  []*string
		maxAttempts, priorities                           []int
		runAts                                            []*time.Time
	)
	index := make(map[slotOf]int, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		if w.runtime == "" {
			w.runtime = w.job.Def.Runtime
		}
		if w.maxAttempts == 0 {
			w.maxAttempts = w.job.Def.MaxAttempts
		}
		if w.priority == 0 {
			w.priority = w.job.Def.Priority
		}
		if w.concurrency == "" && w.kind != "check" {
			w.concurrency = renderConcurrencyKey(w.job.Def.ConcurrencyKey, w.partition, w.payload)
		}
		if w.id == uuid.Nil {
			w.id = uuid.Must(uuid.NewV7())
		}
		ids[i], orgs[i], jobs[i] = w.id, w.job.OrgID, w.job.Origin
		index[slotOf{w.job.Origin, w.slot}] = i
		keys := ""
		if list := limitKeys(limitsOf(*w)); len(list) > 0 {
			text, err := json.Marshal(list)
			if err != nil {
				return nil, err
			}
			keys = string(text)
		}
		kinds, slots, runtimes = append(kinds, w.kind), append(slots, w.slot), append(runtimes, w.runtime)
		needs = append(needs, needsOf(&w.job.Def, w.kind))
		partitions, limits, dedupes = append(partitions, w.partition), append(limits, keys), append(dedupes, optional(w.dedupe))
		payloads, metadata = append(payloads, optional(string(w.payload))), append(metadata, optional(string(w.metadata)))
		hashes, concurrency = append(hashes, optional(w.inputHash)), append(concurrency, optional(w.concurrency))
		maxAttempts, priorities, runAts = append(maxAttempts, w.maxAttempts), append(priorities, w.priority), append(runAts, w.runAt)
	}
	made = make([]uuid.UUID, len(wanted))
	var (
		s      slotOf
		id     uuid.UUID
		dedupe string
	)
	b.Query(fmt.Sprintf("insert %d tasks", len(wanted)), []any{&id, &s.origin, &s.slot, &dedupe}, func() error {
		if i, ok := index[s]; ok && wanted[i].dedupe == dedupe {
			made[i] = id
		}
		return nil
	}, `
		WITH made AS (
			INSERT INTO tasks (id, org_id, job_id, kind, dedupe_key, slot, max_attempts, runtime, needs, priority, partitions, payload,
				input_hash, concurrency_key, limits, metadata, run_at, created_at)
			SELECT id, org, job, kind, dedupe, slot, max_attempts, runtime, needs, priority, CASE WHEN partition <> '' THEN ARRAY[partition] END,
				NULLIF(payload::jsonb, 'null'), hash, concurrency,
				CASE WHEN limits = '' THEN '{}' ELSE ARRAY(SELECT jsonb_array_elements_text(limits::jsonb)) END,
				coalesce(NULLIF(metadata::jsonb, 'null'), '{}'), run_at, $1
			FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::int[], $9::text[], $10::int[], $11::text[],
				$12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::timestamptz[], $18::text[])
				AS w(id, org, job, kind, dedupe, slot, max_attempts, runtime, priority, partition, payload, hash, concurrency, limits, metadata, run_at, needs)
			ORDER BY job, dedupe
			ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO UPDATE
			SET status = 'Queued', kind = EXCLUDED.kind, reason = NULL, failures = 0, error_message = NULL, completed_at = NULL,
			    cancel_requested_at = NULL, next_retry_at = NULL, runtime = EXCLUDED.runtime, needs = EXCLUDED.needs, limits = EXCLUDED.limits, metadata = tasks.metadata || EXCLUDED.metadata,
			    version = tasks.version + 1
			WHERE tasks.status = 'Canceled' AND tasks.reason IN ('superseded', 'abandoned', 'merged')
			RETURNING id, job_id, dedupe_key, slot, org_id, attempt, xmax::text <> '0' AS revived),
		told AS ( -- of one that is new, its row tells
			INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, at)
			SELECT uuid_v7(), org_id, id, attempt, 'Canceled', 'Queued', 'SYSTEM', $1 FROM made WHERE revived)
		SELECT id, job_id, slot, coalesce(dedupe_key, '') FROM made`,
		now, ids, orgs, jobs, kinds, dedupes, slots, maxAttempts, runtimes, priorities, partitions, payloads, hashes, concurrency, limits, metadata, runAts, needs)
	return made, nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
