package tasks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// head remembers, for the claimants of one scope, whose turn it is, which queues there are, and where in each the
// unclaimed tasks begin. While some session holds an old snapshot, PostgreSQL cannot remove rows that were claimed long
// ago, and every claim from the beginning walks over all of them. With many such rows, or many queues, most claims
// therefore go to the queues that the last walk found, where the last claim ended, less a slack for commits out of
// order; claims that walk take only a small share of the time: they find the queues and the preferred tasks that the
// others pass by. Otherwise every claim walks, and is exact.
type head struct {
	mu    sync.Mutex
	turns turns
	found []Queue         // sorted by their lanes
	low   map[Queue]int64 // the rank up to which everything was claimed
	dead  int64           // dead rows in the set, when it was last walked from the beginning
	cost  time.Duration   // how long that walk took
	at    time.Time       // when that walk was
	used  time.Time
}

const (
	manyDead   = 20_000 // dead rows above which few claims walk
	manyQueues = 500    // queues above which few claims walk
	walkShare  = 20     // they then take at most one part in so many of the time
	rankSlack  = 1000   // milliseconds by which commits may be out of order
	fromStart  = -1 << 62

	rounds     = 4           // statements of a claim at most: each after the first fills up what lanes left
	manyHeads  = 1000        // scopes above which those not used for a while are forgotten
	headUnused = time.Minute // that while
)

// heads holds the head of each scope.
type heads struct {
	mu sync.Mutex
	of map[string]*head
}

// get returns the head of a scope.
func (h *heads) get(s Scope) *head {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[string]*head{}
	}
	now, key := time.Now(), s.Key()

	if len(h.of) > manyHeads {
		for k, other := range h.of {
			if now.Sub(other.used) > headUnused {
				delete(h.of, k)
			}
		}
	}

	if h.of[key] == nil {
		h.of[key] = &head{low: map[Queue]int64{}}
	}
	h.of[key].used = now
	return h.of[key]
}

// walks reports whether the next claim is to walk over all queues.
func (h *head) walks() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead < manyDead && len(h.found) < manyQueues || time.Since(h.at) >= walkShare*h.cost
}

// walked records what a walk found, and how long it took.
func (h *head) walked(began time.Time, found []Queue, dead int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	low := make(map[Queue]int64, len(found))
	for _, q := range found {
		low[q] = h.low[q]
	}
	h.cost, h.at, h.low, h.found, h.dead = time.Since(began), time.Now(), low, found, dead
}

// queues returns the queues of the last walk.
func (h *head) queues() []Queue {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.found
}

// ranks returns where the unclaimed tasks of queues begin.
func (h *head) ranks(queues []Queue) []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	ranks := make([]int64, len(queues))
	for i, q := range queues {
		ranks[i] = h.low[q] - rankSlack
	}
	return ranks
}

// share returns how many of the next n tasks each lane is to have.
func (h *head) share(lanes []lane, weights Weights, held map[uuid.UUID]int, n int) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.turns.share(lanes, weights, held, n)
}

// claimed notes what lanes got, and moves the heads of queues behind the claimed tasks.
func (h *head) claimed(lanes []lane, weights Weights, taken []Taken) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(taken) == 0 {
		return
	}
	got, index := make([]int, len(lanes)), indexOf(lanes)
	for _, c := range taken {
		h.low[c.queue] = max(h.low[c.queue], c.rank)
		got[index[c.queue.lane()]]++
	}
	h.turns.charge(lanes, weights, got)
}

// Holding says how many slots orgs hold in the process that claims. Those that hold the fewest go first.
type Holding struct {
	Slots  map[uuid.UUID]int
	Others bool // only orgs that hold none may have the slot
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
	Metadata          []byte // nil: it has none
	Limits            []string

	Runtime string
	Trace   string // traceparent
	queue   Queue
	rank    int64

	Job  *registry.Job  // the job whose definition runs it
	Pins []registry.Pin // the revisions to read
	Idle string         // why it has nothing to do; empty: it has

	Unknown string // why this server does not know its partition; empty: it does
	Aside   bool   // it was put aside instead of being leased: see PutAside and LeaveToOthers
}

// Here returns the scope of this process for runtimes that it serves.
func (st *Store) Here(runtimes []string) Scope {
	return Scope{Runtimes: runtimes, Elsewhere: st.elsewhere, Runs: st.runs}
}

// RunsHere returns the SQL condition that this process runs the task of row q, and the arguments for it, from $5 on.
func (st *Store) RunsHere() (where string, args []any) {
	if len(st.elsewhere) == 0 {
		return "true", nil
	}
	runtimes, operators := Scope{Elsewhere: st.elsewhere}.others()
	return `NOT EXISTS (SELECT FROM unnest($5::text[], $6::text[]) AS e(runtime, operator)
		WHERE e.runtime = q.runtime AND e.operator = ` + OperatorColumn + `)`, []any{runtimes, operators}
}

// TakeReady removes tasks of runtimes of this process from the ready set, and remembers whether it may have left some.
// See Take.
func (st *Store) TakeReady(
	ctx context.Context, tx pgx.Tx, runtimes []string, max int, holding Holding,
) ([]Taken, error) {
	taken, more, err := st.take(ctx, tx, st.Here(runtimes), max, holding)
	st.more.Store(more)
	return taken, err
}

// Take removes up to max tasks of a scope from the ready set. Orgs take turns, so that one with a million tasks keeps
// no other waiting; the classes of an org share by their weights; the DAGs of a class take turns; the tasks of a DAG go
// by their ranks.
func (st *Store) Take(ctx context.Context, tx pgx.Tx, s Scope, max int) ([]Taken, error) {
	taken, _, err := st.take(ctx, tx, s, max, Holding{})
	return taken, err
}

// take is Take for a process in which orgs hold slots already. more reports that it may have left tasks.
func (st *Store) take(
	ctx context.Context, tx pgx.Tx, s Scope, max int, holding Holding,
) (taken []Taken, more bool, err error) {
	h := st.heads.get(s)
	walks := h.walks()
	if walks {
		began := time.Now()
		found, dead, err := QueuesReady(ctx, tx, s)
		if err != nil {
			return nil, false, err
		}
		if found, err = s.may(ctx, tx, found); err != nil {
			return nil, false, err
		}
		h.walked(began, found, dead)
		st.dead.Store(dead)
	}

	queues := h.queues()
	if holding.Others {
		queues = slices.DeleteFunc(slices.Clone(queues), func(q Queue) bool { return holding.Slots[q.Org] > 0 })
	}
	all := lanesOf(queues)

	lanes := all
	for range rounds {
		left := max - len(taken)
		if left <= 0 || len(lanes) == 0 {
			break
		}
		shares := h.share(lanes, st.weights, holding.Slots, left)
		got, err := takeShares(ctx, tx, h, queues, lanes, shares, walks)
		if err != nil {
			return nil, false, err
		}
		taken = append(taken, got...)
		lanes = unfinished(lanes, shares, got)
	}

	h.claimed(all, st.weights, taken)
	return taken, len(lanes) > 0, nil
}

// lanesOf returns the lanes of queues that are sorted by them.
func lanesOf(queues []Queue) []lane {
	lanes := make([]lane, len(queues))
	for i, q := range queues {
		lanes[i] = q.lane()
	}
	return slices.Compact(lanes)
}

func indexOf(lanes []lane) map[lane]int {
	index := make(map[lane]int, len(lanes))
	for i, l := range lanes {
		index[l] = i
	}
	return index
}

// unfinished returns the lanes that may have more tasks than they gave: those that gave their whole share.
func unfinished(lanes []lane, shares []int, got []Taken) []lane {
	given := make(map[lane]int, len(lanes))
	for _, c := range got {
		given[c.queue.lane()]++
	}
	var left []lane
	for i, l := range lanes {
		if given[l] >= shares[i] {
			left = append(left, l)
		}
	}
	return left
}
