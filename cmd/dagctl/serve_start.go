package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

// serve runs a server until ctx ends. It answers at once, but is ready only when the database answers and its schema is
// up to date: until then it waits, for the database not for ever, for somebody to migrate as long as it takes.
func serve(ctx context.Context, cfg serverConfig, migrate bool, log *slog.Logger) error {
	var (
		starting = newStartup()
		people   = newFront(starting)
		remote   = newFront(starting)               // workers and tasks, where they have an address of their own
		scraped  = newFront(http.NotFoundHandler()) // until there is something to tell
	)
	listeners := map[*front]net.Listener{}
	defer func() {
		for _, listener := range listeners {
			_ = listener.Close() // serveHTTP has, unless it never began
		}
	}()
	for front, address := range map[*front]string{people: cfg.Listen, remote: cfg.WorkerListen, scraped: cfg.MetricsAddress} {
		if address == "" {
			continue
		}
		listener, err := listen(address)
		if err != nil {
			return err
		}
		listeners[front] = listener
	}

	var a *app
	g, ctx := errgroup.WithContext(ctx)
	for front, listener := range listeners {
		g.Go(func() error { return serveHTTP(ctx, listener, front) })
	}
	g.Go(func() (err error) {
		if err := starting.wait(ctx, cfg, migrate, log); err != nil {
			return ignoreStop(ctx, err)
		}
		defer starting.pool.Load().Close()
		if a, err = newApp(ctx, cfg, cfg.roots, nil, log); err != nil {
			return ignoreStop(ctx, err)
		}
		if listeners[remote] == nil {
			people.become(a.api.Handler())
		} else {
			people.become(a.api.PeopleHandler())
			remote.become(a.api.RemoteHandler())
			log.Info("serving workers and tasks", "url", "http://"+listeners[remote].Addr().String())
		}
		scraped.become(a.metricsHandler())
		log.Info("serving", "url", "http://"+listeners[people].Addr().String(), "version", buildVersion())
		return a.work(ctx)
	})
	err := g.Wait()
	if a != nil {
		a.close()
	}
	log.Info("stopped")
	return err
}

// ignoreStop leaves of an error nothing where it only says that the server was told to stop.
func ignoreStop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// startup is the server before it serves: alive, and telling everybody else why they have to wait.
type startup struct {
	mux  http.ServeMux
	pool atomic.Pointer[pgxpool.Pool] // nil until the database has answered once
}

func newStartup() *startup {
	s := new(startup)
	s.mux.HandleFunc("GET /healthz", healthz)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reason := "the database does not answer"
		if pool := s.pool.Load(); pool != nil {
			if reason = notReady(r.Context(), pool); reason == "" {
				reason = "the server is starting"
			}
		}
		rest.WriteProblem(w, r, &rest.Problem{Status: http.StatusServiceUnavailable, Detail: "not ready: " + reason})
	})
	return s
}

func (s *startup) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// wait returns when the database answers and has every migration that this binary needs.
func (s *startup) wait(ctx context.Context, cfg serverConfig, migrate bool, log *slog.Logger) error {
	pool, err := waitForDatabase(ctx, cfg, log)
	if err != nil {
		return err
	}
	s.pool.Store(pool)
	if migrate {
		if err := migrations.Up(ctx, cfg.DatabaseURL); err != nil {
			pool.Close()
			return err
		}
	}
	if err := waitForSchema(ctx, pool, log); err != nil {
		pool.Close()
		return err
	}
	return nil
}

// waitForDatabase opens a pool, again and again where the database is away, as long as the config says. One that answers
// and refuses, because of a wrong password or name, is not waited for.
func waitForDatabase(ctx context.Context, cfg serverConfig, log *slog.Logger) (*pgxpool.Pool, error) {
	began, patience := time.Now(), time.Duration(cfg.DatabaseWaitSeconds)*time.Second
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		pool, err := pg.Open(ctx, cfg.DatabaseURL, pg.WithMaxConns(2))
		if err == nil {
			return pool, nil
		}
		left := patience - time.Since(began)
		if !pg.Away(err) || left <= 0 {
			return nil, err
		}
		log.Warn("not ready", "reason", "the database does not answer", "error", cause(err), "giving_up_in", left.Round(time.Second).String())
		// Servers that lost the same database do not all come back at the same moment.
		if err := pause(ctx, min(left, delay/2+rand.N(delay/2))); err != nil {
			return nil, err
		}
	}
}

// waitForSchema returns when the database has every migration that this binary needs.
func waitForSchema(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	told := ""
	for {
		reason := notReady(ctx, pool)
		if reason == "" {
			return nil
		}
		if reason != told {
			log.Warn("not ready", "reason", reason)
			told = reason
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// front hands requests to a handler that may change.
type front struct{ handler atomic.Pointer[http.Handler] }

func newFront(first http.Handler) *front {
	f := new(front)
	f.become(first)
	return f
}

func (f *front) become(handler http.Handler) { f.handler.Store(&handler) }

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*f.handler.Load()).ServeHTTP(w, r)
}
