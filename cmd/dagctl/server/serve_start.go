package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

// serve runs a server until ctx ends. The server answers at once, but is ready only when the database answers and its
// schema is up to date. It waits for the database as long as the config says, and without limit for somebody to
// migrate.
func serve(ctx context.Context, cfg Config, migrate bool, log *slog.Logger) error {
	var (
		starting = newStartup(cfg)
		people   = newFront(starting)
		remote   = newFront(starting)               // for workers and tasks, if they have an address of their own
		scraped  = newFront(http.NotFoundHandler()) // for metrics
	)
	listeners := map[*front]net.Listener{}
	defer func() {
		for _, listener := range listeners {
			_ = listener.Close() // for those that ServeHTTP has not closed
		}
	}()

	for front, address := range map[*front]string{
		people: cfg.Listen, remote: cfg.WorkerListen, scraped: cfg.MetricsAddress,
	} {
		if address == "" {
			continue
		}
		listener, err := Listen(address)
		if err != nil {
			return err
		}
		listeners[front] = listener
	}

	var a *App
	g, ctx := errgroup.WithContext(ctx)
	for front, listener := range listeners {
		g.Go(func() error { return ServeHTTP(ctx, listener, front) })
	}
	g.Go(func() (err error) {
		if err := starting.wait(ctx, cfg, migrate, log); err != nil {
			return ignoreStop(ctx, err)
		}
		defer starting.pool.Load().Close()

		if a, err = New(ctx, cfg, cfg.Folders(), nil, log); err != nil {
			return ignoreStop(ctx, err)
		}

		if listeners[remote] == nil {
			people.become(a.API.Handler())
		} else {
			people.become(a.API.PeopleHandler())
			remote.become(a.API.RemoteHandler())
			log.Info("serving workers and tasks", "url", "http://"+listeners[remote].Addr().String())
		}
		scraped.become(a.MetricsHandler())
		log.Info("serving", "url", "http://"+listeners[people].Addr().String(), "version", cli.Version(),
			"database", databaseOf(starting.pool.Load()))
		return a.work(ctx)
	})

	err := g.Wait()
	if a != nil {
		a.Close()
	}
	log.Info("stopped")
	return err
}

// ignoreStop returns nil instead of the error that the end of ctx causes.
func ignoreStop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// startup answers requests before the server is ready: it is alive, and everybody else learns why they must wait.
type startup struct {
	mux  http.ServeMux
	pool atomic.Pointer[pgxpool.Pool] // nil until the database has answered once
	lack atomic.Pointer[string]       // for which wait waited last; nil: it has not looked yet
}

func newStartup(cfg Config) *startup {
	s := new(startup)
	s.mux.HandleFunc("GET /healthz", healthz)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reason := awayReason
		if pool := s.pool.Load(); pool != nil {
			reason = notReady(r.Context(), pool, cfg.RequestsDatabaseURL)
			if lack := s.lack.Load(); reason == "" && lack != nil {
				reason = *lack
			}
			reason = cmp.Or(reason, "the server is starting")
		}
		rest.WriteProblem(w, r, &rest.Problem{Status: http.StatusServiceUnavailable, Detail: "not ready: " + reason})
	})
	return s
}

func (s *startup) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// wait waits until the database answers and has every migration that this program needs.
func (s *startup) wait(ctx context.Context, cfg Config, migrate bool, log *slog.Logger) error {
	pool, err := waitForDatabase(ctx, cfg, log)
	if err != nil {
		return err
	}

	s.pool.Store(pool)
	if migrate {
		if err := migrations.UpFor(ctx, cfg.DatabaseURL, cfg.RequestsDatabaseURL); err != nil {
			pool.Close()
			return err
		}
	}
	if err := s.waitForSchema(ctx, pool, cfg, log); err != nil {
		pool.Close()
		return err
	}

	ahead, err := migrations.Ahead(ctx, pool)
	if err != nil {
		pool.Close()
		return err
	}
	if len(ahead) > 0 {
		log.Warn("an older program than the schema's", "reason", newerSchema(ahead))
	}
	return nil
}

// newerSchema says that a newer program has migrated the database.
func newerSchema(ahead []int64) string {
	return fmt.Sprintf("its schema has %s that this program does not know: a newer one has migrated it. "+
		"Replace this one soon", plural.Of(len(ahead), "migration"))
}

// waitForDatabase opens a pool, and tries again as long as the config says while the database does not answer. It does
// not wait for a database that answers and refuses, because of a wrong password or name.
func waitForDatabase(ctx context.Context, cfg Config, log *slog.Logger) (*pgxpool.Pool, error) {
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
		log.Warn("not ready", "reason", awayReason, "error", cli.Cause(err),
			"giving_up_in", left.Round(time.Second).String())
		// A random delay keeps servers that lost the same database from coming back at the same moment.
		if err := cli.Sleep(ctx, min(left, delay/2+rand.N(delay/2))); err != nil {
			return nil, err
		}
	}
}

// waitForSchema waits until the database has every migration that this program needs, and requests can log in.
func (s *startup) waitForSchema(ctx context.Context, pool *pgxpool.Pool, cfg Config, log *slog.Logger) error {
	logged := ""
	for {
		reason := notReady(ctx, pool, cfg.RequestsDatabaseURL)
		if reason == "" {
			reason = noLogin(ctx, cfg)
		}
		s.lack.Store(&reason)
		if reason == "" {
			return nil
		}
		if reason != logged {
			log.Warn("not ready", "reason", reason)
			logged = reason
		}
		if err := cli.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// noLogin returns the reason why requests cannot log in, or an empty text if they can.
func noLogin(ctx context.Context, cfg Config) string {
	requests, err := pg.OpenRequests(ctx, cfg.DatabaseURL, pg.WithRequestsURL(cfg.RequestsDatabaseURL),
		pg.WithMaxConns(1))
	if err == nil {
		requests.Close()
		return ""
	}
	var classified *fault.Error
	if errors.As(err, &classified) && classified.Hint != "" {
		return classified.Message + "; " + classified.Hint
	}
	return err.Error()
}

// front serves requests with a handler that can be replaced.
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

// databaseOf returns where a pool's database is and its name, without who connects to it.
func databaseOf(pool *pgxpool.Pool) string {
	c := pool.Config().ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) + "/" + c.Database
}
