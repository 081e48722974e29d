package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/migrations"
)

// devOrg is the org of a dev server.
const devOrg = "local"

// devOptions say what `dagctl dev` is to do.
type devOptions struct {
	dir         string
	addr        string // empty: as the config says
	config      string
	databaseURL string
	once        bool
	reset       bool
	unsafeUDF   bool
	vars        []string
}

func (c *cli) devCommand() *cobra.Command {
	o := devOptions{dir: "."}
	cmd := &cobra.Command{
		Use:   "dev [DIR]",
		Short: "Run everything on this machine: PostgreSQL, server, pages, workers",
		Long: `Runs a whole installation for one person: a PostgreSQL of its own under the data folder, the server with its pages,
and a worker for every runtime. It deploys every ` + dagFileName + ` under DIR, and again on every save.
Ctrl-C stops all of it; the state stays in the data folder. It listens on loopback addresses only.

Jobs of the runtime dispatcher run in the server; for every other name that DAG files have there is a worker that polls and
runs the platform's operators, unless --config maps the name: to a queue, a function, workers of your own. Jobs of
operator handler wait for a worker of your own, and dev prints how to start it.

With --once it deploys, works until there is nothing left to do, prints the published datasets and ends; its exit code
is 0 only if every task completed.`,
		Example: "  dagctl dev\n  dagctl dev examples/us-flights --once\n  dagctl dev --config dev.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.dir = args[0]
			}
			return c.dev(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "addr", "", "loopback address to serve on; port 0 chooses a free one (default "+defaultConfig.Listen+", or the config's listen)")
	f.StringVar(&o.config, "config", "", "config file, as of a server: runtimes, storage, limits and so on")
	f.StringVar(&o.databaseURL, "database-url", "", "use this PostgreSQL instead of one of its own")
	f.BoolVar(&o.once, "once", false, "work until nothing is left to do, print the datasets and end")
	f.BoolVar(&o.reset, "reset", false, "start empty: forget everything in the data folder first")
	f.BoolVar(&o.unsafeUDF, "unsafe-udf", false, "run code of operator udf as an ordinary process, without walls")
	varFlag(cmd, &o.vars)
	return cmd
}

// dev runs a dev server until ctx ends, or until the work is done where that is asked for.
func (c *cli) dev(ctx context.Context, o devOptions) (err error) {
	cfg, err := o.serverConfig()
	if err != nil {
		return err
	}
	vars, err := parseVars(o.vars)
	if err != nil {
		return err
	}
	dags, err := findDAGs(o.dir, vars)
	if err != nil {
		return err
	}
	data, err := openDevData(c.dataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.close()) }()
	if o.reset {
		if err := data.reset(); err != nil {
			return err
		}
	}
	listener, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	logFile, log, err := data.openLog()
	if err != nil {
		return err
	}
	defer logFile.Close()

	var database *pgdev.Server
	if cfg.DatabaseURL == "" {
		database, err = pgdev.Start(ctx, pgdev.Config{DataDir: data.path("postgres"), AllowDownload: true, Log: log})
		if err != nil {
			return err
		}
		defer func() {
			// The command's context has ended by now; the data must still reach the disk.
			patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			err = errors.Join(err, database.Stop(patience))
		}()
		cfg.DatabaseURL = database.URL()
	}
	folders := new(dagFolders)
	folders.learn(dags)
	own, err := cfg.completeForDev(dags, data, listener)
	if err != nil {
		return err
	}
	roots := func(org, dag string) []string { return append(folders.roots(org, dag), cfg.roots(org, dag)...) }
	a, login, err := c.startDev(ctx, cfg, roots, data, log)
	if err != nil {
		return err
	}
	defer a.close()
	fmt.Fprintf(c.out, "dagctl dev: %s\n", login.SignInURL())

	g, ctx := errgroup.WithContext(ctx)
	// The server outlives its workers, who still have to hand back what they run.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g.Go(func() error { return a.run(serving, listener) })
	workers := devWorkers{url: cfg.BaseURL, token: login.WorkerToken(), getToken: cfg.workerToken, runtimes: own,
		poolSize: cfg.Workers.PoolSize, scratch: filepath.Join(cfg.Storage.Root, ".scratch"), roots: roots, log: log, operators: cfg.operators()}
	workers.operators.UDF.Unconfined = o.unsafeUDF
	g.Go(func() error {
		defer stop()
		return workers.run(ctx)
	})
	if database != nil {
		g.Go(func() error { return watchDatabase(ctx, database, data) })
	}
	session := &devSession{cli: c, api: newClient(target{URL: "http://" + listener.Addr().String(), Token: login.Token()}),
		app: a, org: login.Caller().OrgID, options: o, vars: vars, folders: folders, runtimes: cfg.runtimes(), workers: workers,
		known: map[string]deployedDAG{}}
	g.Go(func() error { return session.run(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, errDone) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// errDone ends a dev server whose work is done.
var errDone = errors.New("done")

// startDev migrates the database, makes the org and wires the server.
func (c *cli) startDev(ctx context.Context, cfg serverConfig, roots func(org, dag string) []string, data *devData, log *slog.Logger) (*app, *authz.Dev, error) {
	if err := migrations.Up(ctx, cfg.DatabaseURL); err != nil {
		return nil, nil, err
	}
	org, err := ensureOrg(ctx, cfg.DatabaseURL)
	if err != nil {
		return nil, nil, err
	}
	login, err := authz.NewDev(authz.DevConfig{Org: org, Addr: cfg.Listen, TokenFile: data.path(devTokenFile), WorkerTokenFile: data.path(devWorkerTokenFile)})
	if err != nil {
		return nil, nil, err
	}
	a, err := newApp(ctx, cfg, roots, login, log)
	if err != nil {
		return nil, nil, err
	}
	if err := data.announce(devServer{URL: cfg.BaseURL, PID: os.Getpid()}); err != nil {
		a.close()
		return nil, nil, err
	}
	return a, login, nil
}

// dagFolders knows the folder of each DAG's file, which is what its file sources may read and paths are relative to.
type dagFolders struct{ byName sync.Map }

func (f *dagFolders) learn(dags []*devDAG) {
	for _, d := range dags {
		if d.doc != nil {
			f.byName.Store(d.doc.Name, filepath.Dir(d.path))
		}
	}
}

func (f *dagFolders) roots(_, dag string) []string {
	if folder, ok := f.byName.Load(dag); ok {
		return []string{folder.(string)}
	}
	return nil
}

func ensureOrg(ctx context.Context, databaseURL string) (authz.Org, error) {
	pool, err := pg.Open(ctx, databaseURL, pg.WithMaxConns(2))
	if err != nil {
		return authz.Org{}, err
	}
	defer pool.Close()
	org, err := authz.OrgBySlug(ctx, pool, devOrg)
	if fault.Is(err, fault.NotFound) {
		return authz.CreateOrg(ctx, pool, devOrg, "Local")
	}
	return org, err
}

// requireLoopback refuses to let other machines in: whoever reaches a dev server is its admin.
func requireLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fault.New(fault.Invalid, "--addr %q: %w", address, err).WithHint("use host:port, such as 127.0.0.1:7070")
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fault.New(fault.Invalid, "dagctl dev lets anyone who reaches it in as admin, so it does not listen on %s", address).
			WithHint("use 127.0.0.1, or `dagctl serve`")
	}
	return nil
}

// watchDatabase ends the dev server when its PostgreSQL does.
func watchDatabase(ctx context.Context, database *pgdev.Server, data *devData) error {
	select {
	case <-ctx.Done():
		return nil
	case <-database.Done():
		return fault.New(fault.Unavailable, "PostgreSQL has ended by itself").WithHint("see %s", data.path(filepath.Join("postgres", "postgres.log")))
	}
}

// announce lets other commands find this server.
func (d *devData) announce(s devServer) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("announce the dev server: %w", err)
	}
	return writePrivate(d.path(devServerFile), text)
}
