// Package workers has the command that runs tasks of a server elsewhere, and those that list and drain the processes
// that run tasks.
package workers

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
	"github.com/dagctl/dagctl/worker/queue"
)

// Options describe a worker of the platform's operators.
type Options struct {
	worker.Config
	queue         queue.Config
	operators     []string
	Builtin       operators.Options
	memoryMB      int64
	allowCommand  string // orgs, separated by commas
	fileRoots     []string
	exportRoots   []string
	Roots         func(org, dag string) []string // folders that file sources may read, from fileRoots
	healthAddress string
	log           server.LogConfig
}

// WorkerCommand returns `dagctl worker` with its subcommands.
func WorkerCommand(c *cli.CLI) *cobra.Command {
	o := Options{log: server.DefaultLog, Builtin: operators.Options{}, memoryMB: server.DefaultOperators.MemoryMB}
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run tasks outside of the server, from a queue or by long poll",
		Long: `Claims tasks of one runtime and runs the platform's operators for them, until it receives SIGTERM or
Ctrl-C. It needs the server's address and a worker token, but no credentials for the database or the storage: inputs and
outputs go through the server.

Without --queue, the worker asks the server for tasks by long poll. With --queue, it receives messages from an SQS
queue, and each message names a task. On SIGTERM it claims no more tasks and lets the running ones finish for
--drain-timeout; it then returns the others at once, for other workers. ECS ends a container 30 s after SIGTERM.

Your own functions, for jobs of operator handler, run in workers that you build with the SDKs for Go and Python.`,
		Example: `  DAGCTL_TOKEN=... dagctl worker --url https://dagctl.example.com --runtime ecs_platform
  dagctl worker --url https://dagctl.example.com --token-file /run/secrets/worker --runtime ecs_platform \
    --queue https://sqs.eu-central-1.amazonaws.com/123456789012/dagctl-ecs --pool-size 8 --health-address :8080`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context(), c, o) },
	}

	f := cmd.Flags()
	f.StringVar(&o.URL, "url", "", "address of the server, or its address for workers (DAGCTL_URL)")
	f.StringVar(&o.TokenFile, "token-file", c.Getenv("DAGCTL_TOKEN_FILE"),
		"file with the worker token, which may be replaced meanwhile (DAGCTL_TOKEN_FILE; default: DAGCTL_TOKEN)")
	f.StringVar(&o.Runtime, "runtime", c.Getenv("DAGCTL_RUNTIME"),
		"runtime of DAG files whose tasks to run (DAGCTL_RUNTIME)")
	f.StringVar(&o.queue.URL, "queue", "", "SQS queue whose messages name the tasks (default: poll the server)")
	f.StringVar(&o.queue.Endpoint, "endpoint", "", "endpoint of SQS (default: that of AWS)")
	f.StringVar(&o.queue.Region, "region", "", "AWS region (default: that of the AWS settings)")
	f.IntVar(&o.PoolSize, "pool-size", worker.DefaultPoolSize, "number of tasks that run at once")
	f.DurationVar(&o.DrainTimeout, "drain-timeout", worker.DefaultDrainTimeout,
		"how long running tasks may take after SIGTERM")
	f.BoolVar(&o.IdleExit, "idle-exit", false,
		"exit when every job of the runtime is idle, or the queue was empty for five minutes")
	f.StringVar(&o.healthAddress, "health-address", "", "address that serves GET /healthz")
	f.StringArrayVar(&o.operators, "operator", nil, "run only this operator (repeatable)")
	f.StringVar(&o.ScratchDir, "scratch-dir", "", "folder for temporary files of tasks (default: that of the system)")
	f.StringVar(&o.allowCommand, "allow-command", "",
		"orgs whose DAGs may run programs here, behind walls, separated by commas")
	f.StringArrayVar(&o.Builtin.Command.Paths, "command-path", nil,
		"file or folder that programs may also read and run (repeatable)")
	f.StringArrayVar(&o.Builtin.Command.Shared, "command-shared", nil,
		"folder that programs may also write to (repeatable)")
	f.StringArrayVar(&o.Builtin.AllowedAddresses, "allow-address", nil,
		"private prefix (CIDR) that http_source and http_api may reach all the same (repeatable)")
	f.Int64Var(&o.memoryMB, "memory-mb", server.DefaultOperators.MemoryMB, "memory of each DuckDB session")
	f.IntVar(&o.Builtin.Threads, "threads", 0, "threads of each DuckDB session; 0 means all of the machine")
	f.BoolVar(&o.Builtin.UDF.Unconfined, "unsafe-udf", false,
		"run users' code as an ordinary process, without a sandbox: only where the machine itself is one")
	f.StringArrayVar(&o.Builtin.UDF.Programs, "udf-path", nil,
		"folder of more interpreters that users' code may use (repeatable)")
	f.Int64Var(&o.Builtin.UDF.MemoryMB, "udf-memory-mb", 4096, "maximum memory that a job may request for users' code")
	f.StringArrayVar(&o.fileRoots, "file-root", nil,
		"folder that an org's file sources may read on this machine, ORG=DIR (repeatable)")
	f.StringArrayVar(&o.exportRoots, "export-root", nil,
		"folder that an org's exports may write on this machine, ORG=DIR (repeatable)")
	f.StringVar(&o.log.Level, "log-level", server.DefaultLog.Level, "debug, info, warn or error")
	f.StringVar(&o.log.Format, "log-format", server.DefaultLog.Format, "json or text")
	cmd.AddCommand(workerConformanceCommand(c))
	return cmd
}

// runWorker runs a worker until ctx ends, the worker is drained or, with --idle-exit, there is nothing to do.
func runWorker(ctx context.Context, c *cli.CLI, o Options) error {
	if err := readWorkerOptions(c, &o); err != nil {
		return err
	}
	w, err := New(o)
	if err != nil {
		return err
	}

	g, serving := errgroup.WithContext(context.WithoutCancel(ctx))
	serving, stop := context.WithCancel(serving)
	if o.healthAddress != "" {
		listener, err := server.Listen(o.healthAddress)
		if err != nil {
			stop()
			return err
		}
		g.Go(func() error { return serveWorkerHealth(serving, listener, w) })
	}

	o.Log.Info("working", "worker", w.ID(), "runtime", o.Runtime, "queue", o.queue.URL, "url", o.URL)
	g.Go(func() error {
		defer stop()
		if o.queue.URL == "" {
			return w.Run(ctx)
		}
		messages, err := queue.New(ctx, w, o.queue)
		if err != nil {
			return err
		}
		return w.Serve(ctx, messages)
	})

	err = g.Wait()
	o.Log.Info("stopped", "worker", w.ID())
	return err
}

// readWorkerOptions completes the flags from the environment and from files, and checks them.
func readWorkerOptions(c *cli.CLI, o *Options) error {
	o.URL = cmp.Or(o.URL, c.Getenv("DAGCTL_URL"))
	o.Token = c.Getenv("DAGCTL_TOKEN")
	if o.TokenFile != "" {
		if _, err := os.ReadFile(o.TokenFile); err != nil {
			return fault.New(fault.NotFound, "--token-file: %w", err)
		}
	}

	var err error
	if o.Builtin.Command.Orgs, err = server.OrgsOf("--allow-command", o.allowCommand); err != nil {
		return err
	}
	missing := func(what, hint string) error {
		return fault.New(fault.Invalid, "%s is missing", what).WithHint("%s", hint)
	}
	switch {
	case o.URL == "":
		return missing("the server's address", "use --url or DAGCTL_URL")
	case o.Token == "" && o.TokenFile == "":
		return missing("the worker token",
			"use --token-file or DAGCTL_TOKEN; an admin creates a token with `dagctl tokens create NAME --kind worker`")
	case o.Runtime == "":
		return missing("the runtime", "use --runtime with a name that DAG files use")
	case o.memoryMB < 64:
		return fault.New(fault.Invalid, "--memory-mb %d is too little; 64 is the least", o.memoryMB)
	}

	if o.Log, err = server.NewLogger(c.Err, o.log); err != nil {
		return fault.New(fault.Invalid, "log: %w", err)
	}
	var roots server.Config
	if err := roots.AddFileRoots(o.fileRoots); err != nil {
		return err
	}
	if err := roots.AddExportRoots(o.exportRoots); err != nil {
		return err
	}

	o.Builtin.ExportRoots = roots.ExportRoots
	o.Version, o.Builtin.MemoryLimit, o.Roots = cli.Version(), o.memoryMB<<20, roots.Roots
	return nil
}

// New returns a worker with the platform's operators. Without a sandbox, tasks of operator udf, which runs users' code,
// fail with an error that says what the machine lacks: left out, they would wait for ever where no other worker is.
func New(o Options) (*worker.Worker, error) {
	w, err := worker.New(o.Config)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	if o.Builtin.Engines == nil {
		if o.Builtin.Engines, err = engine.New(engine.Config{Dir: o.ScratchDir}); err != nil {
			return nil, err
		}
	}
	registry, err := standard.New(o.Builtin)
	if err != nil {
		return nil, err
	}

	only := o.operators
	if err := sandbox.Available(); err != nil && !o.Builtin.UDF.Unconfined {
		if slices.Contains(only, "udf") {
			return nil, err
		}
		if len(only) == 0 {
			o.Log.Warn("tasks of operator udf fail on this worker: it cannot run users' code", "error", err)
		}
	}

	if err := (&operators.Runner{ScratchDir: o.ScratchDir}).Sweep(); err != nil {
		o.Log.Warn("folders of tasks whose worker was killed stay", "error", err)
	}
	err = builtin.Register(w, builtin.Options{
		Registry: registry, Only: only, ScratchDir: o.ScratchDir, Roots: o.Roots,
	})
	if err != nil {
		return nil, fault.New(fault.Invalid, "--operator: %w", err)
	}
	return w, nil
}

// serveWorkerHealth answers 200 while the worker is in contact with the server, and 503 otherwise.
func serveWorkerHealth(ctx context.Context, listener net.Listener, w *worker.Worker) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		health := w.Health(time.Now())
		response.Header().Set("Content-Type", "application/json")
		if !health.OK {
			response.WriteHeader(http.StatusServiceUnavailable)
		}
		if err := json.NewEncoder(response).Encode(health); err != nil {
			slog.Debug("write the answer to /healthz", "error", err)
		}
	})

	mux.HandleFunc("/", func(response http.ResponseWriter, r *http.Request) {
		rest.WriteProblem(response, r, &rest.Problem{Status: http.StatusNotFound, Detail: "there is only GET /healthz"})
	})
	return server.ServeHTTP(ctx, listener, mux)
}
