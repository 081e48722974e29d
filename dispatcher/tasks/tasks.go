// Package tasks makes, places and ends tasks.
//
// Vocabulary: an open task is in exactly one of three sets: ready (claimable), waiting (with the reason), leases
// (running). A slot is what at most one queued and one running task of an origin may hold, usually the key of the
// output partition. A limit bounds how many tasks of a job, or with a concurrency key, are admitted at once.
//
// Locks are taken in one order everywhere: DAGs, origins, task rows, slots in the direction in which tasks move
// (waiting, ready, leases), limits. The package writes tasks, ready, waiting, leases, task_attempts, task_events,
// limits and outbox, and reads pauses; it knows nothing of the dispatcher's loops.
package tasks

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
)

// Observer hears of tasks that end.
type Observer interface {
	// TasksEnded runs in the transaction that ends the tasks, after their rows are written.
	TasksEnded(ctx context.Context, tx pgx.Tx, all []Ended, now time.Time) error
}

// Config is what a Store needs.
type Config struct {
	Pool     *pgxpool.Pool
	Wakeups  *wakeup.Hub
	Metrics  *metrics.Metrics
	Tracing  Tracing
	Log      *slog.Logger
	Observer Observer

	// Queued lists the runtimes whose ready tasks are announced in a queue.
	Queued []string
	// Elsewhere lists, by runtime of this process, the operators that only workers elsewhere run.
	Elsewhere map[string][]string
	// Runs reports whether this process may run the tasks of a queue of its runtimes; nil: it may run all.
	Runs func(ctx context.Context, tx pgx.Tx, q Queue) (bool, error)
	// Weights are the shares of the classes; zero: DefaultWeights.
	Weights Weights
}

// Store moves tasks between their sets.
type Store struct {
	pool      *pgxpool.Pool
	wake      *wakeup.Hub
	metrics   *metrics.Metrics
	tracing   Tracing
	log       *slog.Logger
	observer  Observer
	queued    []string
	elsewhere map[string][]string
	runs      func(context.Context, pgx.Tx, Queue) (bool, error)
	weights   Weights
	heads     heads
	more      atomic.Bool  // the last claim of this process may have left tasks
	dead      atomic.Int64 // dead rows in the ready set, as of the last look
}

// WorkerDeadAfter is how long a process may be silent before it counts as dead: its slots count no more. Its tasks stay
// its own until their leases end.
const WorkerDeadAfter = 10 * time.Second

// HeldBy is the SQL condition that row l of leases is held by the process in row w of workers.
const HeldBy = `w.id = l.worker_id AND w.token = l.worker_token AND w.incarnation = l.incarnation`

// New returns a Store.
func New(c Config) *Store {
	return &Store{
		pool: c.Pool, wake: c.Wakeups, metrics: c.Metrics, tracing: c.Tracing, log: c.Log, observer: c.Observer,
		queued: c.Queued, elsewhere: c.Elsewhere, runs: c.Runs,
		weights: cmp.Or(c.Weights, DefaultWeights),
	}
}

// MoreReady reports whether the last claim may have left ready tasks that this process could run.
func (st *Store) MoreReady() bool { return st.more.Load() }

// Bloated reports whether the ready set holds so many dead rows that ready tasks cannot be found quickly.
func (st *Store) Bloated() bool { return st.dead.Load() >= manyDead }
