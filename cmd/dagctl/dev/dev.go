// Package dev runs a whole installation for one person: a PostgreSQL of its own, the server with its pages, and a
// worker for every runtime. It deploys the DAG files of a folder again on every save.
//
// Vocabulary: the data folder holds all state of a dev server; a session deploys what is saved and reports what
// happens.
package dev

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
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/migrations"
)

// orgSlug is the org of a dev server.
const orgSlug = "local"

// options are the flags of `dagctl dev`.
type options struct {
	dir         string
	addr        string // empty: the config's address
	config      string
	databaseURL string
	once        bool
	reset       bool
	unsafeUDF   bool
	vars        []string
}

// Command returns `dagctl dev`.
func Command(c *cli.CLI) *cobra.Command {
	o := options{dir: "."}
	cmd := &cobra.Command{
		Use:   "dev [DIR]",
		Short: "Run everything on this machine: PostgreSQL, server, pages, workers",
		Long: `Runs a whole installation for one person: a PostgreSQL of its own under the data folder, the server with
its pages, and a worker for every runtime. It deploys every ` + dagfile.FileName + ` under DIR, and again on every save;
after a rollback, not before the next save.
Ctrl-C stops all of it; the state stays in the data folder. It listens on loopback addresses only.

Jobs of the runtime dispatcher run in the server. For every other runtime that DAG files name, dev starts a worker that
polls and runs the platform's operators, unless --config maps that runtime to a queue, a function or workers of your
own. Jobs of operator handler wait for a worker of your own: dev prints how to start it, or runs it itself where a
dev.yaml beside the DAG file declares it, as in "workers: [{command: [python3, worker.py]}]". It starts such a worker
anew on every save of its code and after a crash, and stops it with itself.

With --once it deploys, reads the sources that are polled, works until nothing is left to do, prints the published
datasets and exits. What sources have due later is left to the next run. The exit code is 0 only if every task
completed. It gives up if a worker of a dev.yaml fails four times in a row.`,
		Example: "  dagctl dev\n  dagctl dev examples/us-flights --once\n  dagctl dev --config server.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.dir = args[0]
			}
			return run(cmd.Context(), c, o)
		},
	}

	f := cmd.Flags()
	f.StringVar(&o.addr, "addr", "",
		"loopback address to serve on; port 0 chooses a free one (default: the config's listen, or "+
			server.DefaultConfig.Listen+")")
	f.StringVar(&o.config, "config", "", "config file of a server: runtimes, storage, limits and so on")
	f.StringVar(&o.databaseURL, "database-url", "", "use this PostgreSQL instead of starting one")
	f.BoolVar(&o.once, "once", false, "work until nothing is left to do, print the datasets and exit")
	f.BoolVar(&o.reset, "reset", false, "start empty: first delete what is in the data folder")
	f.BoolVar(&o.unsafeUDF, "unsafe-udf", false, "run code of operator udf as an ordinary process, without a sandbox")
	dagfile.VarFlag(cmd, &o.vars)
	return cmd
}

// run runs a dev server until ctx ends or, with --once, until the work is done.
func run(ctx context.Context, c *cli.CLI, o options) (err error) {
	cfg, err := o.serverConfig()
	if err != nil {
		return err
	}
	vars, err := dagfile.ParseVars(o.vars)
	if err != nil {
		return err
	}
	dags, err := dagfile.Find(o.dir, vars)
	if err != nil {
		return err
	}

	data, err := openDataFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.close()) }()
	if o.reset {
		if err := data.reset(); err != nil {
			return err
		}
	}
	logFile, log, err := data.openLog()
	if err != nil {
		return err
	}
	defer logFile.Close()

	i := &installation{CLI: c, options: o, cfg: cfg, vars: vars, data: data, folders: new(dagFolders), log: log}
	i.folders.add(dags)
	return i.run(ctx, dags)
}

// installation is all that a dev server runs: a database, a server, workers, and a session that deploys.
type installation struct {
	*cli.CLI
	options options
	cfg     server.Config
	vars    map[string]string
	data    *dataFolder
	folders *dagFolders
	log     *slog.Logger

	database *pgdev.Server // nil where the config names a database
	app      *server.App
	login    *authz.Dev
	runtimes []string // that its own workers serve
}

// run starts the parts of the installation one after the other, and runs them until ctx ends or the work is done.
func (i *installation) run(ctx context.Context, dags []*dagfile.File) (err error) {
	listener, err := server.Listen(i.cfg.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()

	if i.cfg.DatabaseURL == "" {
		if err := i.startDatabase(ctx); err != nil {
			return err
		}
		defer func() {
			// The command's context has ended by now; the data must still reach the disk.
			patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			err = errors.Join(err, i.database.Stop(patience))
		}()
	}

	if i.runtimes, err = completeConfig(&i.cfg, dags, i.data, listener); err != nil {
		return err
	}
	if err := i.startServer(ctx); err != nil {
		return err
	}
	defer i.app.Close()
	fmt.Fprintf(i.Out, "dagctl dev: %s\n", i.login.SignInURL())

	if err := i.work(ctx, listener); !errors.Is(err, errDone) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// work runs server, workers and session until one of them ends.
func (i *installation) work(ctx context.Context, listener net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	started := time.Now()

	// The server outlives its workers, which must still return the tasks that they run.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g.Go(func() error { return i.app.Run(serving, listener) })
	pool, own := i.workers(), i.ownWorkers()
	g.Go(func() error {
		defer stop()
		all, ctx := errgroup.WithContext(ctx)
		all.Go(func() error { return pool.run(ctx) })
		all.Go(func() error { return own.run(ctx) })
		return all.Wait()
	})
	if i.database != nil {
		g.Go(func() error { return watchDatabase(ctx, i.database, i.data) })
	}

	target := cli.Target{URL: "http://" + listener.Addr().String(), Token: i.login.Token()}
	api := cli.NewClient(target)
	api.Wait() // a save too many must not end the dev server
	s := &session{
		CLI: i.CLI, api: api, app: i.app, org: i.login.Caller().OrgID,
		options: i.options, vars: i.vars, folders: i.folders, runtimes: i.cfg.RuntimeMap(), workers: pool, own: own,
		deployed: map[string]deployedDAG{}, started: started,
	}
	g.Go(func() error { return s.run(ctx) })
	return g.Wait()
}

// roots returns the folders that file sources may read: the DAG file's own, and those of the config.
func (i *installation) roots(org, dag string) []string {
	return append(i.folders.roots(org, dag), i.cfg.Roots(org, dag)...)
}

// noFolders returns the error of file sources of a DAG that no file under the dev server's folder has.
func (i *installation) noFolders() error {
	dir := i.options.dir
	if full, err := filepath.Abs(dir); err == nil {
		dir = full
	}
	return fault.New(fault.Forbidden, "file sources read the folder of their DAG file, but this dev server knows no "+
		"file of this DAG: it serves those under %s", dir).
		WithHint("move the %s to a folder of its own under %s, or start `dagctl dev` in the folder where it is",
			dagfile.FileName, dir)
}

// workers returns the workers of the runtimes that the config does not map.
func (i *installation) workers() platformWorkers {
	pool := platformWorkers{
		url: i.cfg.BaseURL, token: i.login.WorkerToken(), tokenCommand: i.cfg.WorkerToken, runtimes: i.runtimes,
		poolSize: i.cfg.Workers.PoolSize, scratch: filepath.Join(i.cfg.Storage.Root, ".scratch"),
		operators: i.cfg.OperatorOptions(), roots: i.roots, log: i.log,
	}
	pool.operators.UDF.Unconfined = i.options.unsafeUDF
	return pool
}

// ownWorkers returns the workers that the folders of DAG files declare.
func (i *installation) ownWorkers() *ownWorkers {
	return &ownWorkers{CLI: i.CLI, dir: i.options.dir, config: i.options.config, url: i.cfg.BaseURL,
		token: i.login.WorkerToken(), once: i.options.once, failed: make(chan error, 1), log: i.log}
}

// errDone ends a dev server with --once whose work is done.
var errDone = errors.New("done")

// startDatabase starts a PostgreSQL in the data folder.
func (i *installation) startDatabase(ctx context.Context) (err error) {
	i.database, err = pgdev.Start(ctx, pgdev.Config{
		DataDir: i.data.path("postgres"), AllowDownload: true, Log: i.log,
	})
	if err == nil {
		i.cfg.DatabaseURL = i.database.URL()
	}
	return err
}

// startServer migrates the database, creates the org if there is none, and wires the server.
func (i *installation) startServer(ctx context.Context) error {
	if err := migrations.UpFor(ctx, i.cfg.DatabaseURL, i.cfg.RequestsDatabaseURL); err != nil {
		return err
	}
	org, err := ensureOrg(ctx, i.cfg.DatabaseURL, i.database != nil)
	if err != nil {
		return err
	}
	i.login, err = authz.NewDev(authz.DevConfig{
		Org: org, Addr: i.cfg.Listen,
		TokenFile: i.data.path(cli.DevTokenFile), WorkerTokenFile: i.data.path(workerTokenFile),
	})
	if err != nil {
		return err
	}

	folders := server.Folders{Of: i.roots, None: i.noFolders()}
	if i.app, err = server.New(ctx, i.cfg, folders, i.login, i.log); err != nil {
		return err
	}
	if err := i.data.announce(cli.DevServer{URL: i.cfg.BaseURL, PID: os.Getpid()}); err != nil {
		i.app.Close()
		return err
	}
	return nil
}

// dagFolders holds the folder of each DAG file. A DAG's file sources may read it, and its paths are relative to it.
type dagFolders struct{ byName sync.Map }

func (f *dagFolders) add(dags []*dagfile.File) {
	for _, d := range dags {
		if d.Doc != nil {
			f.byName.Store(d.Doc.Name, filepath.Dir(d.Path))
		}
	}
}

func (f *dagFolders) roots(_, dag string) []string {
	if folder, ok := f.byName.Load(dag); ok {
		return []string{folder.(string)}
	}
	return nil
}

// ensureOrg returns the org of the dev server, which it creates in a new database.
func ensureOrg(ctx context.Context, databaseURL string, alone bool) (authz.Org, error) {
	pool, err := pg.Open(ctx, databaseURL, pg.WithMaxConns(2))
	if err != nil {
		return authz.Org{}, err
	}
	defer pool.Close()
	if alone { // what a killed server ran goes on at once
		if err := dispatcher.ReplaceServers(ctx, pool); err != nil {
			return authz.Org{}, err
		}
	}

	org, err := authz.OrgBySlug(ctx, pool, orgSlug)
	if fault.Is(err, fault.NotFound) {
		return authz.CreateOrg(ctx, pool, orgSlug, "Local")
	}
	return org, err
}

// requireLoopback refuses addresses that other machines can reach, because every caller of a dev server is its admin.
func requireLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fault.New(fault.Invalid, "--addr %q: %w", address, err).WithHint("use host:port, such as 127.0.0.1:7070")
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fault.New(fault.Invalid, "dagctl dev does not listen on %s, because every caller is an admin", address).
			WithHint("use 127.0.0.1, or `dagctl serve`")
	}
	return nil
}

// watchDatabase ends the dev server when its PostgreSQL does.
func watchDatabase(ctx context.Context, database *pgdev.Server, data *dataFolder) error {
	select {
	case <-ctx.Done():
		return nil
	case <-database.Done():
		return fault.New(fault.Unavailable, "PostgreSQL stopped unexpectedly").
			WithHint("see %s", data.path(filepath.Join("postgres", "postgres.log")))
	}
}

// announce writes the file by which other commands find this server.
func (d *dataFolder) announce(s cli.DevServer) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("announce the dev server: %w", err)
	}
	return cli.WritePrivate(d.path(cli.DevServerFile), text)
}
