package dev

import (
	"cmp"
	"fmt"
	"net"
	"os"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// serverConfig returns the server's config as far as it is known before anything is started. Flags win over the config
// file, and that over the defaults.
func (o options) serverConfig() (server.Config, error) {
	cfg := server.DefaultConfig
	cfg.Operators.AllowCommand = []string{orgSlug} // the programs are those of the person who starts the dev server
	cfg.Operators.AllowedAddresses = []string{"127.0.0.0/8", "::1/128"}

	// The variables are for the servers that commands talk to, not for this one.
	noEnvironment := func(string) string { return "" }
	if err := cfg.Load(o.config, noEnvironment); err != nil {
		return cfg, err
	}
	if cfg.WorkerListen != "" || cfg.MetricsAddress != "" {
		return cfg, fault.New(fault.Invalid,
			"config %s: worker_listen and metrics_address are not for dagctl dev, which has one address", o.config).
			WithHint("remove them, or use `dagctl serve`")
	}

	cfg.Operators.CommandPaths = append(cfg.Operators.CommandPaths, operators.ToolFolders()...)
	cfg.Listen = cmp.Or(o.addr, cfg.Listen)
	cfg.DatabaseURL = cmp.Or(o.databaseURL, cfg.DatabaseURL)
	return cfg, requireLoopback(cfg.Listen)
}

// completeConfig sets the fields that depend on the open data folder and on the server's address. It returns the
// runtimes that the dev server runs workers for.
func completeConfig(cfg *server.Config, dags []*dagfile.File, data *dataFolder, listener net.Listener) (
	own []string, err error,
) {
	cfg.Listen = listener.Addr().String()
	cfg.BaseURL = "http://" + cfg.Listen
	cfg.Storage.Root = cmp.Or(cfg.Storage.Root, data.path("storage"))
	cfg.Runtimes, own = mapRuntimes(cfg.Runtimes, dags)

	if len(cfg.ExportRoots[orgSlug]) == 0 {
		exports := data.path("exports")
		if err := os.MkdirAll(exports, 0o755); err != nil {
			return nil, err
		}
		if cfg.ExportRoots == nil {
			cfg.ExportRoots = map[string][]string{}
		}
		cfg.ExportRoots[orgSlug] = []string{exports}
	}
	if len(cfg.SecretKeys) == 0 {
		key, err := data.secretsKey()
		if err != nil {
			return nil, err
		}
		cfg.SecretKeys = []string{key}
	}
	key, err := authz.EnsureTaskKey(data.path(taskKeyFile))
	if err != nil {
		return nil, err
	}
	cfg.TaskKeys = []authz.TaskKey{key}
	cfg.Hidden = []string{data.dir}
	cfg.WorkerToken = "cat " + cli.Argument(data.path(workerTokenFile))

	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("dagctl dev: %w", err)
	}
	return own, nil
}
