package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
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
			if changed("database-wait") {
				cfg.DatabaseWaitSeconds = flags.DatabaseWaitSeconds
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
	f.IntVar(&flags.DatabaseWaitSeconds, "database-wait", defaultConfig.DatabaseWaitSeconds, "seconds to wait for a database that does not answer (DAGCTL_DATABASE_WAIT_SECONDS)")
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
