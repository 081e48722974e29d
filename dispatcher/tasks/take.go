package tasks

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// takeShares takes from each lane its share.
func takeShares(
	ctx context.Context, tx pgx.Tx, h *head, queues []Queue, lanes []lane, shares []int, fromBeginning bool,
) ([]Taken, error) {
	var (
		picks []pick
		index = indexOf(lanes)
		some  []Queue
	)
	for _, q := range queues {
		if i, ok := index[q.lane()]; ok && shares[i] > 0 {
			some = append(some, q)
			picks = append(picks, pick{Queue: q, lane: i, low: fromStart, share: shares[i]})
		}
	}

	if !fromBeginning {
		for i, low := range h.ranks(some) {
			picks[i].low = low
		}
	}
	return takePicks(ctx, tx, picks)
}

// pick is what a claim takes from a queue.
type pick struct {
	Queue
	lane  int
	low   int64 // the rank to begin at
	share int   // of the lane
}

// takePicks takes the tasks of picks, which are sorted by their lanes. Where a lane has several queues, a look at their
// first ranks decides how many of its share come from each; it locks nothing, so that another claim may go on behind
// what this one takes. It relies on idx_ready_queue.
func takePicks(ctx context.Context, tx pgx.Tx, picks []pick) ([]Taken, error) {
	args := columnsOf(picks)
	several := false
	for i := range picks {
		several = several || i > 0 && picks[i].lane == picks[i-1].lane
	}

	from := `unnest($1::text[], $2::text[], $3::uuid[], $4::smallint[], $5::text[], $6::bigint[], $7::int[])
			AS h(runtime, needs, org_id, class, turn, low, share)`
	if several {
		from = `(
			WITH g AS MATERIALIZED (
				SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::smallint[], $5::text[], $6::bigint[],
					$7::int[], $8::int[]) WITH ORDINALITY AS g(runtime, needs, org_id, class, turn, low, share, lane, n))
			SELECT g.runtime, g.needs, g.org_id, g.class, g.turn, g.low, count(*) AS share
			FROM (SELECT DISTINCT lane, share FROM g) AS l
			CROSS JOIN LATERAL (
				SELECT o.n FROM g AS o CROSS JOIN LATERAL (
					SELECT q.rank, q.task_id FROM ready q WHERE ` + inQueue("o") + `
					ORDER BY ` + queueOrder + ` LIMIT l.share) AS q
				WHERE o.lane = l.lane ORDER BY q.rank, q.task_id LIMIT l.share) AS first
			JOIN g ON g.n = first.n GROUP BY 1, 2, 3, 4, 5, 6) AS h`
	} else {
		args = args[:7] // without the lanes
	}
	return TakePicked(new(pg.Batch), `
			SELECT p.task_id FROM `+from+`
			CROSS JOIN LATERAL (
				SELECT q.task_id FROM ready q WHERE `+inQueue("h")+`
				ORDER BY `+queueOrder+` LIMIT h.share
				FOR UPDATE SKIP LOCKED) AS p`, args...).Get(ctx, tx)
}

// columnsOf returns picks as arrays: runtimes, needs, orgs, classes, DAGs, ranks, shares, lanes.
func columnsOf(picks []pick) []any {
	var (
		runtimes, needs, dags []string
		orgs                  []uuid.UUID
		classes               []int16
		shares, lanes         []int
		lows                  []int64
	)
	for _, p := range picks {
		runtimes, needs, dags = append(runtimes, p.Runtime), append(needs, p.Needs), append(dags, p.DAG)
		orgs, classes = append(orgs, p.Org), append(classes, int16(p.Class))
		lows, shares, lanes = append(lows, p.low), append(shares, p.share), append(lanes, p.lane)
	}
	return []any{runtimes, needs, orgs, classes, dags, lows, shares, lanes}
}

// inQueue returns the SQL condition that row q of the ready set is in the queue of row h, from a rank on.
func inQueue(h string) string {
	return strings.ReplaceAll(`q.runtime = h.runtime AND q.needs = h.needs AND q.org_id = h.org_id
					AND q.class = h.class AND q.turn = h.turn AND q.rank >= h.low`, "h.", h+".")
}

// queueOrder is the order of idx_ready_queue.
const queueOrder = `q.runtime, q.needs, q.org_id, q.class, q.turn, q.rank, q.task_id`

// TakePicked removes from the ready set the tasks that the query pick selects and locks. The CTE is materialised:
// without that the plan may lock and delete more rows than a limit in it allows. The picked rows are looked up one by
// one: a plan that does not know the limit assumes a tenth of all queued tasks, and would read the whole table.
func TakePicked(b *pg.Batch, pick string, args ...any) *pg.Later[[]Taken] {
	var (
		c     Taken
		taken []Taken
	)
	into := []any{&c.Task, &c.Org, &c.Origin, &c.Slot, &c.Kind, &c.Attempt, &c.Started, &c.Partitions, &c.Payload,
		&c.Metadata, &c.Limits, &c.Runtime, &c.queue.Needs, &c.queue.Class, &c.queue.DAG, &c.rank, &c.Trace}

	b.Query("take ready tasks", into, func() error {
		c.Partitions, c.Limits = slices.Clone(c.Partitions), slices.Clone(c.Limits)
		c.Payload, c.Metadata = slices.Clone(c.Payload), slices.Clone(c.Metadata)
		c.queue.Org, c.queue.Runtime = c.Org, c.Runtime
		taken = append(taken, c)
		return nil
	}, `
		WITH picked AS MATERIALIZED (`+pick+`),
		taken AS (
			DELETE FROM ready WHERE task_id = ANY (ARRAY(SELECT task_id FROM picked))
			RETURNING task_id, needs, class, turn, rank)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.kind, t.attempt, t.started_at IS NOT NULL,
			coalesce(t.partitions, '{}'), t.payload, t.metadata, t.limits, t.runtime, k.needs, k.class, k.turn, k.rank,
			coalesce(t.metadata->>'traceparent', '')
		FROM taken k CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = k.task_id LIMIT 1) AS t
		ORDER BY k.class, k.rank, t.id`, args...)
	return pg.Answer(b, &taken)
}
