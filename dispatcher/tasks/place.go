package tasks

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// Placement puts one queued task into the set where it belongs.
type Placement struct {
	Task    uuid.UUID
	Org     uuid.UUID
	Origin  uuid.UUID
	slot    string
	runtime string
	needs   string // see NeedsOf
	dag     string // empty: insertReady looks it up
	Rank    int64  // its place in the order of its DAG, see rankOf
	Limits  []Limit
	RunAt   *time.Time
	sibling uuid.UUID // a running task of the same slot
}

// Place moves each queued task to where it belongs: waiting for its time, for a running sibling or for a limit, or
// ready. Filtering blocked tasks while claiming would cost every claim; here it costs each task once. Pass NewRoom
// unless the transaction has already locked limits.
func (st *Store) Place(ctx context.Context, tx pgx.Tx, in Room, tasks []Placement, now time.Time) error {
	var (
		ready, admissible []Placement
		waiting           []waitRow
	)
	for _, p := range tasks {
		switch {
		case p.RunAt != nil && p.RunAt.After(now):
			waiting = append(waiting, p.waits(WaitRunAt, "", p.RunAt))
		case p.sibling != uuid.Nil:
			waiting = append(waiting, p.waits(WaitSibling, p.sibling.String(), nil))
		case len(p.Limits) > 0:
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
		waiting = append(waiting, r.waits(WaitLimit, r.blocker, nil))
	}

	var b pg.Batch
	ready = append(ready, admitted...)
	in.hold(&b)
	insertWaiting(&b, waiting)
	blocked := st.insertReady(&b, ready)
	st.claimable(ctx, in.next, TaskIDs(ready))
	if err := b.SendLast(ctx, tx); err != nil {
		return err
	}
	paused, err := blocked.Get(ctx, tx)
	if err != nil {
		return err
	}

	// Slots that a paused task got, or that a refused one could not use, go to others that wait for them.
	passed := map[Limit]int{}
	for _, p := range admitted {
		if paused[p.Task] {
			in.leave(p)
			AddFreed(passed, p.Org, LimitKeys(p.Limits))
		}
	}
	for _, r := range refused {
		AddFreed(passed, r.Org, LimitKeys(r.Limits))
	}
	in.hold(&b)
	if err := b.SendLast(ctx, tx); err != nil || !in.promoted {
		return err
	}
	maps.DeleteFunc(passed, func(l Limit, _ int) bool { return in.free[l] <= 0 })
	return st.promoteOnce(ctx, tx, passed, in.next, now)
}

// isFree reports whether a task may be claimed now, unless it is paused.
func (p Placement) isFree(now time.Time) bool {
	return (p.RunAt == nil || !p.RunAt.After(now)) && p.sibling == uuid.Nil && len(p.Limits) == 0
}

// TaskIDs returns the ids of tasks.
func TaskIDs(tasks []Placement) []uuid.UUID {
	ids := make([]uuid.UUID, len(tasks))
	for i, p := range tasks {
		ids[i] = p.Task
	}
	return ids
}

// insertReady makes tasks claimable, except those whose job, DAG or org is paused: they wait, and insertReady returns
// their ids. An earlier statement of b may insert the tasks; it passes over those that do not exist. The caller passes
// the others to claimable. The statement itself looks for pauses: there are hardly ever any, so this costs no more than
// reading an empty table. For runtimes with queues it writes the outbox rows from which package backends announces
// tasks.
func (st *Store) insertReady(b *pg.Batch, tasks []Placement) *pg.Later[map[uuid.UUID]bool] {
	paused := map[uuid.UUID]bool{}
	if len(tasks) == 0 {
		return pg.Known(paused)
	}

	var (
		ids, orgs, origins []uuid.UUID
		slots, runtimes    []string
		needs, dags        []string
		ranks              []int64
		id                 uuid.UUID
	)
	for _, p := range tasks {
		ids, orgs, origins = append(ids, p.Task), append(orgs, p.Org), append(origins, p.Origin)
		slots, runtimes, ranks = append(slots, p.slot), append(runtimes, p.runtime), append(ranks, p.Rank)
		needs, dags = append(needs, p.needs), append(dags, p.dag)
	}

	b.Query(fmt.Sprintf("make %d tasks claimable", len(tasks)), []any{&id}, func() error {
		paused[id] = true
		return nil
	}, `
		WITH wanted AS (
			SELECT w.task_id, w.org_id, w.origin_job_id, w.slot, w.runtime, w.needs, w.rank, t.class,
				CASE WHEN w.dag <> '' THEN w.dag ELSE split_part(job_address(w.origin_job_id), '/', 1) END AS turn
			FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[],
				$8::text[]) AS w(task_id, org_id, origin_job_id, slot, runtime, needs, rank, dag)
			CROSS JOIN LATERAL (SELECT class FROM tasks t WHERE t.id = w.task_id LIMIT 1) AS t),
		paused AS MATERIALIZED (
			SELECT DISTINCT ON (w.task_id) w.task_id,
				concat_ws('/', NULLIF(p.dag_name, ''), NULLIF(p.job_name, '')) AS blocker
			FROM wanted w JOIN pauses p ON p.org_id = w.org_id
			WHERE p.dag_name = '' OR job_address(w.origin_job_id) = p.dag_name || '/' || p.job_name
			   OR p.job_name = '' AND starts_with(job_address(w.origin_job_id), p.dag_name || '/')),
		ready_now AS (
			INSERT INTO ready (task_id, org_id, origin_job_id, slot, runtime, needs, rank, class, turn)
			SELECT * FROM wanted w WHERE NOT EXISTS (SELECT FROM paused p WHERE p.task_id = w.task_id)),
		put AS (
			INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, blocker, rank)
			SELECT w.task_id, w.org_id, w.origin_job_id, w.slot, 'paused',
				coalesce(NULLIF(p.blocker, ''), 'the org'), w.rank
			FROM wanted w JOIN paused p ON p.task_id = w.task_id),
		announced AS (
			INSERT INTO outbox AS o (org_id, kind, payload)
			SELECT org_id, 'enqueue_task', jsonb_build_object('task_id', task_id, 'runtime', runtime) FROM wanted w
			WHERE runtime = ANY($9) AND NOT EXISTS (SELECT FROM paused p WHERE p.task_id = w.task_id)
			ON CONFLICT ((payload->>'task_id')) WHERE kind = 'enqueue_task' DO UPDATE -- it was ready before
			SET payload = EXCLUDED.payload, status = 'Pending', available_at = EXCLUDED.available_at,
				attempts = 0, last_error = NULL, created_at = EXCLUDED.created_at, processed_at = NULL)
		SELECT task_id FROM paused`,
		ids, orgs, origins, slots, runtimes, needs, ranks, dags, st.queued)
	return pg.Answer(b, &paused)
}

// waitRow is a row of the waiting set.
type waitRow struct {
	Task, Org, Origin     uuid.UUID
	Slot, Reason, Blocker string
	Available             *time.Time
	Rank                  int64
}

// waits returns the row of a task that waits for a reason.
func (p Placement) waits(reason Wait, blocker string, available *time.Time) waitRow {
	return waitRow{p.Task, p.Org, p.Origin, p.slot, string(reason), blocker, available, p.Rank}
}

// insertWaiting adds rows to the waiting set.
func insertWaiting(b *pg.Batch, rows []waitRow) {
	if len(rows) == 0 {
		return
	}
	b.Exec(fmt.Sprintf("make %d tasks wait", len(rows)), `
		INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, blocker, available_at, rank)
		SELECT id, org, origin, slot, reason, NULLIF(blocker, ''), available, rank
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::timestamptz[],
			$8::bigint[])
			AS w(id, org, origin, slot, reason, blocker, available, rank)`, pg.Columns(rows)...)
}

// freeSiblings takes out of the waiting set the tasks that waited for the slots of freed, whose leases the caller has
// just ended, and returns them to be placed anew. At most one task waits for each slot: a slot has at most one queued
// task.
func freeSiblings(b *pg.Batch, freed []Ended) *pg.Later[[]Placement] {
	if len(freed) == 0 {
		return pg.Known[[]Placement](nil)
	}
	origins, slots := slotsOf(freed)
	return promote(b, `q.task_id = ANY(ARRAY(`+waitingSiblings+`))`, origins, slots)
}

// waitingSiblings is the SQL that finds the tasks that wait for slots, one by one; its arguments are origins and slots.
// It relies on idx_waiting_queued.
const waitingSiblings = `
	SELECT s.task_id FROM unnest($1::uuid[], $2::text[]) AS w(origin, slot) CROSS JOIN LATERAL (
		SELECT task_id, reason FROM waiting
		WHERE origin_job_id = w.origin AND slot = w.slot AND reason IN ('sibling', 'limit', 'paused') LIMIT 1) AS s
	WHERE s.reason = 'sibling'`

// PromoteWhere takes the tasks that meet a condition out of the waiting set, places them anew, and reports whether
// there were any.
func (st *Store) PromoteWhere(
	ctx context.Context, tx pgx.Tx, now time.Time, where string, args ...any,
) (bool, error) {
	placing, err := promote(new(pg.Batch), where, args...).Get(ctx, tx)
	if err != nil || len(placing) == 0 {
		return false, err
	}
	return true, st.Place(ctx, tx, NewRoom(nil), placing, now)
}

// promote takes the tasks that meet a condition out of the waiting set and returns them, to be placed anew.
func promote(b *pg.Batch, where string, args ...any) *pg.Later[[]Placement] {
	var (
		placing []Placement
		p       Placement
		keys    []string
	)
	b.Query("promote waiting tasks", p.columns(&keys), func() error {
		placing = append(placing, p.limitedBy(keys))
		return nil
	}, `
		WITH freed AS (DELETE FROM waiting q WHERE `+where+` RETURNING q.task_id, q.rank)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, f.rank, t.limits
		FROM freed f CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = f.task_id LIMIT 1) AS t
		ORDER BY f.rank, t.id`, args...)
	return pg.Answer(b, &placing)
}

// CollectPlacements reads rows of id, org_id, job_id, slot, runtime, needs, rank, limits.
func CollectPlacements(rows pgx.Rows) ([]Placement, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Placement, err error) {
		var keys []string
		err = row.Scan(p.columns(&keys)...)
		return p.limitedBy(keys), err
	})
}

// columns returns the destinations of a row of id, org_id, job_id, slot, runtime, needs, rank, limits.
func (p *Placement) columns(limits *[]string) []any {
	return []any{&p.Task, &p.Org, &p.Origin, &p.slot, &p.runtime, &p.needs, &p.Rank, limits}
}

// limitedBy returns the placement with the limits of the given keys.
func (p Placement) limitedBy(keys []string) Placement {
	p.Limits = nil
	for _, key := range keys {
		p.Limits = append(p.Limits, Limit{org: p.Org, key: key})
	}
	return p
}
