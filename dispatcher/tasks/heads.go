package tasks

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// heads remembers where in the ready set the unclaimed tasks begin. While some session holds an old snapshot,
// PostgreSQL cannot remove rows that were claimed long ago, and every claim from the beginning walks over all of them.
// With many such rows, most claims therefore start where the last one ended, less a slack for commits out of order, and
// claims from the beginning take only a small share of the time: they find the orgs and the preferred tasks that the
// others pass by. Without many dead rows every claim starts from the beginning, and is exact.
type heads struct {
	mu    sync.Mutex
	low   map[Queue]int64 // the rank up to which everything was claimed
	order []Queue         // keys of low, in the order in which orgs take turns
	dead  int64           // dead rows in the set, when it was last walked from the beginning
	cost  time.Duration   // how long that walk took
	at    time.Time       // when that walk was
	last  uuid.UUID       // the org that had its turn last
	cut   bool            // the last claim filled its share of some queue, or left some queue out
}

// Queue names one org's queue for one runtime.
type Queue struct {
	Org     uuid.UUID
	Runtime string
}

const (
	manyDead     = 20_000 // dead rows above which claims rarely start from the beginning
	walkShare    = 20     // they then take at most one part in so many of the time
	rankSlack    = 1000   // milliseconds by which commits may be out of order
	QueuesAtOnce = 64     // queues that one claim looks at, at most
)

// bloated reports whether the set has so many dead rows that not every claim may walk over all of them.
func (h *heads) bloated() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead >= manyDead
}

// fromBeginning reports whether the next claim is to walk the whole set.
func (h *heads) fromBeginning() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead < manyDead || time.Since(h.at) >= walkShare*h.cost
}

// walked records what a walk over the whole set found, and how long it took.
func (h *heads) walked(began time.Time, found []Queue, dead int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	low := make(map[Queue]int64, len(found))
	for _, f := range found {
		low[f] = h.low[f]
	}
	h.cost, h.at, h.low, h.order, h.dead = time.Since(began), time.Now(), low, found, dead
	slices.SortFunc(h.order, func(a, b Queue) int { return bytes.Compare(a.Org[:], b.Org[:]) })
}

// more reports whether the last claim may have left tasks that it could have taken.
func (h *heads) more() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cut
}

// asked records whether a claim of a share of each queue may have left tasks.
func (h *heads) asked(queues []Queue, share int, taken []Taken) {
	h.mu.Lock()
	defer h.mu.Unlock()
	given := map[Queue]int{}
	h.cut = len(queues) < len(h.order)
	for _, c := range taken {
		k := Queue{c.Org, c.Runtime}
		given[k]++
		h.cut = h.cut || given[k] == share
	}
}

// claimed moves the heads behind the claimed tasks, and the turn on to the org that came last in the circle.
func (h *heads) claimed(taken []Taken) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range taken {
		if k := (Queue{c.Org, c.Runtime}); c.rank > h.low[k] {
			h.low[k] = c.rank
		}
	}
	h.last = lastInCircle(taken, h.last)
}

// Holding says how many slots orgs hold in the process that claims. Those that hold the fewest go first.
type Holding struct {
	Slots  map[uuid.UUID]int
	Others bool // only orgs that hold none may have the slot
}

// next lists the queues whose turn it is, with the ranks from which on there may be unclaimed tasks. Orgs that hold no
// slot come first, in the order of the circle, and then the others by what they hold.
func (h *heads) next(runtimes []string, limit int, holding Holding) (queues []Queue, ranks []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()

	start, _ := slices.BinarySearchFunc(h.order, h.last, func(k Queue, after uuid.UUID) int {
		if bytes.Compare(k.Org[:], after[:]) <= 0 {
			return -1
		}
		return 1
	})

	var holders []Queue // few: no more orgs than slots
	for i := range h.order {
		if len(queues) == limit {
			break
		}
		switch k := h.order[(start+i)%len(h.order)]; {
		case !slices.Contains(runtimes, k.Runtime):
		case holding.Slots[k.Org] > 0:
			holders = append(holders, k)
		default:
			queues = append(queues, k)
		}
	}

	if !holding.Others {
		slices.SortStableFunc(holders, func(a, b Queue) int {
			return cmp.Compare(holding.Slots[a.Org], holding.Slots[b.Org])
		})
		queues = append(queues, holders[:min(len(holders), limit-len(queues))]...)
	}
	for _, k := range queues {
		ranks = append(ranks, h.low[k]-rankSlack)
	}
	return queues, ranks
}

// lastInCircle returns the org of tasks that comes last in the circle of orgs that begins behind after.
func lastInCircle(tasks []Taken, after uuid.UUID) uuid.UUID {
	last := slices.MaxFunc(tasks, func(a, b Taken) int {
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

// Taken is a task that this transaction took from the ready set.
type Taken struct {
	Task, Org, Origin uuid.UUID
	Slot              string
	Kind              Kind
	Attempt           int
	Started           bool // an attempt was made before
	Partitions        []string
	Payload           []byte
	Limits            []string

	Runtime string
	rank    int64
	Trace   string // traceparent

	Job  *registry.Job  // the job whose definition runs it
	Pins []registry.Pin // the revisions to read
	Idle string         // why it has nothing to do; empty: it has
}

// TakeReady removes tasks from the ready set. The orgs take turns and each gets its share, so that an org with a
// million tasks keeps no other waiting.
func (st *Store) TakeReady(
	ctx context.Context, tx pgx.Tx, runtimes []string, max int, holding Holding,
) ([]Taken, error) {
	var (
		queues []Queue
		ranks  []int64
	)
	if st.heads.fromBeginning() {
		began := time.Now()
		found, dead, err := QueuesReady(ctx, tx, runtimes)
		if err != nil {
			return nil, err
		}
		st.heads.walked(began, found, dead)
		queues, _ = st.heads.next(runtimes, min(max, QueuesAtOnce), holding)
		ranks = make([]int64, len(queues))
		for i := range ranks {
			ranks[i] = -1 << 62
		}
	} else {
		queues, ranks = st.heads.next(runtimes, min(max, QueuesAtOnce), holding)
	}

	if len(queues) == 0 {
		st.heads.asked(nil, 0, nil)
		return nil, nil
	}

	where, args := st.RunsHere()
	taken, err := TakeFrom(ctx, tx, queues, ranks, max/len(queues), where, args...)
	if err != nil {
		return nil, err
	}

	st.heads.asked(queues, max/len(queues), taken)
	if len(taken) > 0 {
		st.heads.claimed(taken)
	}
	return taken, nil
}

// RunsHere returns the SQL condition that this process runs the task of row q, and the arguments for it.
func (st *Store) RunsHere() (where string, args []any) {
	if len(st.elsewhere) == 0 {
		return "true", nil
	}
	var runtimes, operators []string
	for runtime, names := range st.elsewhere {
		for _, name := range names {
			runtimes, operators = append(runtimes, runtime), append(operators, name)
		}
	}
	return `NOT EXISTS (SELECT FROM unnest($5::text[], $6::text[]) AS e(runtime, operator)
		WHERE e.runtime = q.runtime AND e.operator = ` + OperatorColumn + `)`, []any{runtimes, operators}
}

// OperatorColumn is the SQL expression for the operator in ready.needs.
const OperatorColumn = `CASE WHEN starts_with(q.needs, 'handler:') THEN 'handler' ELSE split_part(q.needs, '@', 1) END`

// QueuesReady returns the queues that are not empty, and the approximate number of dead rows in the ready set. It
// relies on idx_ready_claim, and touches one place of it for each queue.
func QueuesReady(ctx context.Context, tx pgx.Tx, runtimes []string) (found []Queue, dead int64, err error) {
	var (
		b pg.Batch
		h Queue
	)
	b.Query("find queues", []any{&h.Org, &h.Runtime, &dead}, func() error {
		found = append(found, h)
		return nil
	}, `
		WITH RECURSIVE queues AS (
			(SELECT r.name AS runtime, (
				SELECT q.org_id FROM ready q WHERE q.runtime = r.name ORDER BY q.runtime, q.org_id LIMIT 1) AS org_id
			 FROM unnest($1::text[]) AS r(name))
			UNION ALL
			SELECT o.runtime, (
				SELECT q.org_id FROM ready q WHERE q.runtime = o.runtime AND q.org_id > o.org_id
				ORDER BY q.runtime, q.org_id LIMIT 1)
			FROM queues o WHERE o.org_id IS NOT NULL)
		SELECT org_id, runtime, pg_stat_get_dead_tuples('ready'::regclass)
		FROM queues WHERE org_id IS NOT NULL`, runtimes)

	err = b.Send(ctx, tx)
	return found, dead, err
}

// TakeFrom takes up to share tasks from each queue, from a rank on, that meet the condition where. The condition names
// the ready set q, and its arguments begin with $5. TakeFrom relies on idx_ready_claim.
func TakeFrom(
	ctx context.Context, tx pgx.Tx, queues []Queue, ranks []int64, share int, where string, args ...any,
) ([]Taken, error) {
	orgs, runtimes := make([]uuid.UUID, len(queues)), make([]string, len(queues))
	for i, q := range queues {
		orgs[i], runtimes[i] = q.Org, q.Runtime
	}
	return TakePicked(new(pg.Batch), `
			SELECT p.task_id FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS h(org_id, runtime, low)
			CROSS JOIN LATERAL (
				SELECT q.task_id FROM ready q
				WHERE q.runtime = h.runtime AND q.org_id = h.org_id AND q.rank >= h.low AND `+where+`
				ORDER BY q.runtime, q.org_id, q.rank, q.task_id LIMIT $4
				FOR UPDATE SKIP LOCKED) AS p`, append([]any{orgs, runtimes, ranks, share}, args...)...).Get(ctx, tx)
}

// TakePicked removes from the ready set the tasks that the query pick selects and locks. The CTE is materialised:
// without that the plan may lock and delete more rows than a limit in it allows. The picked rows are looked up one by
// one: a plan that does not know the limit assumes a tenth of all queued tasks, and would read the whole table.
func TakePicked(b *pg.Batch, pick string, args ...any) *pg.Later[[]Taken] {
	var (
		c     Taken
		taken []Taken
	)
	into := []any{&c.Task, &c.Org, &c.Origin, &c.Slot, &c.Kind, &c.Attempt, &c.Started, &c.Partitions, &c.Payload,
		&c.Limits, &c.Runtime, &c.rank, &c.Trace}

	b.Query("take ready tasks", into, func() error {
		c.Partitions, c.Payload, c.Limits = slices.Clone(c.Partitions), slices.Clone(c.Payload), slices.Clone(c.Limits)
		taken = append(taken, c)
		return nil
	}, `
		WITH picked AS MATERIALIZED (`+pick+`),
		taken AS (DELETE FROM ready WHERE task_id = ANY (ARRAY(SELECT task_id FROM picked)) RETURNING task_id, rank)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.kind, t.attempt, t.started_at IS NOT NULL,
			coalesce(t.partitions, '{}'), t.payload, t.limits, t.runtime, k.rank,
			coalesce(t.metadata->>'traceparent', '')
		FROM taken k CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = k.task_id LIMIT 1) AS t
		ORDER BY k.rank, t.id`, args...)
	return pg.Answer(b, &taken)
}
