// Package dispatcher turns events into tasks and tasks into published data. Its files follow the way of one event:
// events.go accepts it with its outbox row, router.go finds the consumers and asks package stale which of their output
// partitions it makes stale, found.go makes the tasks through package tasks, claim.go hands them out under a lease,
// runtime_inprocess.go runs them, and complete.go and commit.go commit what they made, with the next events, in one
// fenced transaction. Attempts outside of the server's process claim, report and commit through remote.go and the other
// remote files.
//
// Vocabulary: a task is one unit of work of an origin job. A fence is (task, attempt, lease token): only the holder of
// the current one may commit. Postgres is the truth; wake-ups only make things fast, and any of them may be lost.
//
// Together with the packages below it, it owns events, event_consumers, event_outcomes, data_invalidations, tasks,
// ready, waiting, leases, task_attempts, task_inputs, task_events, task_results, outbox, dataset_cursors,
// operator_state, limits, sources, enumerations, effect_positions, pauses, workers, backpressure, backfills,
// backfill_partitions, bulk_actions, bulk_action_tasks, deliveries, delivery_marks, work_items, awaited_inputs.
package dispatcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/runevents"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/recent"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/storage/health"
)

// Config is what a Dispatcher needs.
type Config struct {
	Pool      *pgxpool.Pool // the owner's: loops work for all orgs
	Requests  *pgxpool.Pool // under row-level security: for users' requests
	Registry  *registry.Registry
	Operators *operators.Registry
	Runner    *operators.Runner
	Storage   *storage.Storage
	Health    *health.Health // the state of the storage; nil: it is always well
	Vault     *authz.Vault   // holds the secrets; nil: there are none

	Runtimes []string // runtimes that run in this process
	// Queued lists the runtimes whose ready tasks are sent to a queue.
	Queued []string
	// Functions lists the runtimes whose tasks functions run, to which no worker belongs.
	Functions []string
	// Elsewhere lists, by runtime of this process, the operators that only workers elsewhere run.
	Elsewhere map[string][]string
	// Only lists, by what dag.Job.RunsAs returns, the orgs whose tasks this process may run, by their slugs. What is
	// not in it, it runs for every org.
	Only map[string][]string

	Signer  *authz.Signer // signs capability tokens; nil: no task runs outside of this process
	BaseURL string        // where tasks that run elsewhere reach this server

	// Roots returns the folders that the file sources of an org's DAG may read.
	Roots    func(orgSlug, dagName string) []string
	WorkerID string // unique among processes
	PoolSize int    // tasks run at once in this process; default 4
	Version  string // of the program, for people

	// Weights are the shares of the classes of tasks; zero: tasks.DefaultWeights.
	Weights tasks.Weights
	// Thresholds are the loads at which sources, backfills and builds begin to wait.
	Thresholds pressure.Thresholds
	// Quotas bound what orgs may use; nil: nothing is bounded.
	Quotas *authz.Quotas
	// OpenLineage has the orgs whose attempts are told to OpenLineage receivers; empty: none.
	OpenLineage runevents.Receivers

	// Poll is how often a loop looks for work without being woken; default 1 s.
	Poll time.Duration
	// Lease is how long a task without a heartbeat_timeout of its own is leased; default 30 s.
	Lease time.Duration
	Log   *slog.Logger
	// Tracer follows events through their tasks; nil turns tracing off and costs nothing.
	Tracer trace.Tracer
}

// DefaultLease is for tasks without a heartbeat_timeout of their own.
const DefaultLease = 30 * time.Second

func (c *Config) validate() error {
	if c.Pool == nil || c.Requests == nil || c.Registry == nil || c.Operators == nil || c.Runner == nil ||
		c.Storage == nil {
		return errors.New("dispatcher: pools, registry, operators, runner and storage are needed")
	}
	if c.WorkerID == "" {
		return errors.New("dispatcher: a worker id is needed")
	}

	if c.Roots == nil {
		c.Roots = func(string, string) []string { return nil }
	}
	c.PoolSize = cmp.Or(c.PoolSize, 4)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.Lease = cmp.Or(c.Lease, DefaultLease)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// Dispatcher moves events and tasks. Any number of dispatchers work on one database; none holds state that another
// would miss.
type Dispatcher struct {
	Config
	Tasks    *tasks.Store
	Stale    *stale.Examiner
	Pressure *pressure.Gauge
	Metrics  *metrics.Metrics
	Wakeups  *wakeup.Hub
	Timers   TimerMaker // makes the timers that tasks ask for

	slots  chan struct{} // one per task that may run here at once
	shares shares        // of orgs in the slots
	// Stepped makes completions always leave their events to the router, for tests that take each step by itself.
	Stepped bool
	// RunChecks runs the checks of a revision: the Runner's Check, unless a test remembers what that has answered.
	RunChecks func(context.Context, operators.CheckTask) ([]operators.CheckOutcome, error)
	// slotsShort is set while the claim loop could use more slots than are free.
	slotsShort atomic.Bool
	// Building is set if a version was being built when the build loop last looked.
	Building atomic.Bool
	slugs    slugs // of orgs, as far as a claim had to know them
	// columns holds the hashes of the column lineage that this process has recorded.
	columns recent.Cache[[sha256.Size]byte, bool]
	// bare holds the attempts elsewhere whose jobs get no secrets.
	bare recent.Cache[attemptOf, bool]
	// completions gathers the completions that attempts report at the same time.
	completions *batch.Batcher[*Completing]
	// loads gathers the attempts elsewhere whose calls come at the same time.
	loads *batch.Batcher[*loading]
	// claims gathers the tasks that workers claim by id at the same time.
	claims  *batch.Batcher[*claiming]
	beats   *batch.Batcher[*beating]
	tracing attemptTraces
	drained atomic.Bool // somebody asked this process to claim no more
	idle    idleness
	// unanswered are the claims of this process of which nobody knows whether they took effect.
	unanswered unanswered
	polls      polls
	contact    contact               // of the loop that takes leases back
	onEnded    []func([]tasks.Ended) // after COMMIT

	stopping chan struct{} // closed by stop, when the context of Run ends
	stop     func()
}

// New returns a dispatcher, or an error if the config is not valid.
func New(c Config) (*Dispatcher, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}

	d := &Dispatcher{Config: c, Stale: stale.New(c.Registry), Metrics: metrics.New(), Wakeups: wakeup.New(),
		RunChecks: c.Runner.Check,
		slots:     make(chan struct{}, c.PoolSize), tracing: attemptTraces{tasks.Tracing{Tracer: c.Tracer}},
		stopping: make(chan struct{})}
	d.Tasks = tasks.New(tasks.Config{Pool: c.Pool, Wakeups: d.Wakeups, Metrics: d.Metrics, Tracing: d.tracing.Tracing,
		Log: c.Log, Observer: d, Queued: c.Queued, Elsewhere: c.Elsewhere,
		Runs: d.runsQueue, Weights: c.Weights})
	d.Pressure = pressure.New(pressure.Config{Pool: c.Pool, Requests: c.Requests, Wakeups: d.Wakeups,
		Thresholds: c.Thresholds, Functions: c.Functions, Quotas: c.Quotas, Stored: registry.StoredBytes, Log: c.Log})

	d.stop = sync.OnceFunc(func() { close(d.stopping) })
	d.loads = batch.New(loadBatch, loadLanes, d.loadAll)
	d.completions = batch.New(completeBatch, completeLanes, d.completeAll)
	d.claims = batch.New(claimBatch, claimLanes, d.claimAll)
	d.beats = batch.New(beatBatch, beatLanes, d.beatAll)
	return d, nil
}

// OnEnded makes the dispatcher call fn after each transaction that ended tasks. Packages that need it call OnEnded
// before Run.
func (d *Dispatcher) OnEnded(fn func([]tasks.Ended)) { d.onEnded = append(d.onEnded, fn) }

// TasksEnded implements tasks.Observer: it writes notices of dead tasks and what OpenLineage receivers are to be told,
// and counts all ended tasks after COMMIT.
func (d *Dispatcher) TasksEnded(ctx context.Context, tx pgx.Tx, all []tasks.Ended, now time.Time) error {
	if err := notices.TasksDied(ctx, tx, all, now); err != nil {
		return err
	}
	if err := runevents.Note(ctx, tx, d.Registry, d.OpenLineage, all, now); err != nil {
		return err
	}
	pg.AfterCommit(ctx, func() {
		countEnded(d.Metrics, all)
		for _, fn := range d.onEnded {
			fn(all)
		}
	})
	return nil
}

// Drained reports whether somebody asked this process to claim no more tasks.
func (d *Dispatcher) Drained() bool { return d.drained.Load() }

// StopClaiming makes this process claim no more tasks.
func (d *Dispatcher) StopClaiming() { d.drained.Store(true) }

// Wake makes every loop look for work now, here and in other processes: after a deploy, or when a test will not wait.
func (d *Dispatcher) Wake() { d.Wakeups.All() }

// countEnded counts attempts by how they ended. It skips tasks that ended without running, and attempts that ended
// after their lease was lost, which were counted then.
func countEnded(m *metrics.Metrics, all []tasks.Ended) {
	for _, t := range all {
		if t.Row.Status != tasks.Running && t.Ending.Status != tasks.Completed {
			continue
		}
		org := t.Org.String()
		outcome := string(t.Ending.Status)
		switch t.Ending.Reason {
		case tasks.ReasonLeaseExpired, tasks.ReasonTimeout, tasks.ReasonHandedBack:
			outcome = string(t.Ending.Reason)
		}

		m.Attempts.WithLabelValues(org, outcome).Inc()
		if t.Ending.Reason == tasks.ReasonLeaseExpired {
			m.Expiries.WithLabelValues(org).Inc()
		}

		switch {
		case t.Ending.Status != tasks.Failed || t.Ending.Reason == tasks.ReasonHandedBack:
		case t.RetryAt != nil:
			m.Retries.WithLabelValues(org).Inc()
		default:
			m.Dead.WithLabelValues(org).Inc()
		}
	}
}
