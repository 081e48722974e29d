package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// placement puts one queued task into the set where it belongs.
type placement struct {
	task    uuid.UUID
	org     uuid.UUID
	job     uuid.UUID // origin
	slot    string
	runtime string
	needs   string // see needsOf
	rank    int64  // its place in the order, see rankOf
	limits  []limit
	runAt   *time.Time
	sibling uuid.UUID // a running task of the same slot
}

// What stands behind in the order: by how much later tasks of a class, or one more of priority, count as placed.
const (
	priorityWorth = time.Minute
	classWorth    = 10 * time.Minute
)

// rankOf is the place of a task in the order of its org, the lowest first: the time it was placed, in milliseconds, less
// a minute for each of its priority, and ten more for a build, twenty for a backfill. What has waited longer than that
// goes before what is preferred and came later, so that nothing starves.
func rankOf(class, priority int, now time.Time) int64 {
	return now.UnixMilli() - int64(priority)*priorityWorth.Milliseconds() + int64(class)*classWorth.Milliseconds()
}

// place decides for each queued task where it is: waiting for its time, for a running sibling, for a limit, or ready.
// Filtering blocked tasks while claiming would cost every claim; here it costs each task once.
func (d *Dispatcher) place(ctx context.Context, tx pgx.Tx, tasks []placement, now time.Time) error {
	return d.placeIn(ctx, tx, newRoom(), tasks, now)
}

// placeIn is place where limits are locked already, and slots may have been given back.
func (d *Dispatcher) placeIn(ctx context.Context, tx pgx.Tx, in room, tasks []placement, now time.Time) error {
	var ready, admissible []placement
	waits := waitRows{}
	for _, p := range tasks {
		switch {
		case p.runAt != nil && p.runAt.After(now):
			waits.add(p, "run_at", "", p.runAt)
		case p.sibling != uuid.Nil:
			waits.add(p, "sibling", p.sibling.String(), nil)
		case len(p.limits) > 0:
			admissible = append(admissible, p)
		default:
			ready = append(ready, p)
		}
	}
	admitted, refused, err := in.admit(ctx, tx, admissible)
	if err != nil {
		return err
	}
	for _, r := range refused {
		waits.add(r.placement, "limit", r.blocker, nil)
	}
	var b pg.Batch
	in.queueHold(&b)
	waits.queue(&b)
	paused := d.queueReady(ctx, &b, append(ready, admitted...))
	if err := b.SendLast(ctx, tx); err != nil {
		return err
	}
	passed := map[limit]int{}
	for _, p := range admitted {
		if paused[p.task] {
			in.leave(p)
			countLimits(passed, p.org, limitKeys(p.limits))
		}
	}
	for _, r := range refused {
		countLimits(passed, r.org, limitKeys(r.limits))
	}
	in.queueHold(&b)
	if err := b.SendLast(ctx, tx); err != nil || !in.promoted {
		return err
	}
	maps.DeleteFunc(passed, func(l limit, _ int) bool { return in.free[l] <= 0 })
	return d.promoteOnce(ctx, tx, passed, now)
}

// isFree says that a task may be claimed now, unless it is paused.
func (p placement) isFree(now time.Time) bool {
	return (p.runAt == nil || !p.runAt.After(now)) && p.sibling == uuid.Nil && len(p.limits) == 0
}

// queueReady makes tasks claimable, but those whose job, DAG or org is paused: they wait, and it tells which. Claimers are woken
// after COMMIT.
func (d *Dispatcher) queueReady(ctx context.Context, b *pg.Batch, tasks []placement) (paused map[uuid.UUID]bool) {
	paused = d.queueInsertReady(b, tasks)
	if len(tasks) > 0 {
		ids := make([]uuid.UUID, len(tasks))
		for i, p := range tasks {
			ids[i] = p.task
		}
		d.claimable(ctx, ids)
	}
	return paused
}

// queueInsertReady is queueReady where b may insert the tasks too: those that it did not are passed over, and whoever sends it
// tells claimable of the others. There are hardly ever any pauses, so looking for them is part of the statement, and costs no
// more than an empty table does. Tasks of runtimes with queues are to be announced there, see runtime_sqs.go.
func (d *Dispatcher) queueInsertReady(b *pg.Batch, tasks []placement) (paused map[uuid.UUID]bool) {
	paused = map[uuid.UUID]bool{}
	if len(tasks) == 0 {
		return paused
	}
	var (
		ids, orgs, jobs []uuid.UUID
		slots, runtimes []string
		needs           []string
		ranks           []int64
		id              uuid.UUID
	)
	for _, p := range tasks {
		ids, orgs, jobs = append(ids, p.task), append(orgs, p.org), append(jobs, p.job)
		slots, runtimes, ranks = append(slots, p.slot), append(runtimes, p.runtime), append(ranks, p.rank)
		needs = append(needs, p.needs)
	}
	b.Query(fmt.Sprintf("make %d tasks claimable", len(tasks)), []any{&id}, func() error {
		paused[id] = true
		return nil
	}, `
		WITH wanted AS (
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[])
				AS w(task_id, org_id, job_id, slot, runtime, needs, rank)
			WHERE EXISTS (SELECT FROM tasks t WHERE t.id = w.task_id OFFSET 0)),
		paused AS MATERIALIZED (
			SELECT DISTINCT ON (w.task_id) w.task_id, concat_ws('/', NULLIF(p.dag_name, ''), NULLIF(p.job_name, '')) AS blocker
			FROM wanted w JOIN pauses p ON p.org_id = w.org_id
			WHERE p.dag_name = '' OR job_address(w.job_id) = p.dag_name || '/' || p.job_name
			   OR p.job_name = '' AND starts_with(job_address(w.job_id), p.dag_name || '/')),
		ready_now AS (
			INSERT INTO ready (task_id, org_id, job_id, slot, runtime, needs, rank)
			SELECT * FROM wanted w WHERE NOT EXISTS (SELECT FROM paused p WHERE p.task_id = w.task_id)),
		put AS (
			INSERT INTO waiting (task_id, org_id, job_id, slot, reason, blocker, rank)
			SELECT w.task_id, w.org_id, w.job_id, w.slot, 'paused', coalesce(NULLIF(p.blocker, ''), 'the org'), w.rank
			FROM wanted w JOIN paused p ON p.task_id = w.task_id),
		announced AS (
			INSERT INTO outbox AS o (org_id, kind, payload)
			SELECT org_id, 'enqueue_task', jsonb_build_object('task_id', task_id, 'runtime', runtime) FROM wanted w
			WHERE runtime = ANY($8) AND NOT EXISTS (SELECT FROM paused p WHERE p.task_id = w.task_id)
			ON CONFLICT ((payload->>'task_id')) WHERE kind = 'enqueue_task' DO UPDATE -- it was ready before
			SET payload = EXCLUDED.payload, status = 'Pending', available_at = EXCLUDED.available_at, attempts = 0, last_error = NULL,
				created_at = EXCLUDED.created_at, processed_at = NULL)
		SELECT task_id FROM paused`,
		ids, orgs, jobs, slots, runtimes, needs, ranks, d.queuedRuntimes())
	return paused
}

// waitRows collects rows of the waiting set.
type waitRows struct {
	ids, orgs, jobs         []uuid.UUID
	slots, reasons, blocker []string
	available               []*time.Time
	ranks                   []int64
}

func (w *waitRows) add(p placement, reason, blocker string, available *time.Time) {
	w.ids, w.orgs, w.jobs = append(w.ids, p.task), append(w.orgs, p.org), append(w.jobs, p.job)
	w.slots, w.reasons, w.blocker = append(w.slots, p.slot), append(w.reasons, reason), append(w.blocker, blocker)
	w.available, w.ranks = append(w.available, available), append(w.ranks, p.rank)
}

func (w *waitRows) queue(b *pg.Batch) {
	if len(w.ids) == 0 {
		return
	}
	b.Exec(fmt.Sprintf("make %d tasks wait", len(w.ids)), `
		INSERT INTO waiting (task_id, org_id, job_id, slot, reason, blocker, available_at, rank)
		SELECT id, org, job, slot, reason, NULLIF(blocker, ''), available, rank
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::bigint[])
			AS w(id, org, job, slot, reason, blocker, available, rank)`,
		w.ids, w.orgs, w.jobs, w.slots, w.reasons, w.blocker, w.available, w.ranks)
}

// queueFreeSiblings takes the tasks out of the waiting set that waited for slots to become free, to be placed anew. The caller
// has just ended the leases. Of each slot only one can have waited: a slot has at most one that is queued.
func queueFreeSiblings(b *pg.Batch, freed []ended) *[]placement {
	placing := &[]placement{}
	if len(freed) > 0 {
		jobs, slots := slotsOf(freed)
		queuePromote(b, placing, `q.task_id = ANY(ARRAY(`+waitingSiblings+`))`, jobs, slots)
	}
	return placing
}

// waitingSiblings finds what waits for slots, one by one; its arguments are jobs and slots. It relies on idx_waiting_queued.
const waitingSiblings = `
	SELECT s.task_id FROM unnest($1::uuid[], $2::text[]) AS w(job_id, slot) CROSS JOIN LATERAL (
		SELECT task_id, reason FROM waiting WHERE job_id = w.job_id AND slot = w.slot AND reason IN ('sibling', 'limit', 'paused') LIMIT 1) AS s
	WHERE s.reason = 'sibling'`

// promoteWhere takes tasks out of the waiting set and places them anew.
func (d *Dispatcher) promoteWhere(ctx context.Context, tx pgx.Tx, now time.Time, where string, args ...any) (bool, error) {
	var (
		b       pg.Batch
		placing []placement
	)
	queuePromote(&b, &placing, where, args...)
	if err := b.Send(ctx, tx); err != nil || len(placing) == 0 {
		return false, err
	}
	return true, d.place(ctx, tx, placing, now)
}

// queuePromote takes tasks out of the waiting set; where they are to be placed is told when b is sent.
func queuePromote(b *pg.Batch, placing *[]placement, where string, args ...any) {
	var (
		p    placement
		keys []string
	)
	b.Query("promote waiting tasks", p.columns(&keys), func() error {
		*placing = append(*placing, p.limitedBy(keys))
		return nil
	}, `
		WITH freed AS (DELETE FROM waiting q WHERE `+where+` RETURNING q.task_id, q.rank)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, f.rank, t.limits
		FROM freed f CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = f.task_id LIMIT 1) AS t
		ORDER BY f.rank, t.id`, args...)
}

// collectPlacements reads rows of id, org_id, job_id, slot, runtime, needs, rank, limits.
func collectPlacements(rows pgx.Rows) ([]placement, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p placement, err error) {
		var keys []string
		err = row.Scan(p.columns(&keys)...)
		return p.limitedBy(keys), err
	})
}

// columns are where a row of id, org_id, job_id, slot, runtime, rank, limits goes.
func (p *placement) columns(limits *[]string) []any {
	return []any{&p.task, &p.org, &p.job, &p.slot, &p.runtime, &p.needs, &p.rank, limits}
}

func (p placement) limitedBy(keys []string) placement {
	p.limits = nil
	for _, key := range keys {
		p.limits = append(p.limits, limit{org: p.org, key: key})
	}
	return p
}
