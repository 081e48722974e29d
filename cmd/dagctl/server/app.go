// Package server wires the slices into a server and runs it: its config, start-up, metrics and traces, and the commands
// serve, migrate and doctor.
package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/authz/scim"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/lineage/intake"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/storage/health"
	"github.com/dagctl/dagctl/tasklogs"
	"github.com/dagctl/dagctl/timers"
	"github.com/dagctl/dagctl/web"
	"github.com/dagctl/dagctl/workerapi"
)

// App is a server, wired and not yet running.
type App struct {
	API        *authz.API
	Dispatcher *service.Service
	Logs       *tasklogs.Logs
	Metrics    *prometheus.Registry

	log        *slog.Logger
	outages    *outages
	worker     string        // the name of this process
	pool       *pgxpool.Pool // as the owner of the tables
	requests   *pgxpool.Pool // under row-level security
	storage    *storage.Storage
	health     *health.Health // of the storage
	engines    *engine.Engines
	dialer     *dial.Dialer // to addresses that users name
	quotas     *authz.Quotas
	turns      *pg.Turns
	refusals   *authz.Refusals
	sealer     *auditlog.Sealer
	vault      *authz.Vault
	keys       *keyWatch
	signer     *authz.Signer
	identity   *identity.Identity
	registry   *registry.Registry
	timers     *timers.Timers
	builtin    *operators.Registry
	runner     *operators.Runner
	stopTraces func(context.Context) error
}

// New wires the slices. It is the one place that knows all of them. dev is nil except in a dev server.
func New(ctx context.Context, cfg Config, folders Folders, dev *authz.Dev, log *slog.Logger) (_ *App, err error) {
	a := &App{worker: workerID(), outages: &outages{log: log}}
	a.log = a.outages.logger()
	defer func() {
		if err != nil {
			a.Close()
		}
	}()

	for _, wire := range []func() error{
		func() error { return a.newEngines(cfg) },
		func() error { return a.openStores(ctx, cfg) },
		func() error { return cfg.warnOfOrgs(ctx, a.pool, a.log) },
		func() error { return a.openKeys(ctx, cfg) },
		func() error { return a.keys.look(ctx) },
		func() error { return a.newIdentity(cfg) },
		func() error { return a.newRegistry(cfg, folders) },
		func() error { return a.newDispatcher(ctx, cfg, folders) },
		func() error { return a.newTimersAndLogs(cfg) },
		func() (err error) { a.Metrics, err = a.newMetrics(); return err },
		func() error { return a.addRoutes(cfg, dev) },
	} {
		if err := wire(); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// openStores opens what the server connects to: the database, under both of its logins, the storage, and what users
// name.
func (a *App) openStores(ctx context.Context, cfg Config) (err error) {
	if a.pool, err = pg.Open(ctx, cfg.DatabaseURL); err != nil {
		return err
	}
	a.outages.pool = a.pool
	a.requests, err = pg.OpenRequests(ctx, cfg.DatabaseURL, pg.WithRequestsURL(cfg.RequestsDatabaseURL))
	if err != nil {
		return err
	}
	a.turns = pg.NewTurns(a.requests)
	if a.dialer, err = dial.New(dial.Config{Allowed: cfg.Operators.AllowedAddresses}); err != nil {
		return err
	}
	a.refusals, a.sealer = authz.NewRefusals(a.requests, a.log), auditlog.NewSealer(a.pool, a.log)
	a.quotas = authz.NewQuotas(a.pool, a.worker)
	a.quotas.CountEngines(func() map[uuid.UUID]int64 { return enginesOf(a.engines.Working()) })

	if a.storage, err = storage.New(cfg.Storage.storage(a.pool, a.engines)); err != nil {
		return err
	}
	a.health, err = health.New(health.Config{Storage: a.storage, Pool: a.pool, Log: a.log,
		Server: a.worker, Changed: func() { a.Dispatcher.Wake() }})
	return err
}

// newEngines makes the engines. Their folders are beside the storage, so that files are linked and not copied.
func (a *App) newEngines(cfg Config) (err error) {
	dir := filepath.Join(cfg.Storage.Root, ".engines")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder of engines: %w", err)
	}

	c := cfg.engines(dir)
	c.PerOrg = func(org string, _ engine.Kind) int {
		id, err := uuid.Parse(org)
		if err != nil {
			return 0 // the server itself
		}
		return a.quotas.Engines(id)
	}
	a.engines, err = engine.New(c)
	return err
}

// enginesOf returns the numbers of engines by the orgs' ids.
func enginesOf(working map[string]int) map[uuid.UUID]int64 {
	counts := make(map[uuid.UUID]int64, len(working))
	for org, n := range working {
		if id, err := uuid.Parse(org); err == nil {
			counts[id] = int64(n)
		}
	}
	return counts
}

// openKeys reads the keys that encrypt secrets and sign capability tokens.
func (a *App) openKeys(ctx context.Context, cfg Config) (err error) {
	a.vault, err = authz.NewVault(authz.VaultConfig{Owner: a.pool, Requests: a.requests, Keys: cfg.SecretKeys,
		Users: registry.SecretUsers, Programs: registry.Programs})
	if err != nil {
		return err
	}
	a.keys = &keyWatch{vault: a.vault, log: a.log}
	a.signer, err = cfg.newSigner(ctx)
	return err
}

// newRegistry makes the registry, and the operators whose specs it validates DAG files against.
func (a *App) newRegistry(cfg Config, folders Folders) (err error) {
	options := cfg.OperatorOptions()
	options.Engines = a.engines
	if a.builtin, err = standard.New(options); err != nil {
		return err
	}
	catalog, err := cfg.catalog(a.builtin)
	if err != nil {
		return err
	}

	a.registry, err = registry.New(registry.Config{
		Pool: a.pool, Requests: a.requests, Storage: a.storage, Catalog: catalog, Vault: a.vault, Log: a.log,
		Misfit: a.builtin.Misfit,
		Folders: func(org, dag, path string) error {
			roots := folders.Of(org, dag)
			if len(roots) == 0 {
				return folders.None
			}
			return operators.InFolders(roots, path)
		},
	})
	return err
}

// newDispatcher makes the dispatcher, with the runner that works on tasks in this process.
func (a *App) newDispatcher(ctx context.Context, cfg Config, folders Folders) error {
	// The scratch folder is beside the storage, so that the files a task wrote are moved and not copied.
	scratch := filepath.Join(cfg.Storage.Root, ".scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	a.runner = &operators.Runner{Registry: a.builtin, Storage: a.storage, ScratchDir: scratch, Log: a.log}
	a.sweepFolders()

	hooks, err := rest.NewLimiter(cfg.Limits.RequestsPerSecond, cfg.Limits.Burst)
	if err != nil {
		return err
	}
	amazon, err := cfg.aws(ctx)
	if err != nil {
		return err
	}
	tracer, stopTraces, err := newTracer(ctx, a.worker)
	if err != nil {
		return err
	}
	a.stopTraces = stopTraces

	a.Dispatcher, err = service.New(service.Config{Config: dispatcher.Config{
		Pool: a.pool, Requests: a.requests, Registry: a.registry, Storage: a.storage, Health: a.health, Vault: a.vault,
		Operators: a.builtin, Runner: a.runner, Roots: folders.Of, Only: cfg.only(folders),
		Runtimes: cfg.RuntimeMap().Of(backends.InProcess),
		Signer:   a.signer, BaseURL: cfg.workerBaseURL(),
		WorkerID: a.worker, PoolSize: cfg.Workers.PoolSize, Weights: cfg.Weights.weights(),
		Thresholds: cfg.Backpressure.thresholds(),
		Quotas:     a.quotas, OpenLineage: cfg.OpenLineage.receivers(),

		Version: cli.Version(), Log: a.log, Tracer: tracer,
	}, HookLimiter: hooks, NoticeDialer: a.dialer, PagesURL: cfg.BaseURL, Backends: cfg.RuntimeMap(), AWS: amazon,
		WorkerToken: cfg.WorkerToken})
	if err != nil {
		return err
	}
	a.Dispatcher.Usage.Prices = usage.Prices{Currency: cfg.Prices.Currency, Second: cfg.Prices.Second,
		Written: cfg.Prices.Written, StoredMonths: cfg.Prices.StoredByMonth}
	a.Dispatcher.Usage.Keep = time.Duration(cfg.UsageRetentionDays) * 24 * time.Hour
	a.Dispatcher.Upkeep.KeepDeliveries = time.Duration(cfg.DeliveriesRetentionDays) * 24 * time.Hour
	a.Dispatcher.Upkeep.KeepVersions = time.Duration(cfg.VersionRetentionDays) * 24 * time.Hour
	return nil
}

func (a *App) newTimersAndLogs(cfg Config) (err error) {
	a.Logs, err = tasklogs.New(tasklogs.Config{
		Pool: a.pool, Requests: a.requests, Dispatcher: a.Dispatcher.Dispatcher, Views: a.Dispatcher.Views, Log: a.log,
		MaxBytes: cfg.TaskLogs.MaxMB << 20, Keep: time.Duration(cfg.TaskLogs.KeepDays) * 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	a.runner.KeepLog = a.Logs.Logger

	a.timers, err = timers.New(timers.Config{
		Pool: a.pool, Requests: a.requests, Dispatcher: a.Dispatcher.Dispatcher, Sources: a.Dispatcher.Sources,
		Log: a.log,
	})
	return err
}

// addRoutes builds the API from the routes of all slices, each with its rule.
func (a *App) addRoutes(cfg Config, dev *authz.Dev) (err error) {
	if a.API, err = a.newAPI(cfg, dev); err != nil {
		return err
	}
	queries, err := query.New(query.Config{
		Requests: a.requests, Registry: a.registry, Storage: a.storage, Engines: a.engines,
		Limits: cfg.Queries.limits(),
	})
	if err != nil {
		return err
	}
	remote, err := workerapi.New(workerapi.Config{
		Dispatcher: a.Dispatcher.Dispatcher, Registry: a.registry, Storage: a.storage, Runner: a.runner,
		Queries: queries,
	})
	if err != nil {
		return err
	}
	graphs, err := lineage.New(a.requests, a.registry)
	if err != nil {
		return err
	}
	site, err := web.New(web.Config{Registry: a.registry, Deployer: deploy.New(a.registry),
		Dispatcher: a.Dispatcher, Logs: a.Logs, Query: queries,
		Lineage: graphs, Timers: a.timers})
	if err != nil {
		return err
	}
	access, err := web.NewAccess(a.identity, a.vault)
	if err != nil {
		return err
	}

	authz.Register(a.API, a.requests, a.identity.Issuers)
	authz.RegisterOrg(a.API, a.pool, a.requests)
	auditlog.AddRoutes(a.API, a.requests)
	a.identity.AddRoutes(a.API)
	scim.New(a.identity).AddRoutes(a.API)
	a.vault.AddRoutes(a.API)
	a.registry.AddRoutes(a.API)
	catalog.New(a.registry).AddRoutes(a.API)
	deploy.New(a.registry).AddRoutes(a.API)
	a.Dispatcher.API.AddRoutes(a.API)
	a.Dispatcher.Stream.AddRoutes(a.API)
	a.timers.AddRoutes(a.API)
	a.Logs.AddRoutes(a.API)
	queries.AddRoutes(a.API)
	graphs.AddRoutes(a.API)
	outside := intake.Intake{Requests: a.requests, Registry: a.registry, Lineage: graphs,
		Namespaces: cfg.OpenLineage.namespaces()}
	outside.AddRoutes(a.API)
	remote.AddRoutes(a.API)
	site.AddRoutes(a.API)
	access.AddRoutes(a.API)

	a.API.HandlePage(authz.Public, "GET /healthz", func(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
		healthz(w, r)
		return nil
	})
	a.API.HandlePage(authz.Public, "GET /readyz", func(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
		a.readyz(w, r, cfg.RequestsDatabaseURL)
		return nil
	})
	a.API.HandlePage(authz.Reader, "GET /metrics", a.serveMetrics)
	return nil
}

// Run serves the listener and works on tasks until ctx ends. It then finishes the requests in progress and returns the
// leases that it holds.
func (a *App) Run(ctx context.Context, listener net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ServeHTTP(ctx, listener, a.API.Handler()) })
	g.Go(func() error { return a.work(ctx) })
	return g.Wait()
}

// work runs the loops of the slices until ctx ends, which is no error however early it comes.
func (a *App) work(ctx context.Context) error {
	a.health.Look(ctx) // before the first claim
	g, working := errgroup.WithContext(ctx)
	g.Go(func() error { return a.health.Run(working) })
	g.Go(func() error { return a.Dispatcher.Run(working) })
	g.Go(func() error { return a.timers.Run(working) })
	g.Go(func() error { return a.identity.Run(working) })
	g.Go(func() error { return a.Logs.Run(working) })
	g.Go(func() error { return a.sealer.Run(working) })
	g.Go(func() error { return a.refusals.Run(working) })
	g.Go(func() error { return a.sweep(working) })
	g.Go(func() error { return a.outages.watch(working) })
	g.Go(func() error { return a.keys.run(working) })

	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// ServeHTTP serves until ctx ends, then lets requests finish for at most 10 seconds.
func ServeHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := rest.NewServer(listener.Addr().String(), handler)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}

	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// Close releases what New opened.
func (a *App) Close() {
	if a.stopTraces != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := a.stopTraces(ctx); err != nil {
			a.log.Warn("could not send the last traces", "error", err)
		}
	}
	if a.engines != nil {
		if err := a.engines.Close(); err != nil {
			a.log.Error("close engines", "error", err)
		}
	}
	if a.storage != nil {
		if err := a.storage.Close(); err != nil {
			a.log.Error("close storage", "error", err)
		}
	}

	// No request is served any more.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a.refusals.Flush(ctx)
	for _, pool := range []*pgxpool.Pool{a.requests, a.pool} {
		if pool != nil {
			pool.Close()
		}
	}
}

// workerID returns a name that no other process that runs tasks has, or had before.
func workerID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", cmp.Or(host, "unknown"), os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// Listen listens on an address. Its error has a hint.
func Listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "listen on %s: %w", address, cli.Cause(err)).
			WithHint("stop the program that listens there, or choose another address")
	}
	return listener, nil
}
