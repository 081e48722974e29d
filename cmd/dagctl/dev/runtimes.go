package dev

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/cmd/dagctl/workers"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
)

// A dev server has every runtime that a DAG file may name. The config file maps some. For every other name but
// `dispatcher`, the dev server starts a worker that polls, as workers of a server do: what works here works there. Jobs
// of operator `handler` wait for a program of the user's own.

// commonRuntimes are mapped even if no DAG file names them yet.
var commonRuntimes = []string{"ecs_platform", "ecs_udf", "lambda"}

// mapRuntimes returns the runtimes of the config together with those that it does not map, and these as own: the dev
// server runs a worker for each of them.
func mapRuntimes(configured server.RuntimesConfig, dags []*dagfile.File) (all server.RuntimesConfig, own []string) {
	all = maps.Clone(configured)
	names := slices.Clone(commonRuntimes)
	for _, d := range dags {
		if d.Doc == nil {
			continue // the deploy reports its problems
		}
		for _, job := range d.Doc.Jobs {
			names = append(names, job.Runtime)
		}
	}

	for _, name := range names {
		if _, mapped := all[name]; !mapped {
			all[name] = []backends.Backend{{Kind: backends.Poll}}
			own = append(own, name)
		}
	}
	return all, own
}

// platformWorkers run the platform's operators for the runtimes that the config does not map.
type platformWorkers struct {
	url, token   string
	tokenCommand string // shell command that prints token
	runtimes     []string
	poolSize     int
	scratch      string
	operators    operators.Options
	roots        func(org, dag string) []string
	log          *slog.Logger
}

func (d platformWorkers) serves(runtime string) bool { return slices.Contains(d.runtimes, runtime) }

// run works until ctx ends. It then returns its tasks at once, for the next start to run.
func (d platformWorkers) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, runtime := range d.runtimes {
		w, err := workers.New(workers.Options{
			Config: worker.Config{
				URL: d.url, Token: d.token, Runtime: runtime, PoolSize: d.poolSize, Version: cli.Version(),
				DrainTimeout: time.Millisecond, ScratchDir: d.scratch, Log: d.log.With("runtime", runtime),
			},
			Builtin: d.operators, Roots: d.roots,
		})
		if err != nil {
			return err
		}
		g.Go(func() error { return w.Run(ctx) })
	}
	return g.Wait()
}

// handlerJob is a job that calls a function in a worker of the user's own.
type handlerJob struct{ address, runtime, handler string }

// handlerJobs returns the jobs of a DAG that call functions in workers of the user's own.
func handlerJobs(doc *dag.Document) (jobs []handlerJob) {
	for _, job := range doc.Jobs {
		if name, _ := job.Config["handler"].(string); job.Operator == dag.Handler {
			jobs = append(jobs, handlerJob{doc.Name + "/" + job.Name, job.Runtime, name})
		}
	}
	return jobs
}

// reportWaiting prints which jobs of a deployed DAG cannot run yet, and how to start the workers that they need.
func (s *session) reportWaiting(ctx context.Context, d *dagfile.File) error {
	doc := d.Doc
	waits := s.Style(s.Out).Busy("waits")
	ownCode := func(job dag.Job) bool { return job.Operator == dag.OwnCode && s.workers.serves(job.Runtime) }
	if !s.options.unsafeUDF && slices.ContainsFunc(doc.Jobs, ownCode) { // else nobody asks: an answer takes a process
		if err := sandbox.Available(); err != nil {
			fmt.Fprintf(s.Out, "%s jobs of operator udf: %v\n", s.Style(s.Out).Bad("fails"), err)
			fmt.Fprintln(s.Out, "  `dagctl dev --unsafe-udf` runs them without a sandbox")
		}
	}

	jobs := handlerJobs(doc)
	if len(jobs) == 0 || s.own.serves(filepath.Dir(d.Path)) {
		return nil
	}
	workers, err := cli.Fetch[dispatcher.Worker](ctx, s.api, "/v1/workers", nil, cli.Page{Limit: 500})
	if err != nil {
		return err
	}
	jobs = slices.DeleteFunc(jobs, func(job handlerJob) bool {
		return slices.ContainsFunc(workers, func(w dispatcher.Worker) bool {
			return w.State == "live" && slices.Contains(w.Runtimes, job.runtime) &&
				slices.Contains(w.Operators, dag.Handler+":"+job.handler)
		})
	})

	for _, job := range jobs {
		fmt.Fprintf(s.Out, "%s %s is for a worker of yours: handler %s on the runtime %s\n",
			waits, job.address, job.handler, job.runtime)
	}
	if len(jobs) > 0 {
		fmt.Fprintf(s.Out, "  start it with DAGCTL_URL=%s DAGCTL_TOKEN=$(%s)\n", s.api.Target.URL,
			s.workers.tokenCommand)
	}
	return nil
}
