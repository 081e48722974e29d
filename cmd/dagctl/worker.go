package main

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
	"github.com/dagctl/dagctl/worker/queue"
)

// workerOptions say what a worker serves and how.
type workerOptions struct {
	worker.Config
	tokenFile     string
	queue         queue.Config
	operators     []string
	builtin       operators.Options
	memoryMB      int64
	fileRoots     []string
	roots         func(org, dag string) []string // that fileRoots say
	healthAddress string
	log           logConfig
}

func (c *cli) workerCommand() *cobra.Command {
	o := workerOptions{log: defaultLog, builtin: operators.Options{}, memoryMB: defaultOperators.MemoryMB}
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run tasks of a server elsewhere: on another machine, from SQS or by long poll",
		Long: `Claims tasks of one runtime and runs the platform's operators for them, until it is told to stop. It needs the
server's address and a worker token, and no credentials of database or storage: inputs and outputs go through the server.

Without --queue it asks the server for tasks and waits there. With --queue it receives the messages of an SQS queue, each of
which names a task. On SIGTERM it claims no more and lets what runs come to its end for --drain-timeout; what still runs
then goes to other workers at once. ECS ends a container 30 s after SIGTERM.

Functions of one's own, for jobs with operator handler, run in workers built with the SDKs for Go and Python.`,
		Example: `  DAGCTL_TOKEN=... dagctl worker --url https://dagctl.example.com --runtime ecs_platform
  dagctl worker --url https://dagctl.example.com --token-file /run/secrets/worker --runtime ecs_platform \
    --queue https://sqs.eu-central-1.amazonaws.com/123456789012/dagctl-ecs --pool-size 8 --health-address :8080`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.worker(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.URL, "url", "", "server, or its address for workers (DAGCTL_URL)")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the worker token (else DAGCTL_TOKEN)")
	f.StringVar(&o.Runtime, "runtime", c.getenv("DAGCTL_RUNTIME"), "runtime of DAG files whose tasks it runs (DAGCTL_RUNTIME)")
	f.StringVar(&o.queue.URL, "queue", "", "SQS queue whose messages name the tasks; without it the server is polled")
	f.StringVar(&o.queue.Endpoint, "endpoint", "", "address of an SQS server other than AWS's")
	f.StringVar(&o.queue.Region, "region", "", "AWS region; as the AWS settings say where it is empty")
	f.IntVar(&o.PoolSize, "pool-size", worker.DefaultPoolSize, "tasks run at once")
	f.DurationVar(&o.DrainTimeout, "drain-timeout", worker.DefaultDrainTimeout, "how long tasks may go on once it is told to stop")
	f.BoolVar(&o.IdleExit, "idle-exit", false, "end when every job of the runtime is idle, or the queue was empty for five minutes")
	f.StringVar(&o.healthAddress, "health-address", "", "address that answers GET /healthz")
	f.StringArrayVar(&o.operators, "operator", nil, "run only this operator (repeatable)")
	f.StringVar(&o.ScratchDir, "scratch-dir", "", "folder for tasks' temporary files; the system's where it is empty")
	f.BoolVar(&o.builtin.AllowCommand, "allow-command", false, "let DAGs run any program with this process's rights")
	f.StringArrayVar(&o.builtin.AllowedAddresses, "allow-address", nil, "prefix (CIDR) that http_source may reach though it is private (repeatable)")
	f.Int64Var(&o.memoryMB, "memory-mb", defaultOperators.MemoryMB, "memory of each DuckDB session")
	f.IntVar(&o.builtin.Threads, "threads", 0, "threads of each DuckDB session; all that the machine has where it is 0")
	f.BoolVar(&o.builtin.UDF.Unconfined, "unsafe-udf", false, "run users' own code as an ordinary process: only where the whole machine is its wall")
	f.StringArrayVar(&o.builtin.UDF.Programs, "udf-path", nil, "folder of interpreters besides the system's that users' own code may use (repeatable)")
	f.Int64Var(&o.builtin.UDF.MemoryMB, "udf-memory-mb", 4096, "the most memory that a job may ask for, for its own code")
	f.StringArrayVar(&o.fileRoots, "file-root", nil, "folder that an org's file sources may read here, ORG=DIR (repeatable)")
	f.StringVar(&o.log.Level, "log-level", defaultLog.Level, "debug, info, warn or error")
	f.StringVar(&o.log.Format, "log-format", defaultLog.Format, "json or text")
	cmd.AddCommand(c.workerConformanceCommand())
	return cmd
}

// worker runs a worker until ctx ends, it is drained, or there is nothing to do where that is asked for.
func (c *cli) worker(ctx context.Context, o workerOptions) error {
	if err := c.readWorkerOptions(&o); err != nil {
		return err
	}
	w, err := newWorker(o)
	if err != nil {
		return err
	}
	g, serving := errgroup.WithContext(context.WithoutCancel(ctx))
	serving, stop := context.WithCancel(serving)
	if o.healthAddress != "" {
		listener, err := listen(o.healthAddress)
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

// readWorkerOptions completes the flags by what the environment and files say.
func (c *cli) readWorkerOptions(o *workerOptions) error {
	o.URL = cmp.Or(o.URL, c.getenv("DAGCTL_URL"))
	o.Token = c.getenv("DAGCTL_TOKEN")
	if o.tokenFile != "" {
		text, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return fault.New(fault.NotFound, "--token-file: %w", err)
		}
		o.Token = strings.TrimSpace(string(text))
	}
	missing := func(what, hint string) error {
		return fault.New(fault.Invalid, "%s is not given", what).WithHint("%s", hint)
	}
	switch {
	case o.URL == "":
		return missing("the server's address", "use --url or DAGCTL_URL")
	case o.Token == "":
		return missing("the worker token", "use --token-file or DAGCTL_TOKEN; an admin makes one with `dagctl tokens create NAME --kind worker`")
	case o.Runtime == "":
		return missing("the runtime", "use --runtime, with a name that DAG files use")
	case o.memoryMB < 64:
		return fault.New(fault.Invalid, "--memory-mb %d is too little; 64 is the least", o.memoryMB)
	}
	var err error
	if o.Log, err = newLogger(c.err, o.log); err != nil {
		return fault.New(fault.Invalid, "log: %w", err)
	}
	var roots serverConfig
	if err := roots.addFileRoots(o.fileRoots); err != nil {
		return err
	}
	o.Version, o.builtin.MemoryLimit, o.roots = buildVersion(), o.memoryMB<<20, roots.roots
	return nil
}

// newWorker has the platform's operators on it.
func newWorker(o workerOptions) (*worker.Worker, error) {
	w, err := worker.New(o.Config)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	registry, err := operators.Builtin(o.builtin)
	if err != nil {
		return nil, err
	}
	only := o.operators
	if err := sandbox.Available(); err != nil && !o.builtin.UDF.Unconfined {
		if slices.Contains(only, "udf") {
			return nil, err
		}
		if len(only) == 0 { // the others are served all the same
			only = slices.DeleteFunc(registry.Names(), func(name string) bool { return name == "udf" })
			o.Log.Warn("users' own code does not run here", "error", err)
		}
	}
	err = builtin.Register(w, builtin.Options{Registry: registry, Only: only, ScratchDir: o.ScratchDir, Roots: o.roots})
	if err != nil {
		return nil, fault.New(fault.Invalid, "--operator: %w", err)
	}
	return w, nil
}

// serveWorkerHealth answers whoever looks after the process: 200 while the server hears of it, 503 otherwise.
func serveWorkerHealth(ctx context.Context, listener net.Listener, w *worker.Worker) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		health := w.Health(time.Now())
		response.Header().Set("Content-Type", "application/json")
		if !health.OK {
			response.WriteHeader(http.StatusServiceUnavailable)
		}
		if err := json.NewEncoder(response).Encode(health); err != nil {
			slog.Debug("the answer to /healthz was not read", "error", err)
		}
	})
	mux.HandleFunc("/", func(response http.ResponseWriter, r *http.Request) {
		rest.WriteProblem(response, r, &rest.Problem{Status: http.StatusNotFound, Detail: "there is only GET /healthz"})
	})
	return serveHTTP(ctx, listener, mux)
}
