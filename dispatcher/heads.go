package dispatcher

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// heads knows where in the claimable set the unclaimed begin. While some session holds an old snapshot, rows that were
// claimed long ago cannot be removed, and every claim from the very beginning walks over all of them. So where there are
// many such rows, most claims go from where the last one ended, less a slack for what was committed out of order, and only as
// many start from the beginning as take a small share of the time: they find the orgs and the preferred tasks that the
// others pass by. Without many dead rows every claim is from the beginning, and exact.
type heads struct {
	mu    sync.Mutex
	low   map[head]int64 // the rank up to which all was claimed
	order []head         // keys of low, in the order in which orgs take turns
	dead  int64          // dead rows in the set, when it was last walked from the beginning
	cost  time.Duration  // of that walk
	at    time.Time      // of it
	last  uuid.UUID      // the org whose turn it was last
	cut   bool           // some queue gave as many tasks as it was asked for, the last time, or was not asked
}

// head names one org's queue for one runtime.
type head struct {
	org     uuid.UUID
	runtime string
}

const (
	manyDead    = 20_000 // dead rows from which on claims from the beginning are made rarely
	walkShare   = 20     // then one part in so many of the time goes to them
	rankSlack   = 1000   // milliseconds by which commits may be out of order
	headsAtOnce = 64     // queues that one claim looks at, at most
)

// crowded tells that the set has so many dead rows that not every claim may walk over them.
func (h *heads) crowded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead >= manyDead
}

// fromBeginning decides whether a claim is to walk the whole set.
func (h *heads) fromBeginning() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead < manyDead || time.Since(h.at) >= walkShare*h.cost
}

// walked notes what a look at the whole set cost, and found.
func (h *heads) walked(began time.Time, found []head, dead int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	low := make(map[head]int64, len(found))
	for _, f := range found {
		low[f] = h.low[f]
	}
	h.cost, h.at, h.low, h.order, h.dead = time.Since(began), time.Now(), low, found, dead
	slices.SortFunc(h.order, func(a, b head) int { return bytes.Compare(a.org[:], b.org[:]) })
}

// more tells whether the last claim may have left tasks that it could have taken.
func (h *heads) more() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cut
}

// asked notes whether a claim of a share of each queue took all there was.
func (h *heads) asked(queues []head, share int, taken []claimable) {
	h.mu.Lock()
	defer h.mu.Unlock()
	given := map[head]int{}
	h.cut = len(queues) < len(h.order)
	for _, c := range taken {
		k := head{c.Org, c.runtime}
		given[k]++
		h.cut = h.cut || given[k] == share
	}
}

// claimed moves the heads behind what was claimed, and the turn on to the org that was last in the circle.
func (h *heads) claimed(taken []claimable) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range taken {
		if k := (head{c.Org, c.runtime}); c.rank > h.low[k] {
			h.low[k] = c.rank
		}
	}
	h.last = lastInCircle(taken, h.last)
}

// next lists the queues whose turn it is, with the ranks from which on there may be something to claim.
func (h *heads) next(runtimes []string, limit int) (queues []head, ranks []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	start, _ := slices.BinarySearchFunc(h.order, h.last, func(k head, after uuid.UUID) int {
		if bytes.Compare(k.org[:], after[:]) <= 0 {
			return -1
		}
		return 1
	})
	for i := range h.order {
		if len(queues) == limit {
			break
		}
		if k := h.order[(start+i)%len(h.order)]; slices.Contains(runtimes, k.runtime) {
			queues, ranks = append(queues, k), append(ranks, h.low[k]-rankSlack)
		}
	}
	return queues, ranks
}

// lastInCircle is, of the orgs of tasks, the one that comes last in a circle which begins after a given one.
func lastInCircle(tasks []claimable, after uuid.UUID) uuid.UUID {
	last := slices.MaxFunc(tasks, func(a, b claimable) int {
		if x, y := bytes.Compare(a.Org[:], after[:]) <= 0, bytes.Compare(b.Org[:], after[:]) <= 0; x != y {
			if x {
				return 1
			}
			return -1
		}
		return bytes.Compare(a.Org[:], b.Org[:])
	})
	return last.Org
}

// takeReady removes rows from the claimable set, of each org its share, the orgs in turns: so one org with a million tasks
// keeps no other waiting.
func (d *Dispatcher) takeReady(ctx context.Context, tx pgx.Tx, runtimes []string, max int) ([]claimable, error) {
	var (
		queues []head
		ranks  []int64
	)
	if d.heads.fromBeginning() {
		began := time.Now()
		found, dead, err := queuesReady(ctx, tx, runtimes)
		if err != nil {
			return nil, err
		}
		d.heads.walked(began, found, dead)
		queues, _ = d.heads.next(runtimes, min(max, headsAtOnce))
		ranks = make([]int64, len(queues))
		for i := range ranks {
			ranks[i] = -1 << 62
		}
	} else {
		queues, ranks = d.heads.next(runtimes, min(max, headsAtOnce))
	}
	if len(queues) == 0 {
		d.heads.asked(nil, 0, nil)
		return nil, nil
	}
	where, args := d.runsHere()
	taken, err := takeFrom(ctx, tx, queues, ranks, max/len(queues), where, args...)
	if err != nil {
		return nil, err
	}
	d.heads.asked(queues, max/len(queues), taken)
	if len(taken) > 0 {
		d.heads.claimed(taken)
	}
	return taken, nil
}

// runsHere is the condition that this process runs a task of one of its runtimes.
func (d *Dispatcher) runsHere() (where string, args []any) {
	if len(d.elsewhere) == 0 {
		return "true", nil
	}
	var runtimes, operators []string
	for runtime, names := range d.elsewhere {
		for _, name := range names {
			runtimes, operators = append(runtimes, runtime), append(operators, name)
		}
	}
	return "NOT EXISTS (SELECT FROM unnest($5::text[], $6::text[]) AS e(runtime, operator) WHERE e.runtime = q.runtime AND e.operator = " + operatorColumn + ")",
		[]any{runtimes, operators}
}

// operatorColumn is the operator in ready.needs.
const operatorColumn = `CASE WHEN starts_with(q.needs, 'handler:') THEN 'handler' ELSE split_part(q.needs, '@', 1) END`

// queuesReady finds the queues that are not empty, and about how many dead rows the set has. It relies on
// idx_ready_claim, of which it touches one place for each.
func queuesReady(ctx context.Context, tx pgx.Tx, runtimes []string) (found []head, dead int64, err error) {
	var (
		b pg.Batch
		h head
	)
	b.Query("find queues", []any{&h.org, &h.runtime, &dead}, func() error {
		found = append(found, h)
		return nil
	}, `
		WITH RECURSIVE queues AS (
			(SELECT r.name AS runtime, (SELECT q.org_id FROM ready q WHERE q.runtime = r.name ORDER BY q.runtime, q.org_id LIMIT 1) AS org_id
			 FROM unnest($1::text[]) AS r(name))
			UNION ALL
			SELECT o.runtime, (SELECT q.org_id FROM ready q WHERE q.runtime = o.runtime AND q.org_id > o.org_id ORDER BY q.runtime, q.org_id LIMIT 1)
			FROM queues o WHERE o.org_id IS NOT NULL)
		SELECT org_id, runtime, pg_stat_get_dead_tuples('ready'::regclass) FROM queues WHERE org_id IS NOT NULL`, runtimes)
	err = b.Send(ctx, tx)
	return found, dead, err
}

// takeFrom takes up to share tasks of each queue, from a rank on, that meet a condition over ready q, whose arguments begin
// with $5. It relies on idx_ready_claim.
func takeFrom(ctx context.Context, tx pgx.Tx, queues []head, ranks []int64, share int, where string, args ...any) ([]claimable, error) {
	orgs, runtimes := make([]uuid.UUID, len(queues)), make([]string, len(queues))
	for i, q := range queues {
		orgs[i], runtimes[i] = q.org, q.runtime
	}
	return takePicked(ctx, tx, `
			SELECT p.task_id FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS h(org_id, runtime, low) CROSS JOIN LATERAL (
				SELECT q.task_id FROM ready q WHERE q.runtime = h.runtime AND q.org_id = h.org_id AND q.rank >= h.low AND `+where+`
				ORDER BY q.runtime, q.org_id, q.rank, q.task_id LIMIT $4
				FOR UPDATE SKIP LOCKED) AS p`, append([]any{orgs, runtimes, ranks, share}, args...)...)
}

// takePicked removes the tasks from the ready set that a query picks and locks. The CTE is materialised: without that the
// plan may lock and delete more rows than a limit in it says. What is picked is looked up row by row: a plan that does not
// know the limit takes it for a tenth of all that is queued, and would read all of it.
func takePicked(ctx context.Context, tx pgx.Tx, pick string, args ...any) ([]claimable, error) {
	var b pg.Batch
	taken := queuePicked(&b, pick, args...)
	err := b.Send(ctx, tx)
	return *taken, err
}

// queuePicked is takePicked as a part of a batch: the answer is filled in when that is sent.
func queuePicked(b *pg.Batch, pick string, args ...any) *[]claimable {
	var (
		c     claimable
		taken = &[]claimable{}
	)
	b.Query("take ready tasks", []any{&c.Task, &c.Org, &c.Origin, &c.Slot, &c.Kind, &c.Attempt, &c.Started, &c.Partitions, &c.Payload, &c.Limits,
		&c.runtime, &c.rank, &c.trace}, func() error {
		c.Partitions, c.Payload, c.Limits = slices.Clone(c.Partitions), slices.Clone(c.Payload), slices.Clone(c.Limits)
		*taken = append(*taken, c)
		return nil
	}, `
		WITH picked AS MATERIALIZED (`+pick+`),
		taken AS (DELETE FROM ready WHERE task_id = ANY (ARRAY(SELECT task_id FROM picked)) RETURNING task_id, rank)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.kind, t.attempt, t.started_at IS NOT NULL, coalesce(t.partitions, '{}'), t.payload, t.limits,
			t.runtime, k.rank, coalesce(t.metadata->>'traceparent', '')
		FROM taken k CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = k.task_id LIMIT 1) AS t
		ORDER BY k.rank, t.id`, args...)
	return taken
}
