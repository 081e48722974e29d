package main

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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/tasklogs"
	"github.com/dagctl/dagctl/timers"
	"github.com/dagctl/dagctl/web"
	"github.com/dagctl/dagctl/workerapi"
)

// app is a server, wired and not yet running.
type app struct {
	log        *slog.Logger
	pool       *pgxpool.Pool // the owner's
	requests   *pgxpool.Pool // under row-level security
	storage    *storage.Storage
	vault      *authz.Vault
	signer     *authz.Signer
	registry   *registry.Registry
	dispatcher *dispatcher.Dispatcher
	timers     *timers.Timers
	logs       *tasklogs.Logs
	runner     *operators.Runner
	metrics    *prometheus.Registry
	api        *authz.API
	stopTraces func(context.Context) error
}

// newApp wires the slices. This is the one place that knows them all. roots are the folders that the file sources of an
// org's DAG may read; dev is nil unless one person runs it for themselves.
func newApp(ctx context.Context, cfg serverConfig, roots func(org, dag string) []string, dev *authz.Dev, log *slog.Logger) (_ *app, err error) {
	a := &app{log: log}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.pool, err = pg.Open(ctx, cfg.DatabaseURL); err != nil {
		return nil, err
	}
	if a.requests, err = pg.OpenRequests(ctx, cfg.DatabaseURL); err != nil {
		return nil, err
	}
	if a.storage, err = storage.New(cfg.Storage.storage(a.pool)); err != nil {
		return nil, err
	}
	builtin, err := operators.Builtin(cfg.operators())
	if err != nil {
		return nil, err
	}
	if a.vault, err = authz.NewVault(authz.VaultConfig{Owner: a.pool, Requests: a.requests, Keys: cfg.secretKeys}); err != nil {
		return nil, err
	}
	if a.signer, err = cfg.newSigner(ctx); err != nil {
		return nil, err
	}
	catalog, err := cfg.catalog(builtin)
	if err != nil {
		return nil, err
	}
	a.registry, err = registry.New(registry.Config{
		Pool: a.pool, Requests: a.requests, Storage: a.storage, Catalog: catalog, Vault: a.vault, Log: log,
	})
	if err != nil {
		return nil, err
	}
	// Beside the storage, so that what a task wrote is moved and not copied.
	scratch := filepath.Join(cfg.Storage.Root, ".scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	limiter, err := rest.NewLimiter(cfg.Limits.RequestsPerSecond, cfg.Limits.Burst)
	if err != nil {
		return nil, err
	}
	dialer, err := dial.New(dial.Config{Allowed: cfg.Operators.AllowedAddresses})
	if err != nil {
		return nil, err
	}
	amazon, err := cfg.aws(ctx)
	if err != nil {
		return nil, err
	}
	worker := workerID()
	tracer, stopTraces, err := newTracer(ctx, worker)
	if err != nil {
		return nil, err
	}
	a.stopTraces = stopTraces
	a.runner = &operators.Runner{Registry: builtin, Storage: a.storage, ScratchDir: scratch, Log: log}
	a.dispatcher, err = dispatcher.New(dispatcher.Config{
		Pool: a.pool, Requests: a.requests, Registry: a.registry, Operators: builtin, Storage: a.storage, Vault: a.vault,
		Runner:      a.runner,
		HookLimiter: limiter, NoticeDialer: dialer, Runtimes: cfg.runtimes().Of(dispatcher.InProcess), Backends: cfg.runtimes(), AWS: amazon, Roots: roots,
		Signer: a.signer, BaseURL: cfg.workerBaseURL(), WorkerToken: cfg.workerToken,
		WorkerID: worker, PoolSize: cfg.Workers.PoolSize, Thresholds: cfg.Backpressure.thresholds(), Version: buildVersion(), Log: log, Tracer: tracer,
	})
	if err != nil {
		return nil, err
	}
	a.logs, err = tasklogs.New(tasklogs.Config{Pool: a.pool, Requests: a.requests, Dispatcher: a.dispatcher,
		MaxBytes: cfg.TaskLogs.MaxMB << 20, Keep: time.Duration(cfg.TaskLogs.KeepDays) * 24 * time.Hour, Log: log})
	if err != nil {
		return nil, err
	}
	a.runner.KeepLog = a.logs.Logger
	if a.timers, err = timers.New(timers.Config{Pool: a.pool, Requests: a.requests, Dispatcher: a.dispatcher, Log: log}); err != nil {
		return nil, err
	}
	if a.metrics, err = a.newMetrics(); err != nil {
		return nil, err
	}
	if err := a.routes(cfg, dev); err != nil {
		return nil, err
	}
	return a, nil
}

// routes builds the API: every operation and page, each with its rule.
func (a *app) routes(cfg serverConfig, dev *authz.Dev) error {
	limiter, err := rest.NewLimiter(cfg.Limits.RequestsPerSecond, cfg.Limits.Burst)
	if err != nil {
		return err
	}
	workers, err := rest.NewLimiter(cfg.Limits.WorkerRequestsPerSecond, cfg.Limits.WorkerBurst)
	if err != nil {
		return err
	}
	tokens := authz.NewTokens(a.pool)
	a.api, err = authz.NewAPI(authz.Config{
		REST:           rest.Config{Version: buildVersion(), Logger: a.log, Metrics: a.metrics},
		Authenticators: []authz.Authenticator{tokens},
		Workers:        tokens, WorkerLimiter: workers, Signer: a.signer,
		Limiter: limiter, Origins: cfg.Origins, Dev: dev, RenderError: web.RenderError,
	})
	if err != nil {
		return err
	}
	rows, err := query.New(query.Config{Requests: a.requests, Registry: a.registry, Storage: a.storage, Limits: cfg.Queries.limits()})
	if err != nil {
		return err
	}
	authz.Register(a.api, a.requests)
	a.vault.AddRoutes(a.api)
	a.registry.AddRoutes(a.api)
	a.dispatcher.AddRoutes(a.api)
	a.timers.AddRoutes(a.api)
	a.logs.AddRoutes(a.api)
	rows.AddRoutes(a.api)
	remote, err := workerapi.New(workerapi.Config{Dispatcher: a.dispatcher, Registry: a.registry, Storage: a.storage, Runner: a.runner, Queries: rows})
	if err != nil {
		return err
	}
	remote.AddRoutes(a.api)
	site, err := web.New(web.Config{Registry: a.registry, Dispatcher: a.dispatcher, Logs: a.logs, Query: rows})
	if err != nil {
		return err
	}
	site.AddRoutes(a.api)
	a.api.HandlePage(authz.Public, "GET /healthz", func(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
		healthz(w, r)
		return nil
	})
	a.api.HandlePage(authz.Public, "GET /readyz", func(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
		readyz(a.pool)(w, r)
		return nil
	})
	a.api.HandlePage(authz.Reader, "GET /metrics", a.serveMetrics)
	return nil
}

// notReady says why requests cannot be served, or nothing.
func notReady(ctx context.Context, pool *pgxpool.Pool) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pending, err := migrations.Pending(ctx, pool)
	switch {
	case err != nil:
		return "the database does not answer"
	case len(pending) > 0:
		return fmt.Sprintf("the database lacks %s; run `dagctl migrate`, or start with --migrate", count(len(pending), "migration"))
	}
	return ""
}

// healthz says that the process is alive.
func healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintln(w, `{"status": "ok"}`)
}

// readyz says whether requests can be served now, and if not why.
func readyz(pool *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if reason := notReady(r.Context(), pool); reason != "" {
			rest.WriteProblem(w, r, &rest.Problem{Status: http.StatusServiceUnavailable, Detail: "not ready: " + reason})
			return
		}
		healthz(w, r)
	}
}

// run serves the listener and works on tasks until ctx ends, then finishes what it is answering and hands leases back.
func (a *app) run(ctx context.Context, listener net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveHTTP(ctx, listener, a.api.Handler()) })
	g.Go(func() error { return a.work(ctx) })
	return g.Wait()
}

// work runs the dispatcher and delivers timers. Being told to stop, however early, is no error.
func (a *app) work(ctx context.Context) error {
	g, working := errgroup.WithContext(ctx)
	g.Go(func() error { return a.dispatcher.Run(working) })
	g.Go(func() error { return a.timers.Run(working) })
	g.Go(func() error { return a.logs.Run(working) })
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// serveHTTP serves until ctx ends, then lets requests finish.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
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

// close frees what newApp opened.
func (a *app) close() {
	if a.stopTraces != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := a.stopTraces(ctx); err != nil {
			a.log.Warn("the last traces could not be sent", "error", err)
		}
	}
	if a.storage != nil {
		if err := a.storage.Close(); err != nil {
			a.log.Error("close storage", "error", err)
		}
	}
	for _, pool := range []*pgxpool.Pool{a.requests, a.pool} {
		if pool != nil {
			pool.Close()
		}
	}
}

// workerID names this process among all that ever run tasks.
func workerID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", cmp.Or(host, "unknown"), os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// listen opens the address, with an error that says what to do.
func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "listen on %s: %w", address, cause(err)).
			WithHint("stop what listens there, or choose another address")
	}
	return listener, nil
}
