package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// runtimes are those that DAGs may name. A world serves the first; jobs on the second stay queued.
var runtimes = []string{"dispatcher", "elsewhere"}

// world is dagctl in one process on a database, wired like the server, but without HTTP.
type world struct {
	feed       *feed
	pool       *pgxpool.Pool
	requests   *pgxpool.Pool
	engines    *engine.Engines
	storage    *storage.Storage
	registry   *registry.Registry
	runner     *operators.Runner
	dispatcher *service.Service
	statements *statements
	scratch    string
	cancel     context.CancelFunc
	done       chan error
}

// world opens pools and starts a dispatcher that serves the given runtimes.
func (b *bench) world(ctx context.Context, dsn string, serves ...string) (*world, error) {
	return b.worldWith(ctx, dsn, func(*service.Config) {}, serves...)
}

// worldWith is like world, with a change to the dispatcher's config.
func (b *bench) worldWith(
	ctx context.Context, dsn string, change func(*service.Config), serves ...string,
) (_ *world, err error) {
	w := &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()

	if b.statements {
		w.statements = newStatements()
	}
	if err := os.MkdirAll(b.root, 0o700); err != nil {
		return nil, err
	}
	if w.scratch, err = os.MkdirTemp(b.root, ".scratch-*"); err != nil {
		return nil, err
	}
	if w.feed, err = newFeed(ctx, w.scratch); err != nil {
		return nil, err
	}
	if w.pool, err = pg.Open(ctx, dsn, pg.WithMaxConns(int32(b.conns)), w.statements.traced); err != nil {
		return nil, err
	}

	if w.requests, err = pg.OpenRequests(ctx, dsn, pg.WithMaxConns(4), w.statements.traced); err != nil {
		return nil, err
	}
	name, err := databaseOf(dsn)
	if err != nil {
		return nil, err
	}

	if w.engines, err = engine.New(engine.Config{}); err != nil {
		return nil, err
	}
	w.storage, err = storage.New(storage.Config{Root: filepath.Join(b.root, name), Pool: w.pool, Rows: w.engines})
	if err != nil {
		return nil, err
	}
	ops, err := w.feed.operators(w.engines)
	if err != nil {
		return nil, err
	}
	w.registry, err = registry.New(registry.Config{Pool: w.pool, Requests: w.requests, Storage: w.storage,
		Catalog: ops.Catalog(runtimes), Log: b.log})
	if err != nil {
		return nil, err
	}

	w.runner = &operators.Runner{Registry: ops, Storage: w.storage, ScratchDir: w.scratch, Log: b.log}
	config := service.Config{Config: dispatcher.Config{
		Pool: w.pool, Requests: w.requests, Registry: w.registry, Operators: ops, Storage: w.storage, Runner: w.runner,
		Runtimes: serves, WorkerID: filepath.Base(w.scratch), PoolSize: b.workers, Log: b.log,
	}}

	change(&config)
	if w.dispatcher, err = service.New(config); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel, w.done = cancel, make(chan error, 1)
	go func() { w.done <- w.dispatcher.Run(running) }()
	return w, nil
}

// stop stops the dispatcher.
func (w *world) stop() error {
	if w.cancel == nil {
		return nil
	}
	w.cancel()
	w.cancel = nil
	return <-w.done
}

// close stops the dispatcher and ends every connection.
func (w *world) close() error {
	failed := []error{w.stop()}
	if w.storage != nil {
		failed = append(failed, w.storage.Close())
	}
	if w.engines != nil {
		failed = append(failed, w.engines.Close())
	}
	for _, pool := range []*pgxpool.Pool{w.pool, w.requests} {
		if pool != nil {
			pool.Close()
		}
	}

	if w.scratch != "" {
		failed = append(failed, os.RemoveAll(w.scratch))
	}
	return errors.Join(failed...)
}

// org creates an org and returns its admin.
func (w *world) org(ctx context.Context, slug string) (authz.Caller, error) {
	org, err := authz.CreateOrg(ctx, w.pool, slug, slug)
	return authz.Caller{OrgID: org.ID, OrgSlug: slug, Actor: "user:bench", Role: authz.RoleAdmin}, err
}

// deploy deploys a DAG and waits until it serves.
func (w *world) deploy(ctx context.Context, caller authz.Caller, name, yaml string) error {
	deployed, err := deploy.New(w.registry).Deploy(ctx, caller, name, registry.DeployRequest{YAML: yaml})
	if err != nil {
		if f := new(fault.Error); errors.As(err, &f) && len(f.Problems) > 0 {
			return fmt.Errorf("%w: %v", err, f.Problems[0])
		}
		return err
	}

	w.dispatcher.Wake()
	for {
		var status registry.Status
		var reason string
		if err := w.pool.QueryRow(ctx, `SELECT status, coalesce(error, '') FROM dag_versions WHERE id = $1`,
			deployed.Version.ID).Scan(&status, &reason); err != nil {
			return err
		}
		switch status {
		case registry.Active:
			return nil
		case registry.Failed:
			return fmt.Errorf("the build of %s failed: %s", name, reason)
		}
		if err := wait.For(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%s is %s: %w", name, status, err)
		}
	}
}

// poll makes the org's sources look now instead of at their next time.
func (w *world) poll(ctx context.Context, caller authz.Caller) error {
	_, err := w.pool.Exec(ctx, `UPDATE sources SET next_fire_at = now() WHERE org_id = $1`, caller.OrgID)
	w.dispatcher.Wake()
	return err
}

// settle waits until so many runs have started in this process and the org has nothing left to do. It does not query
// PostgreSQL before, so as not to slow it down.
func (w *world) settle(ctx context.Context, caller authz.Caller, runs int) error {
	return w.settleWhen(ctx, caller, w.feed.ran, runs)
}

// settleWhen is like settle, with another count of runs.
func (w *world) settleWhen(ctx context.Context, caller authz.Caller, ran func() int, runs int) error {
	for {
		if ran() >= runs {
			settled, err := w.dispatcher.Views.Settled(ctx, caller.OrgID)
			if err != nil || settled {
				return err
			}
		}
		if err := wait.For(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("work is left, %d of %d runs were started: %w", ran(), runs, err)
		}
	}
}

// completed checks that exactly so many tasks have completed and no task has ended otherwise.
func (w *world) completed(ctx context.Context, want int) error {
	var completed, others int
	var why string
	err := w.pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE status = 'Completed'), count(*) FILTER (WHERE status <> 'Completed'),
		       coalesce(min(status || ': ' || coalesce(error_message, reason, '')) FILTER (WHERE status <> 'Completed'),
			'')
		FROM tasks`).Scan(&completed, &others, &why)
	if err == nil && (completed != want || others != 0) {
		err = fmt.Errorf("%d tasks completed and %d did not (%s); want %d", completed, others, why, want)
	}
	return err
}
