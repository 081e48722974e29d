package main

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

func (c *cli) serveCommand() *cobra.Command {
	var (
		path      string
		migrate   bool
		flags     serverConfig
		fileRoots []string
		runtimes  []string
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server: API, pages, dispatcher",
		Long: `Runs a server until it is told to stop. Settings come from flags, else from DAGCTL_* variables, else from the
config file. Any number of servers run against one database; none holds state. Nobody gets in without a service token:
` + "`dagctl admin bootstrap`" + ` makes the first org and its first token.`,
		Example: `  dagctl serve --database-url postgres://dagctl:secret@db/dagctl --storage-root /var/lib/dagctl/data --migrate
  dagctl serve --config /etc/dagctl/config.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(path, c.getenv)
			if err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			if changed("database-url") {
				cfg.DatabaseURL = flags.DatabaseURL
			}
			if changed("listen") {
				cfg.Listen = flags.Listen
			}
			if changed("worker-listen") {
				cfg.WorkerListen = flags.WorkerListen
			}
			if changed("base-url") {
				cfg.BaseURL = flags.BaseURL
			}
			if changed("worker-base-url") {
				cfg.WorkerBaseURL = flags.WorkerBaseURL
			}
			if changed("metrics-address") {
				cfg.MetricsAddress = flags.MetricsAddress
			}
			if changed("storage-root") {
				cfg.Storage.Root = flags.Storage.Root
			}
			if changed("allow-command") {
				cfg.Operators.AllowCommand = flags.Operators.AllowCommand
			}
			if changed("pool-size") {
				cfg.Workers.PoolSize = flags.Workers.PoolSize
			}
			if err := cfg.addRuntimes(runtimes); err != nil {
				return err
			}
			if err := cfg.addFileRoots(fileRoots); err != nil {
				return err
			}
			if err := cfg.validate(); err != nil {
				return err
			}
			log, err := newLogger(c.err, cfg.Log)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, migrate, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "config", c.getenv("DAGCTL_SERVER_CONFIG"), "config file (DAGCTL_SERVER_CONFIG)")
	f.BoolVar(&migrate, "migrate", false, "bring the database's schema up to date first")
	f.StringVar(&flags.DatabaseURL, "database-url", "", "PostgreSQL: postgres://user:password@host/database (DAGCTL_DATABASE_URL)")
	f.StringVar(&flags.Listen, "listen", defaultConfig.Listen, "address to serve on (DAGCTL_LISTEN)")
	f.StringVar(&flags.WorkerListen, "worker-listen", "", "address to serve workers and tasks on, and nobody else; they are then absent from --listen (DAGCTL_WORKER_LISTEN)")
	f.StringVar(&flags.BaseURL, "base-url", "", "where callers reach this server, as it tells them (DAGCTL_BASE_URL)")
	f.StringVar(&flags.WorkerBaseURL, "worker-base-url", "", "where workers and tasks reach this server; --base-url unless set (DAGCTL_WORKER_BASE_URL)")
	f.StringVar(&flags.MetricsAddress, "metrics-address", "", "address that serves /metrics of all orgs, without a token: keep it to yourself (DAGCTL_METRICS_ADDRESS)")
	f.StringVar(&flags.Storage.Root, "storage-root", "", "folder of the datasets' files (DAGCTL_STORAGE_ROOT)")
	f.BoolVar(&flags.Operators.AllowCommand, "allow-command", false, "let DAGs run any program with this process's rights (DAGCTL_ALLOW_COMMAND)")
	f.IntVar(&flags.Workers.PoolSize, "pool-size", defaultWorkers.PoolSize, "tasks run at once in this process (DAGCTL_POOL_SIZE)")
	f.StringArrayVar(&runtimes, "runtime", nil, "map a runtime of DAG files, NAME=in-process or NAME=poll (repeatable)")
	f.StringArrayVar(&fileRoots, "file-root", nil, "folder that an org's file sources may read, ORG=DIR (repeatable)")
	return cmd
}

func (cfg *serverConfig) addRuntimes(flags []string) error {
	for _, flag := range flags {
		name, kind, ok := strings.Cut(flag, "=")
		if !ok || name == "" {
			return fault.New(fault.Invalid, "--runtime %q is not NAME=KIND", flag)
		}
		cfg.Runtimes[name] = []dispatcher.Backend{{Kind: dispatcher.RuntimeKind(kind)}}
	}
	return nil
}

func (cfg *serverConfig) addFileRoots(flags []string) error {
	for _, flag := range flags {
		org, dir, ok := strings.Cut(flag, "=")
		if !ok || org == "" || dir == "" {
			return fault.New(fault.Invalid, "--file-root %q is not ORG=DIR", flag)
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fault.New(fault.Invalid, "--file-root %q: %w", flag, err)
		}
		if cfg.FileRoots == nil {
			cfg.FileRoots = map[string][]string{}
		}
		cfg.FileRoots[org] = append(cfg.FileRoots[org], abs)
	}
	return nil
}

// serve runs a server until ctx ends. It answers at once, but is ready only when the database's schema is up to date:
// until then it waits for somebody to migrate.
func serve(ctx context.Context, cfg serverConfig, migrate bool, log *slog.Logger) error {
	listener, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	scraped := newFront(http.NotFoundHandler()) // until there is something to tell
	var scrapes net.Listener
	if cfg.MetricsAddress != "" {
		if scrapes, err = listen(cfg.MetricsAddress); err != nil {
			return err
		}
		defer scrapes.Close()
	}
	var remote net.Listener // of workers and tasks
	if cfg.WorkerListen != "" {
		if remote, err = listen(cfg.WorkerListen); err != nil {
			return err
		}
		defer remote.Close()
	}
	if migrate {
		if err := migrations.Up(ctx, cfg.DatabaseURL); err != nil {
			return err
		}
	}
	pool, err := pg.Open(ctx, cfg.DatabaseURL, pg.WithMaxConns(2))
	if err != nil {
		return err
	}
	defer pool.Close()

	var a *app
	front := newFront(startingHandler(pool))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveHTTP(ctx, listener, front) })
	remoteFront := newFront(startingHandler(pool))
	if remote != nil {
		g.Go(func() error { return serveHTTP(ctx, remote, remoteFront) })
	}
	if scrapes != nil {
		g.Go(func() error { return serveHTTP(ctx, scrapes, scraped) })
	}
	g.Go(func() (err error) {
		if waitForSchema(ctx, pool, log) != nil {
			return nil // told to stop meanwhile
		}
		if a, err = newApp(ctx, cfg, cfg.roots, nil, log); err != nil {
			return err
		}
		if remote == nil {
			front.become(a.api.Handler())
		} else {
			front.become(a.api.PeopleHandler())
			remoteFront.become(a.api.RemoteHandler())
			log.Info("serving workers and tasks", "url", "http://"+remote.Addr().String())
		}
		scraped.become(a.metricsHandler())
		log.Info("serving", "url", "http://"+listener.Addr().String(), "version", buildVersion())
		return a.work(ctx)
	})
	err = g.Wait()
	if a != nil {
		a.close()
	}
	log.Info("stopped")
	return err
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

// startingHandler is alive, and says to everything else that the server does not serve yet, and why.
func startingHandler(pool *pgxpool.Pool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reason := cmp.Or(notReady(r.Context(), pool), "the server is starting")
		rest.WriteProblem(w, r, &rest.Problem{Status: http.StatusServiceUnavailable, Detail: "not ready: " + reason})
	})
	return mux
}
