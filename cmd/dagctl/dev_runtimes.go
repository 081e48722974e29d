package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
)

// A dev server has every runtime that a DAG file may name. What its config file maps goes where that says; tasks of all
// other names but `dispatcher` are polled for, as on a server that has workers, and the dev server starts a worker for
// each: what works here works there. Jobs of operator `handler` wait for a program of the user's own.

// devRuntimeNames are those of any installation.
var devRuntimeNames = []string{"ecs_platform", "ecs_udf", "lambda"}

// mapDevRuntimes maps the runtimes that the config does not, and returns those: they are the dev server's own to serve.
func mapDevRuntimes(configured runtimesConfig, dags []*devDAG) (all runtimesConfig, own []string) {
	all = maps.Clone(configured)
	names := slices.Clone(devRuntimeNames)
	for _, d := range dags {
		if d.doc == nil {
			continue // its problems are told when it is deployed
		}
		for _, job := range d.doc.Jobs {
			names = append(names, job.Runtime)
		}
	}
	for _, name := range names {
		if _, mapped := all[name]; !mapped {
			all[name] = []dispatcher.Backend{{Kind: dispatcher.Poll}}
			own = append(own, name)
		}
	}
	return all, own
}

// devWorkers run the platform's operators for the runtimes that a dev server serves itself.
type devWorkers struct {
	url, token string
	getToken   string // shell command that prints token
	runtimes   []string
	poolSize   int
	scratch    string
	operators  operators.Options
	roots      func(org, dag string) []string
	log        *slog.Logger
}

func (d devWorkers) serves(runtime string) bool { return slices.Contains(d.runtimes, runtime) }

// run works until ctx ends. What runs then is handed back at once: the next start takes it up.
func (d devWorkers) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, runtime := range d.runtimes {
		w, err := newWorker(workerOptions{
			Config: worker.Config{URL: d.url, Token: d.token, Runtime: runtime, PoolSize: d.poolSize, Version: buildVersion(),
				DrainTimeout: time.Millisecond, ScratchDir: d.scratch, Log: d.log.With("runtime", runtime)},
			builtin: d.operators, roots: d.roots,
		})
		if err != nil {
			return err
		}
		g.Go(func() error { return w.Run(ctx) })
	}
	return g.Wait()
}

// handlerJob is a job that waits for a worker of the user's own.
type handlerJob struct{ address, runtime, handler string }

// handlersOf lists the jobs of a DAG that call functions of workers.
func handlersOf(doc *dag.Document) (jobs []handlerJob) {
	for _, job := range doc.Jobs {
		if name, _ := job.Config["handler"].(string); job.Operator == dag.Handler {
			jobs = append(jobs, handlerJob{doc.Name + "/" + job.Name, job.Runtime, name})
		}
	}
	return jobs
}

// tellWorkers says which workers the jobs of a deployed DAG wait for, and how to start one, where none is there.
func (s *devSession) tellWorkers(ctx context.Context, doc *dag.Document) error {
	own := func(job dag.Job) bool { return job.Operator == dag.OwnCode && s.workers.serves(job.Runtime) }
	if walls := sandbox.Available(); walls != nil && !s.options.unsafeUDF && slices.ContainsFunc(doc.Jobs, own) {
		fmt.Fprintf(s.out, "%s jobs of operator udf: %v\n  `dagctl dev --unsafe-udf` runs them without walls\n", s.style(s.out).busy("waits"), walls)
	}
	jobs := handlersOf(doc)
	if len(jobs) == 0 {
		return nil
	}
	workers, err := fetch[dispatcher.Worker](ctx, s.api, "/v1/workers", nil, pageFlags{limit: 500})
	if err != nil {
		return err
	}
	jobs = slices.DeleteFunc(jobs, func(job handlerJob) bool {
		return slices.ContainsFunc(workers, func(w dispatcher.Worker) bool {
			return w.State == "live" && slices.Contains(w.Runtimes, job.runtime) && slices.Contains(w.Operators, dag.Handler+":"+job.handler)
		})
	})
	for _, job := range jobs {
		fmt.Fprintf(s.out, "%s %s is for a worker of yours: handler %s on the runtime %s\n", s.style(s.out).busy("waits"), job.address, job.handler, job.runtime)
	}
	if len(jobs) > 0 {
		fmt.Fprintf(s.out, "  start it with DAGCTL_URL=%s DAGCTL_TOKEN=$(%s)\n", s.api.target.URL, s.workers.getToken)
	}
	return nil
}

// shellWord is a path as a shell reads it.
func shellWord(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
