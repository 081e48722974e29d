package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// world is a database with one org and a registry. No dispatcher runs: a test builds, publishes and cuts over itself.
type world struct {
	t        *testing.T
	pool     *pgxpool.Pool
	requests *pgxpool.Pool
	registry *registry.Registry
	caller   authz.Caller // an admin
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, caller: authz.Caller{OrgSlug: "acme", Actor: "user:test", Role: authz.RoleAdmin}}
	url := testdb.URL(t)
	var err error
	w.pool, err = pg.Open(t.Context(), url, pg.WithMaxConns(4))
	require.NoError(t, err)
	t.Cleanup(w.pool.Close)
	w.requests, err = pg.OpenRequests(t.Context(), url, pg.WithMaxConns(4))
	require.NoError(t, err)
	t.Cleanup(w.requests.Close)

	ops, err := standard.New(operators.Options{Engines: enginetest.Engines(), Threads: 1})
	require.NoError(t, err)
	w.registry, err = registry.New(registry.Config{
		Pool: w.pool, Requests: w.requests, Catalog: ops.Catalog([]string{"dispatcher"}),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	require.NoError(t, err)
	require.NoError(t, w.pool.QueryRow(t.Context(), `INSERT INTO orgs (name, slug) VALUES ('acme', 'acme')
		    RETURNING id`).
		Scan(&w.caller.OrgID))
	return w
}

// shop is a DAG of three jobs by day: orders comes from files, daily reads orders, and ranking, which is published,
// reads daily. edits are pairs of strings as strings.NewReplacer takes them.
func shop(edits ...string) string {
	return strings.NewReplacer(edits...).Replace(`name: shop
jobs:
  - name: orders
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: orders, pattern: "{date}.csv", format: csv }
  - name: daily
    operator: sql
    inputs: [{ from: { job: orders } }]
    config: { query: "SELECT customer, sum(price) AS spent FROM orders GROUP BY customer" }
  - name: ranking
    operator: sql
    inputs: [{ from: { job: daily } }]
    config: { query: "SELECT customer, rank() OVER (ORDER BY spent DESC) AS rank FROM daily" }
publish:
  best_customers: { from: { job: ranking }, owner: sales@example.com }
`)
}

// otherDaily changes what daily computes, so that ranking has to be computed again as well.
var otherDaily = []string{"sum(price)", "avg(price)"}

func dagName(yaml string) string {
	line, _, _ := strings.Cut(yaml, "\n")
	return strings.TrimPrefix(line, "name: ")
}

func (w *world) tryDeploy(yaml string, change ...func(*registry.DeployRequest)) (registry.Deployment, error) {
	req := registry.DeployRequest{YAML: yaml}
	for _, f := range change {
		f(&req)
	}
	return deploy.New(w.registry).Deploy(w.t.Context(), w.caller, dagName(yaml), req)
}

func (w *world) deploy(yaml string, change ...func(*registry.DeployRequest)) registry.Deployment {
	w.t.Helper()
	deployed, err := w.tryDeploy(yaml, change...)
	var problems *fault.Error
	if errors.As(err, &problems) {
		require.NoError(w.t, err, "%+v", problems.Problems)
	}
	require.NoError(w.t, err)
	return deployed
}

func (w *world) plan(yaml string) registry.Plan {
	w.t.Helper()
	p, err := deploy.New(w.registry).Plan(w.t.Context(), w.caller, dagName(yaml), registry.DeployRequest{YAML: yaml})
	require.NoError(w.t, err)
	return p
}

// actions lists changes as "dataset action: reason", with the number of partitions to compute where it is known.
func actions(changes []registry.Change) []string {
	list := []string{}
	for _, c := range changes {
		text := fmt.Sprintf("%s %s: %s", c.Job, c.Action, c.Reason)
		if c.Partitions != nil {
			text += fmt.Sprintf(" (%d)", *c.Partitions)
		}
		list = append(list, text)
	}
	return list
}

// serve deploys, publishes the given days of every job, and cuts over.
func (w *world) serve(yaml string, days ...string) registry.Deployment {
	w.t.Helper()
	deployed := w.deploy(yaml)
	for _, job := range w.jobs(deployed) {
		published := w.published(job)
		for _, day := range days {
			if published[day] == 0 {
				w.publish(deployed, job.Name, day)
			}
		}
	}
	w.cutover(deployed)
	return deployed
}

// cutover makes a version ready and cuts over to it.
func (w *world) cutover(deployed registry.Deployment) {
	w.t.Helper()
	b := w.build(deployed)
	if deployed.Version.Status == registry.Building {
		w.inTx(func(ctx context.Context, tx pgx.Tx) error {
			changed, err := deploy.MarkReady(ctx, tx, b, contract.Contract{}, time.Now())
			require.True(w.t, changed || err != nil)
			return err
		})
	}
	require.True(w.t, w.move(b, deploy.ByDeploy))
}

// move reports whether the cutover happened.
func (w *world) move(b registry.Build, reason string) (moved bool) {
	w.t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := deploy.LockSwap(ctx, tx, b); err != nil {
			return err
		}
		moved, err = deploy.Cutover(ctx, tx, b, reason, w.caller.Actor, time.Now())
		return err
	})
	return moved
}

func (w *world) rollback(dag string) {
	w.t.Helper()
	var b registry.Build
	w.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		b, err = deploy.RollbackTarget(ctx, tx, w.caller.OrgID, dag, nil)
		return err
	})
	require.True(w.t, w.move(b, deploy.ByRollback))
}

func (w *world) build(deployed registry.Deployment) registry.Build {
	v := deployed.Version
	return registry.Build{ID: v.ID, OrgID: w.caller.OrgID, DAG: v.DAG, Number: v.Number, Status: v.Status,
		CreatedBy: v.CreatedBy}
}

func (w *world) jobs(deployed registry.Deployment) (jobs []*registry.Job) {
	w.t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		jobs, err = w.registry.VersionJobs(ctx, tx, deployed.Version.ID)
		return err
	})
	return jobs
}

func (w *world) job(deployed registry.Deployment, name string) *registry.Job {
	w.t.Helper()
	for _, job := range w.jobs(deployed) {
		if job.Name == name {
			return job
		}
	}
	require.Fail(w.t, "there is no job "+name)
	return nil
}

// generation returns the generation that a version pins for the first output of a job.
func (w *world) generation(deployed registry.Deployment, job string) uuid.UUID {
	w.t.Helper()
	return w.job(deployed, job).Outputs[0].Generation.Version
}

// published returns the revisions of a job's first output, by partition key.
func (w *world) published(job *registry.Job) map[string]int64 {
	w.t.Helper()
	return w.revisions(job.Outputs[0].Generation.Version)
}

func (w *world) revisions(generation uuid.UUID) (revisions map[string]int64) {
	w.t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		all, err := registry.Published(new(pg.Batch), []uuid.UUID{generation}).Get(ctx, tx)
		revisions = all[generation]
		return err
	})
	return revisions
}

// publish commits the next revision of one partition, made from what its inputs have published.
func (w *world) publish(deployed registry.Deployment, job, key string) registry.NewRevision {
	w.t.Helper()
	return w.commit(w.job(deployed, job), key, false)
}

func (w *world) commit(job *registry.Job, key string, held bool) registry.NewRevision {
	w.t.Helper()
	generation := job.Outputs[0].Generation
	n := registry.NewRevision{OrgID: w.caller.OrgID, Dataset: generation.Dataset, Version: generation.Version, Key: key,
		TaskID: uuid.Must(uuid.NewV7()), Attempt: 1, Held: held, Pins: w.pins(job, key), Now: time.Now()}
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `
		SELECT coalesce(max(revision), 0) + 1 FROM partition_versions
		WHERE dataset_version = $1 AND partition_key = $2`,
		n.Version, n.Key).Scan(&n.Revision))
	n.Manifest = storage.Manifest{
		Location: fmt.Sprintf("acme/%s/%s/%s/%d/", n.Dataset, n.Version, n.Key, n.Revision), Rows: 3, Bytes: 100,
		Schema: []storage.Column{{Name: "customer", Type: "VARCHAR"}, {Name: "price", Type: "DOUBLE"},
			{Name: "spent", Type: "DOUBLE"}}, SchemaHash: "x",
	}
	n.Manifest.Files = []storage.File{{Path: n.Manifest.Location + "0.parquet", Bytes: 100, Rows: 3}}

	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		var b pg.Batch
		if err := registry.Commit(&b, []registry.NewRevision{n}); err != nil {
			return err
		}
		return b.Send(ctx, tx)
	})
	return n
}

// pins are the published revisions of what a partition is made of.
func (w *world) pins(job *registry.Job, key string) (pins []registry.Pin) {
	w.t.Helper()
	for _, in := range job.Inputs {
		keys, _, err := in.Def.Map.InputKeys(in.PartitionBy, job.Def.PartitionBy, key)
		require.NoError(w.t, err)
		published := w.revisions(in.Generation.Version)
		for _, k := range keys {
			if published[k] > 0 {
				pins = append(pins, registry.Pin{Input: in.Index, Dataset: in.Dataset, Version: in.Generation.Version,
					Key:      k,
					Revision: published[k], Compared: true})
			}
		}
	}
	return pins
}

// inTx runs fn as the owner of the database does.
func (w *world) inTx(fn func(ctx context.Context, tx pgx.Tx) error) {
	w.t.Helper()
	require.NoError(w.t, pg.InTx(w.t.Context(), w.pool, fn))
}

// resolve reads the datasets of the given names as caller does at one moment.
func (w *world) resolve(caller authz.Caller, at registry.Moment,
	names ...string) (found map[string]registry.Readable, err error) {
	err = pg.InOrgSnapshot(w.t.Context(), w.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err = registry.Resolve(ctx, tx, caller, names, at)
		return err
	})
	return found, err
}
