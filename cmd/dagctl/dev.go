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
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
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
	addr        string
	databaseURL string
	once        bool
	reset       bool
	vars        []string
}

func (c *cli) devCommand() *cobra.Command {
	o := devOptions{dir: "."}
	cmd := &cobra.Command{
		Use:   "dev [DIR]",
		Short: "Run everything on this machine: PostgreSQL, server, pages, workers",
		Long: `Runs a whole installation for one person: a PostgreSQL of its own under the data folder, the server with its pages,
and a worker in the same process for every runtime. It deploys every ` + dagFileName + ` under DIR, and again on every save.
Ctrl-C stops all of it; the state stays in the data folder. It listens on loopback addresses only.

With --once it deploys, works until there is nothing left to do, prints the published datasets and ends; its exit code
is 0 only if every task completed.`,
		Example: "  dagctl dev\n  dagctl dev examples/us-flights --once",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.dir = args[0]
			}
			return c.dev(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "addr", "127.0.0.1:7070", "loopback address to serve on; port 0 chooses a free one")
	f.StringVar(&o.databaseURL, "database-url", "", "use this PostgreSQL instead of one of its own")
	f.BoolVar(&o.once, "once", false, "work until nothing is left to do, print the datasets and end")
	f.BoolVar(&o.reset, "reset", false, "start empty: forget everything in the data folder first")
	varFlag(cmd, &o.vars)
	return cmd
}

// dev runs a dev server until ctx ends, or until the work is done where that is asked for.
func (c *cli) dev(ctx context.Context, o devOptions) (err error) {
	if err := requireLoopback(o.addr); err != nil {
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
	listener, err := listen(o.addr)
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
	if o.databaseURL == "" {
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
		o.databaseURL = database.URL()
	}
	folders := new(dagFolders)
	folders.learn(dags)
	a, login, err := c.startDev(ctx, o, dags, folders, data, listener, log)
	if err != nil {
		return err
	}
	defer a.close()
	fmt.Fprintf(c.out, "dagctl dev: %s\n", login.SignInURL())

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.run(ctx, listener) })
	if database != nil {
		g.Go(func() error { return watchDatabase(ctx, database, data) })
	}
	session := &devSession{cli: c, api: newClient(target{URL: "http://" + listener.Addr().String(), Token: login.Token()}),
		app: a, org: login.Caller().OrgID, options: o, vars: vars, folders: folders, known: map[string]deployedDAG{}}
	g.Go(func() error { return session.run(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, errDone) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// errDone ends a dev server whose work is done.
var errDone = errors.New("done")

// startDev migrates the database, makes the org and wires the server.
func (c *cli) startDev(ctx context.Context, o devOptions, dags []*devDAG, folders *dagFolders, data *devData, listener net.Listener, log *slog.Logger) (*app, *authz.Dev, error) {
	if err := migrations.Up(ctx, o.databaseURL); err != nil {
		return nil, nil, err
	}
	org, err := ensureOrg(ctx, o.databaseURL)
	if err != nil {
		return nil, nil, err
	}
	address := listener.Addr().String()
	login, err := authz.NewDev(authz.DevConfig{Org: org, Addr: address, TokenFile: data.path(devTokenFile)})
	if err != nil {
		return nil, nil, err
	}
	cfg := defaultConfig
	cfg.DatabaseURL, cfg.Listen, cfg.Storage.Root = o.databaseURL, address, data.path("storage")
	cfg.BaseURL = "http://" + address
	cfg.Runtimes = devRuntimes(dags)
	cfg.Operators.AllowCommand = true // whoever starts a dev server runs its own programs on its own machine
	cfg.Operators.AllowedAddresses = []string{"127.0.0.0/8", "::1/128"}
	key, err := data.secretsKey()
	if err != nil {
		return nil, nil, err
	}
	cfg.secretKeys = []string{key}
	taskKey, err := authz.EnsureTaskKey(data.path(devTaskKeyFile))
	if err != nil {
		return nil, nil, err
	}
	cfg.taskKeys = []authz.TaskKey{taskKey}
	a, err := newApp(ctx, cfg, folders.roots, login, log)
	if err != nil {
		return nil, nil, err
	}
	if err := data.announce(devServer{URL: "http://" + address, PID: os.Getpid()}); err != nil {
		a.close()
		return nil, nil, err
	}
	return a, login, nil
}

// devBackends are what a dev server makes of every runtime but the dispatcher's own: it runs what it can itself, and leaves
// to workers that poll what only they have.
func devBackends() []dispatcher.Backend {
	return []dispatcher.Backend{{Kind: dispatcher.Poll, Operators: []string{dag.Handler}}, {Kind: dispatcher.InProcess}}
}

// devRuntimes maps the platform's runtimes and all that the DAG files name.
func devRuntimes(dags []*devDAG) runtimesConfig {
	runtimes := runtimesConfig{}
	for _, name := range []string{"ecs_platform", "ecs_udf", "lambda"} {
		runtimes[name] = devBackends()
	}
	for _, d := range dags {
		if d.doc == nil {
			continue // its problems are told when it is deployed
		}
		for _, job := range d.doc.Jobs {
			runtimes[job.Runtime] = devBackends()
		}
	}
	runtimes["dispatcher"] = []dispatcher.Backend{{Kind: dispatcher.InProcess}}
	return runtimes
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
