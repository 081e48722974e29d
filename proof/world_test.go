package proof_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// world is a database with one org, storage and the built-in operators. Dispatchers are started as a test needs them.
type world struct {
	t        *testing.T
	url      string
	pool     *pgxpool.Pool
	asked    *pgxpool.Pool // for requests
	work     *pgxpool.Pool // for dispatchers, so that a test can cut their connections alone
	storage  *storage.Storage
	ops      *operators.Registry
	registry *registry.Registry
	query    *query.Query
	caller   authz.Caller
	landing  string // the folder that file sources read
	scratch  string
	root     string           // of storage
	d        *service.Service // handles the requests; start makes it run
}

// working is the name of the connections that dispatchers work on.
const working = "working"

// runtimes are the runtimes of the catalogue. Dispatchers serve the first. A test that needs tasks to stay queued puts
// their job on the second. The others are for servers with workers.
var runtimes = []string{"dispatcher", "elsewhere", polled, queued, called}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, testdb.URL(t))
}

// newWorldOn makes a world on a migrated, empty database.
func newWorldOn(t *testing.T, url string) *world {
	t.Helper()
	w := &world{t: t, url: url, landing: t.TempDir(), scratch: t.TempDir(), root: t.TempDir()}
	w.begin()
	w.caller = authz.Caller{OrgSlug: "acme", Actor: "user:test", Role: authz.RoleAdmin}
	w.one(`INSERT INTO orgs (name, slug) VALUES ('acme', 'acme') RETURNING id`)(&w.caller.OrgID)
	return w
}

// restoredOn returns the world as a restored database has it, with the files as they are.
func (w *world) restoredOn(url string) *world {
	w.t.Helper()
	r := &world{t: w.t, url: url, landing: w.landing, scratch: w.t.TempDir(), root: w.root, caller: w.caller}
	r.begin()
	return r
}

// begin opens the database and the storage.
func (w *world) begin() {
	t := w.t
	t.Helper()
	w.pool, w.asked = w.open(pg.Open, 20), w.open(pg.OpenRequests, 20)
	config := w.pool.Config()
	config.ConnConfig.RuntimeParams["application_name"] = working
	var err error
	w.work, err = pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)

	t.Cleanup(w.work.Close)
	w.storage, err = storage.New(storage.Config{Root: w.root, Pool: w.pool, Rows: enginetest.Engines()})
	require.NoError(t, err)

	t.Cleanup(func() { require.NoError(t, w.storage.Close()) })
	w.ops, err = standard.New(operators.Options{Engines: enginetest.Engines(),
		Threads: 1, ReuseByColumn: true,
		Command: operators.CommandOptions{Every: true, Paths: append(operators.ToolFolders(), os.TempDir()),
			Shared: []string{os.TempDir()}}})
	require.NoError(t, err)

	w.registry, err = registry.New(registry.Config{Pool: w.pool, Requests: w.asked, Storage: w.storage,
		Catalog: w.ops.Catalog(runtimes), Log: w.log(), Misfit: w.ops.Misfit})
	require.NoError(t, err)

	w.query, err = query.New(query.Config{Requests: w.asked, Registry: w.registry, Storage: w.storage,
		Engines: engines(t)})
	require.NoError(t, err)
	w.d = w.dispatcher("first", runtimes[0])
}

func (w *world) open(
	open func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error), conns int32,
) *pgxpool.Pool {
	w.t.Helper()
	pool, err := open(w.t.Context(), w.url, pg.WithMaxConns(conns))
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool
}

func (w *world) log() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// dispatcher makes another dispatcher, which looks like another process in the database.
func (w *world) dispatcher(id string, serves ...string) *service.Service {
	w.t.Helper()
	d, err := service.New(service.Config{Config: dispatcher.Config{
		Pool: w.work, Requests: w.asked, Registry: w.registry, Operators: w.ops, Storage: w.storage,
		Runner:   &operators.Runner{Registry: w.ops, Storage: w.storage, ScratchDir: w.scratch, Log: w.log()},
		Runtimes: serves, WorkerID: id, PoolSize: 4, Poll: 100 * time.Millisecond, Lease: 3 * time.Second, Log: w.log(),
		Roots: func(string, string) []string { return []string{w.landing} },
	}})
	require.NoError(w.t, err)
	return d
}

// start runs a dispatcher until the test ends or stop is called.
func (w *world) start(d *service.Service) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	require.Eventually(w.t, cond, 3*time.Minute, 10*time.Millisecond, what) // bounds a failure: the machine may be busy
}

// Deploying.

// dagName returns the name in a document.
func dagName(yaml string) string {
	for line := range strings.Lines(yaml) {
		if name, ok := strings.CutPrefix(line, "name: "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

func (w *world) tryDeploy(yaml string, change ...func(*registry.DeployRequest)) (registry.Deployment, error) {
	req := registry.DeployRequest{YAML: yaml}
	for _, f := range change {
		f(&req)
	}
	deployed, err := deploy.New(w.registry).Deploy(w.t.Context(), w.caller, dagName(yaml), req)
	w.d.Wake()
	return deployed, err
}

// deploy deploys and does not wait for the build.
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

// serve deploys and waits until the version serves.
func (w *world) serve(yaml string, change ...func(*registry.DeployRequest)) registry.Deployment {
	w.t.Helper()
	deployed := w.deploy(yaml, change...)
	w.reach(deployed, registry.Active)
	return deployed
}

// reach waits until the version is in a state, and fails at once if it cannot get there.
func (w *world) reach(deployed registry.Deployment, want registry.Status) {
	w.t.Helper()
	var status registry.Status
	var reason string
	defer func() {
		if w.t.Failed() {
			status, reason := w.status(deployed) // read anew, because the condition may still use the other variables
			w.t.Logf("version %d is %s %s; tasks: %q", deployed.Version.Number, status, reason, first(w.texts(`
				SELECT concat_ws(' ', j.name, t.partitions[1], t.status, t.reason, t.attempt, t.error_message)
				FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE t.status <> 'Completed' ORDER BY t.id`)))
		}
	}()

	w.eventually(fmt.Sprintf("version %d to be %s", deployed.Version.Number, want), func() bool {
		status, reason = w.status(deployed)
		return status == want || status == registry.Failed
	})
	require.Equal(w.t, want, status, reason)
}

func (w *world) status(deployed registry.Deployment) (status registry.Status, reason string) {
	w.t.Helper()
	w.one(`SELECT status, coalesce(error, '') FROM dag_versions WHERE id = $1`, deployed.Version.ID)(&status, &reason)
	return status, reason
}

func (w *world) rollback(dag string) registry.Version {
	w.t.Helper()
	v, err := w.d.Builds.Rollback(w.t.Context(), w.caller, dag, builds.RollbackRequest{})
	require.NoError(w.t, err)
	return v
}

func superseding(r *registry.DeployRequest) { r.Supersede = true }

// parked keeps a version Ready instead of cutting over to it.
func parked(r *registry.DeployRequest) { no := false; r.Activate = &no }

// settle waits until there is nothing to do without new input.
func (w *world) settle() {
	w.t.Helper()
	w.d.Wake()
	w.eventually("everything to settle", func() bool {
		settled, err := w.d.Views.Settled(w.t.Context(), w.caller.OrgID)
		return settled && err == nil // the test may have cut its connection
	})
}

// sweep reconciles everything, as happens every half minute, and waits until the resulting work is done.
func (w *world) sweep() {
	w.t.Helper()
	w.settle()
	require.NoError(w.t, w.d.Upkeep.Reconcile(w.t.Context(), time.Now()))
	w.settle()
}

// Files.

// drop puts a file into the landing folder in one step.
func (w *world) drop(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.landing, name)
	require.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	draft := path + ".part"
	require.NoError(w.t, os.WriteFile(draft, []byte(content), 0o600))
	require.NoError(w.t, os.Rename(draft, path))
}

// poll makes every source look now.
func (w *world) poll() {
	w.t.Helper()
	w.exec(`UPDATE sources SET next_fire_at = now() WHERE next_fire_at IS NOT NULL`)
	w.d.Wake()
}

// Looking.

// one runs a statement that returns one row, and returns a function that scans it.
func (w *world) one(sql string, args ...any) func(dest ...any) {
	w.t.Helper()
	return func(dest ...any) {
		w.t.Helper()
		require.NoError(w.t, w.pool.QueryRow(w.t.Context(), sql, args...).Scan(dest...))
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	w.one(`SELECT count(*) FROM (`+sql+`) AS q`, args...)(&n)
	return n
}

func (w *world) texts(sql string, args ...any) []string {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w.t, err)
	return found
}

// tasks returns every task of a job as "partition status reason", oldest first.
func (w *world) tasks(job string) []string {
	w.t.Helper()
	return w.texts(`
		SELECT concat_ws(' ', coalesce(t.partitions[1], '-'), t.status, t.reason) FROM tasks t
			JOIN jobs j ON j.id = t.job_id
		WHERE j.name = $1 AND t.kind <> 'check' ORDER BY t.id`, job)
}

// generation returns the dataset version that a DAG version pins for a job.
func (w *world) generation(deployed registry.Deployment, job string) (id uuid.UUID) {
	w.t.Helper()
	w.one(`SELECT dataset_version FROM dag_version_datasets WHERE dag_version_id = $1 AND job_name = $2`,
		deployed.Version.ID, job)(&id)
	return id
}

// read returns a dataset's rows as its readers see them, with values joined by commas, sorted.
func (w *world) read(name string) []string {
	w.t.Helper()
	answer, err := w.query.Preview(w.t.Context(), w.caller, name, "", query.MaxRows, 0)
	require.NoError(w.t, err)
	return lines(answer.Rows)
}

func lines(rows [][]any) []string {
	out := []string{}
	for _, row := range rows {
		values := make([]string, len(row))
		for i, v := range row {
			values[i] = fmt.Sprint(v)
		}
		out = append(out, strings.Join(values, ","))
	}
	slices.Sort(out)
	return out
}

// actions returns what a plan does to each job's dataset.
func actions(changes []registry.Change) map[string]string {
	m := map[string]string{}
	for _, c := range changes {
		m[c.Job] = c.Action
	}
	return m
}

// keysByJob returns the partitions that a plan computes, by job.
func keysByJob(changes []registry.Change) map[string][]string {
	m := map[string][]string{}
	for _, c := range changes {
		m[c.Job] = c.Keys
	}
	return m
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
