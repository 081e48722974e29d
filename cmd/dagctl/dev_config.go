package main

import (
	"cmp"
	"fmt"
	"net"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// devConfig is what a dev server is told before anything is started: defaults, then the config file, then flags.
func (o devOptions) serverConfig() (serverConfig, error) {
	cfg := defaultConfig
	cfg.Operators.AllowCommand = true // whoever starts a dev server runs its own programs on its own machine
	cfg.Operators.AllowedAddresses = []string{"127.0.0.0/8", "::1/128"}
	nobody := func(string) string { return "" } // the environment is that of the servers it talks to, not of this one
	if err := cfg.load(o.config, nobody); err != nil {
		return cfg, err
	}
	if cfg.WorkerListen != "" || cfg.MetricsAddress != "" {
		return cfg, fault.New(fault.Invalid, "config %s: worker_listen and metrics_address are not for dagctl dev, which has one address", o.config).
			WithHint("take them out, or use `dagctl serve`")
	}
	cfg.Listen = cmp.Or(o.addr, cfg.Listen)
	cfg.DatabaseURL = cmp.Or(o.databaseURL, cfg.DatabaseURL)
	return cfg, requireLoopback(cfg.Listen)
}

// completeForDev adds what is known once the data folder is open and the server listens. It returns the runtimes that the
// dev server serves itself.
func (cfg *serverConfig) completeForDev(dags []*devDAG, data *devData, listener net.Listener) (own []string, err error) {
	cfg.Listen = listener.Addr().String()
	cfg.BaseURL = "http://" + cfg.Listen
	cfg.Storage.Root = cmp.Or(cfg.Storage.Root, data.path("storage"))
	cfg.Runtimes, own = mapDevRuntimes(cfg.Runtimes, dags)
	if len(cfg.secretKeys) == 0 {
		key, err := data.secretsKey()
		if err != nil {
			return nil, err
		}
		cfg.secretKeys = []string{key}
	}
	key, err := authz.EnsureTaskKey(data.path(devTaskKeyFile))
	if err != nil {
		return nil, err
	}
	cfg.taskKeys, cfg.workerToken = []authz.TaskKey{key}, "cat "+shellWord(data.path(devWorkerTokenFile))
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("dagctl dev: %w", err)
	}
	return own, nil
}
