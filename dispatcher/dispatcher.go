// Package dispatcher turns events into tasks and tasks into published data. The way of one event is the way through
// its files: events.go accepts it with its outbox row, router.go finds the consumers, stale.go decides which of their
// output partitions it makes stale, create.go makes the tasks, claim.go hands them out under a lease, runtime_inprocess.go
// runs them, complete.go commits what they made, with the next events, in one fenced transaction (record_run.go: what a run
// leaves besides its outputs).
//
// Vocabulary: a task is one unit of work of an origin job; its slot is what at most one queued and one running task of
// that origin may hold, usually the key of the output partition. An open task is in exactly one of three sets: ready
// (claimable), waiting (with the reason), leases (running). A fence is (task, attempt, lease token): whoever holds the
// current one may commit, nobody else. Postgres is the truth; wake-ups only make things fast, and any of them may be lost.
//
// It owns events, event_consumers, event_outcomes, data_invalidations, tasks, ready, waiting, leases, task_attempts,
// task_inputs, task_events, task_results, outbox, dataset_cursors, operator_state, limits, sources, enumerations,
// effect_positions, pauses, workers, backpressure, backfills, backfill_partitions, bulk_actions, bulk_action_tasks.
package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Config is what a Dispatcher needs.
type Config struct {
	Pool      *pgxpool.Pool // the owner's: loops work for all orgs
	Requests  *pgxpool.Pool // under row-level security: for what users' requests do
	Registry  *registry.Registry
	Operators *operators.Registry
	Runner    *operators.Runner
	Storage   *storage.Storage
	Vault     *authz.Vault // of secrets; nil: there are none

	// NoticeDialer reaches the webhooks that DAGs have told of trouble; nil: at public addresses only.
	NoticeDialer *dial.Dialer
	// NoticeTimeout is how long one try to tell a webhook may take; default 10 s, less than 1 min.
	NoticeTimeout time.Duration

	// HookLimiter bounds the deliveries to each webhook; nil: nothing does.
	HookLimiter *rest.Limiter

	Runtimes []string // runtimes that run in this process

	// Backends say where tasks of the other runtimes go, by queue and by function; they were checked.
	Backends RuntimeMap
	// AWS has the credentials for queues and functions.
	AWS aws.Config

	Signer  *authz.Signer // of capability tokens; nil: no task runs outside of this process
	BaseURL string        // where tasks that run elsewhere reach this server
	// WorkerToken is a shell command that prints a token for workers; empty: there is one for whoever makes one.
	WorkerToken string

	// Roots are the folders that the file sources of an org's DAG may read.
	Roots    func(orgSlug, dagName string) []string
	WorkerID string // unique among processes
	PoolSize int    // tasks run at once in this process; default 4
	Version  string // of the program, for people

	// Thresholds are from where on sources, backfills and builds wait.
	Thresholds Thresholds

	// Poll is how often a loop looks without having been woken; default 1 s.
	Poll time.Duration
	// Lease is how long a task without a heartbeat_timeout of its own is leased; default 30 s.
	Lease time.Duration
	Log   *slog.Logger
	// Tracer follows events over tasks; nil is off and costs nothing.
	Tracer trace.Tracer
}

// defaultLease is for tasks without a heartbeat_timeout of their own.
const defaultLease = 30 * time.Second

func (c *Config) validate() error {
	if c.Pool == nil || c.Requests == nil || c.Registry == nil || c.Operators == nil || c.Runner == nil || c.Storage == nil {
		return errors.New("dispatcher: pools, registry, operators, runner and storage are needed")
	}
	if c.WorkerID == "" {
		return errors.New("dispatcher: a worker id is needed")
	}
	if c.Roots == nil {
		c.Roots = func(string, string) []string { return nil }
	}
	if c.NoticeDialer == nil {
		dialer, err := dial.New(dial.Config{})
		if err != nil {
			return err
		}
		c.NoticeDialer = dialer
	}
	c.NoticeTimeout = cmp.Or(c.NoticeTimeout, noticeTimeout)
	c.PoolSize = cmp.Or(c.PoolSize, 4)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.Lease = cmp.Or(c.Lease, defaultLease)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// halfTime has a body that is woken by whatever it works for rest as long as it worked, up to a Poll: looking at all of a
// large build after each of its tasks would leave no time for them.
func (d *Dispatcher) halfTime(body func(context.Context, time.Time) (bool, error)) func(context.Context, time.Time) (bool, error) {
	return func(ctx context.Context, now time.Time) (bool, error) {
		more, err := body(ctx, now)
		rest := time.NewTimer(min(time.Since(now), d.Poll))
		defer rest.Stop()
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		return more, err
	}
}

// Dispatcher moves events and tasks. Any number of them work on one database; none holds state that another would miss.
type Dispatcher struct {
	Config
	wake   *wakeups
	slots  chan struct{}       // one per task that may run here at once
	behind chan registry.Build // versions that serve again after a rollback
	// holds are when live counterparts of a build were last held back. The build loop alone uses it.
	holds map[uuid.UUID]liveHold
	heads heads
	// turns are those of the orgs with workers elsewhere.
	turns turns
	// stepped has completions leave their events to the router, always: for tests that take each step by itself.
	stepped bool
	// crowded tells that the claim loop found fewer free slots than it had use for.
	crowded atomic.Bool
	// building tells whether the build loop has found a version being built when it last looked.
	building atomic.Bool
	// columns are the hashes of the column lineage that is recorded.
	columns sync.Map
	// completions gathers what attempts report at the same time.
	completions *batch.Batcher[*completing]
	// loads gathers what calls of attempts elsewhere need at the same time.
	loads *batch.Batcher[*loading]
	// claims gathers the tasks that workers claim by id at the same time.
	claims    *batch.Batcher[*claiming]
	metrics   *metrics
	notices   *http.Client // to the webhooks of DAGs
	tracing   tracing
	clients   backendClients
	drained   atomic.Bool // somebody asked this process to claim no more
	idle      idleness
	functions []*function
	pressed   atomic.Pointer[Pressure] // how the queue stood when this process last looked
	stopping  chan struct{}            // closed by stop, when Run is told to
	stop      func()
	elsewhere map[string][]string // operators, by runtime of this process, that only workers run
}

// New validates the config.
func New(c Config) (*Dispatcher, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	d := &Dispatcher{Config: c, wake: newWakeups(), slots: make(chan struct{}, c.PoolSize), holds: map[uuid.UUID]liveHold{}, behind: make(chan registry.Build, behindAtOnce), stopping: make(chan struct{}),
		metrics: newMetrics(), tracing: tracing{c.Tracer}, notices: newNoticeClient(c.NoticeDialer, c.NoticeTimeout)}
	var err error
	d.functions = functionsOf(c.Backends)
	if d.clients, err = newBackendClients(c.Backends, c.AWS); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	for _, f := range d.functions {
		d.wake.invoke = append(d.wake.invoke, f.wake)
	}
	d.stop = sync.OnceFunc(func() { close(d.stopping) })
	d.elsewhere = c.Backends.Elsewhere(c.Operators.Names())
	d.loads = batch.New(loadBatch, loadLanes, d.loadAll)
	d.completions = batch.New(completeBatch, completeLanes, d.completeAll)
	d.claims = batch.New(claimBatch, claimLanes, d.claimAll)
	return d, nil
}

// Run works until ctx ends, then hands back the leases of what it was running.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, d.stop)()
	if err := d.registerSoon(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.wake.listen(ctx, d.Pool, d.Log) })
	g.Go(func() error { return d.wake.tell(ctx, d.Pool, d.Log) })
	g.Go(func() error { return d.loop(ctx, "route", d.wake.route, d.routeOnce) })
	g.Go(func() error { return d.loop(ctx, "sources", d.wake.sources, d.fireSources) })
	g.Go(func() error { return d.loop(ctx, "build", d.wake.build, d.halfTime(d.advanceBuilds)) })
	g.Go(func() error { return d.loop(ctx, "promote", d.wake.promote, d.promoteDue) })
	g.Go(func() error { return d.loop(ctx, "backfill", nil, d.advanceBackfills) })
	g.Go(func() error { return d.loop(ctx, "pauses", nil, d.reviewPauses) })
	g.Go(func() error { return d.loop(ctx, "always_on", nil, d.superviseSources) })
	g.Go(func() error { return d.loop(ctx, "pressure", nil, d.reviewPressure) })
	g.Go(func() error { return d.loop(ctx, "bulk", nil, d.advanceBulkActions) })
	g.Go(func() error { return d.loop(ctx, "notify", nil, d.sendNotices) })
	g.Go(func() error { return d.loop(ctx, "late", nil, atMostEach(lateEvery, d.announceLate)) })
	g.Go(func() error { return d.loop(ctx, "reap", nil, d.reap) })
	g.Go(func() error { return d.loop(ctx, "heartbeat", nil, d.heartbeatWorker) })
	if len(d.queuedRuntimes()) > 0 {
		g.Go(func() error { return d.loop(ctx, "announce", d.wake.announce, d.sendTasks) })
		g.Go(func() error { return d.loop(ctx, "review messages", nil, d.reviewMessages) })
		g.Go(func() error { return d.loop(ctx, "adopt tasks", nil, atMostEach(time.Minute, d.announceUnannounced)) })
	}
	for _, f := range d.functions {
		g.Go(func() error {
			defer f.calls.Wait()
			return d.loop(ctx, "invoke", f.wake, func(ctx context.Context, now time.Time) (bool, error) { return d.invokeTasks(ctx, f, now) })
		})
	}
	g.Go(func() error { return d.catchUpBehind(ctx) })
	g.Go(func() error { return d.runInProcess(ctx) })
	g.Go(func() error { return d.runPeriodic(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("dispatcher: %w", err)
	}
	return nil
}

// Wake tells every loop to look now, here and in other processes: after a deploy, or when a test will not wait.
func (d *Dispatcher) Wake() { d.wake.all() }

// loop runs body, with the time, whenever woken, and once a Poll in any case; a body that says there is more is run again at once. An
// error is logged and the loop goes on: what failed is still there to be done.
func (d *Dispatcher) loop(ctx context.Context, name string, woken <-chan struct{}, body func(ctx context.Context, now time.Time) (more bool, err error)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		case <-timer.C:
		}
		for {
			more, err := body(ctx, time.Now())
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				d.Log.Error("loop failed, will go on", "loop", name, "error", err)
			}
			if err != nil || !more {
				break
			}
		}
		timer.Reset(jitter(d.Poll))
	}
}
