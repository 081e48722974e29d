package server

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/internal/fault"
)

// ServeCommand returns `dagctl serve`.
func ServeCommand(c *cli.CLI) *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server: API, pages, dispatcher",
		Long: `Runs a server until it receives SIGTERM or Ctrl-C. Flags win over DAGCTL_* variables, and those over the
config file. Any number of servers can run on one database; none holds state. Every caller needs a service token:
` + "`dagctl admin bootstrap`" + ` creates the first org and its first token.`,
		Example: "  dagctl serve --database-url postgres://dagctl:secret@db/dagctl --storage-root " +
			"/var/lib/dagctl/data " +
			"--migrate\n  dagctl serve --config /etc/dagctl/config.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := flags.config(cmd.Flags().Changed, c.Getenv)
			if err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return err
			}

			log, err := NewLogger(c.Err, cfg.Log)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, flags.migrate, log)
		},
	}
	flags.add(cmd.Flags(), c.Getenv)
	return cmd
}

// serveFlags are the flags of `dagctl serve`.
type serveFlags struct {
	path        string // of the config file
	migrate     bool
	fields      Config // the fields of the config that have a flag, see flagFields
	fileRoots   []string
	exportRoots []string
	runtimes    []string
}

// flagFields lists, by the name of its flag, how a field of the flags' config goes into that of the server.
var flagFields = map[string]func(to, from *Config){
	"database-url":    func(to, from *Config) { to.DatabaseURL = from.DatabaseURL },
	"database-wait":   func(to, from *Config) { to.DatabaseWaitSeconds = from.DatabaseWaitSeconds },
	"listen":          func(to, from *Config) { to.Listen = from.Listen },
	"worker-listen":   func(to, from *Config) { to.WorkerListen = from.WorkerListen },
	"base-url":        func(to, from *Config) { to.BaseURL = from.BaseURL },
	"worker-base-url": func(to, from *Config) { to.WorkerBaseURL = from.WorkerBaseURL },
	"metrics-address": func(to, from *Config) { to.MetricsAddress = from.MetricsAddress },
	"storage-root":    func(to, from *Config) { to.Storage.Root = from.Storage.Root },
	"allow-command":   func(to, from *Config) { to.Operators.AllowCommand = from.Operators.AllowCommand },
	"pool-size":       func(to, from *Config) { to.Workers.PoolSize = from.Workers.PoolSize },
}

func (s *serveFlags) add(f *pflag.FlagSet, getenv func(string) string) {
	f.StringVar(&s.path, "config", getenv("DAGCTL_SERVER_CONFIG"), "config file (DAGCTL_SERVER_CONFIG)")
	f.BoolVar(&s.migrate, "migrate", false, "migrate the database's schema first")

	f.StringVar(&s.fields.DatabaseURL, "database-url", "",
		"PostgreSQL: postgres://user:password@host/database (DAGCTL_DATABASE_URL)")
	f.IntVar(&s.fields.DatabaseWaitSeconds, "database-wait", DefaultConfig.DatabaseWaitSeconds,
		"seconds to wait for a database that does not answer (DAGCTL_DATABASE_WAIT_SECONDS)")
	f.StringVar(&s.fields.Listen, "listen", DefaultConfig.Listen, "address to serve on (DAGCTL_LISTEN)")
	f.StringVar(&s.fields.WorkerListen, "worker-listen", "",
		"address that serves workers and tasks only, which --listen then does not serve (DAGCTL_WORKER_LISTEN)")
	f.StringVar(&s.fields.BaseURL, "base-url", "",
		"address of this server in what it sends to callers (DAGCTL_BASE_URL)")
	f.StringVar(&s.fields.WorkerBaseURL, "worker-base-url", "",
		"address of this server for workers and tasks (DAGCTL_WORKER_BASE_URL; default: --base-url)")
	f.StringVar(&s.fields.MetricsAddress, "metrics-address", "",
		"private address that serves /metrics of all orgs without a token (DAGCTL_METRICS_ADDRESS)")
	f.StringVar(&s.fields.Storage.Root, "storage-root", "", "folder of the datasets' files (DAGCTL_STORAGE_ROOT)")
	f.StringSliceVar((*[]string)(&s.fields.Operators.AllowCommand), "allow-command", nil,
		"orgs whose DAGs may run programs, separated by commas (DAGCTL_ALLOW_COMMAND)")
	f.IntVar(&s.fields.Workers.PoolSize, "pool-size", defaultWorkers.PoolSize,
		"number of tasks that run at once in this process (DAGCTL_POOL_SIZE)")

	f.StringArrayVar(&s.runtimes, "runtime", nil,
		"map a runtime of DAG files, NAME=in-process or NAME=poll (repeatable)")
	f.StringArrayVar(&s.fileRoots, "file-root", nil,
		"folder that an org's file sources may read, ORG=DIR (repeatable)")
	f.StringArrayVar(&s.exportRoots, "export-root", nil,
		"folder that an org's exports may write, ORG=DIR (repeatable)")
}

// config returns the config of the file and the environment, changed by the flags that were given.
func (s *serveFlags) config(given func(flag string) bool, getenv func(string) string) (Config, error) {
	cfg, err := loadConfig(s.path, getenv)
	if err != nil {
		return cfg, err
	}
	for flag, set := range flagFields {
		if given(flag) {
			set(&cfg, &s.fields)
		}
	}

	if err := cfg.addRuntimes(s.runtimes); err != nil {
		return cfg, err
	}
	if err := cfg.AddFileRoots(s.fileRoots); err != nil {
		return cfg, err
	}
	return cfg, cfg.AddExportRoots(s.exportRoots)
}

func (cfg *Config) addRuntimes(flags []string) error {
	for _, flag := range flags {
		name, kind, ok := strings.Cut(flag, "=")
		if !ok || name == "" {
			return fault.New(fault.Invalid, "--runtime %q is not NAME=KIND", flag)
		}
		cfg.Runtimes[name] = []backends.Backend{{Kind: backends.RuntimeKind(kind)}}
	}
	return nil
}

// AddFileRoots adds the folders that --file-root flags name, each as ORG=DIR.
func (cfg *Config) AddFileRoots(flags []string) error {
	return addRoots(&cfg.FileRoots, "--file-root", flags)
}

// AddExportRoots adds the folders that --export-root flags name, each as ORG=DIR.
func (cfg *Config) AddExportRoots(flags []string) error {
	return addRoots(&cfg.ExportRoots, "--export-root", flags)
}

func addRoots(roots *map[string][]string, name string, flags []string) error {
	for _, flag := range flags {
		org, dir, ok := strings.Cut(flag, "=")
		if !ok || org == "" || dir == "" {
			return fault.New(fault.Invalid, "%s %q is not ORG=DIR", name, flag)
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fault.New(fault.Invalid, "%s %q: %w", name, flag, err)
		}
		if *roots == nil {
			*roots = map[string][]string{}
		}
		(*roots)[org] = append((*roots)[org], abs)
	}
	return nil
}
