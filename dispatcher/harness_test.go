package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// world is one database with storage, operators and orgs, and a dispatcher whose loops the test turns by hand: route,
// advance, work. Nothing runs by itself unless a test says so.
type world struct {
	*tenant // the org that most tests are content with
	t       *testing.T
	url     string
	pool    *pgxpool.Pool
	asked   *pgxpool.Pool // of requests
	storage *storage.Storage
	ops     *operators.Registry
	scratch string
	data    string // where the storage keeps files
	probe   *probe
	vault   *authz.Vault
	signer  *authz.Signer
	roots   sync.Map // org slug → landing folder
	d       *Dispatcher
}

// tenant is an org as its people see it.
type tenant struct {
	w       *world
	caller  authz.Caller
	landing string
}

func newWorld(t *testing.T, change ...func(*storage.Config)) *world {
	t.Helper()
	w := &world{t: t, url: testdb.URL(t), probe: newProbe(t.TempDir()), scratch: t.TempDir(), data: t.TempDir()}
	w.pool = w.open(pg.Open)
	w.asked = w.open(pg.OpenRequests)
	var err error
	keeps := storage.Config{Root: w.data, Pool: w.pool}
	for _, f := range change {
		f(&keeps)
	}
	w.storage, err = storage.New(keeps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.storage.Close()) })
	w.vault, err = authz.NewVault(authz.VaultConfig{Owner: w.pool, Requests: w.asked, Keys: []string{authz.NewVaultKey()}})
	require.NoError(t, err)
	w.ops, err = operators.NewRegistry(slices.Concat(builtins(t), w.probe.operators())...)
	require.NoError(t, err)
	key, err := authz.EnsureTaskKey(filepath.Join(t.TempDir(), "tasks.pem"))
	require.NoError(t, err)
	w.signer, err = authz.NewSigner(authz.SignerConfig{Issuer: "http://dagctl.test", Keys: []authz.TaskKey{key}})
	require.NoError(t, err)
	w.tenant = w.org("acme")
	w.d = w.dispatcher("one")
	w.d.stepped = true
	return w
}

// builtin is one set for all tests: it has no state but a session to parse SQL with.
var builtin = sync.OnceValues(func() (*operators.Registry, error) {
	return operators.Builtin(operators.Options{AllowCommand: true, Threads: 1})
})

func builtins(t *testing.T) (ops []operators.Operator) {
	t.Helper()
	set, err := builtin()
	require.NoError(t, err)
	for _, name := range set.Names() {
		op, _ := set.Get(name)
		ops = append(ops, op)
	}
	return ops
}

func (w *world) open(open func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
	w.t.Helper()
	pool, err := open(w.t.Context(), w.url, pg.WithMaxConns(14))
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool
}

// org makes another tenant.
func (w *world) org(slug string) *tenant {
	w.t.Helper()
	tn := &tenant{w: w, landing: w.t.TempDir(), caller: authz.Caller{OrgSlug: slug, Actor: "user:" + slug, Role: authz.RoleAdmin}}
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `INSERT INTO orgs (name, slug) VALUES ($1, $1) RETURNING id`, slug).Scan(&tn.caller.OrgID))
	w.roots.Store(slug, tn.landing)
	return tn
}

// dispatcher makes another process, as far as one can tell from the database.
func (w *world) dispatcher(id string, change ...func(*Config)) *Dispatcher {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	reg, err := registry.New(registry.Config{Pool: w.pool, Requests: w.asked, Storage: w.storage,
		Catalog: w.ops.Catalog([]string{"dispatcher", "other", "poll", "lambda"}), Vault: w.vault, Log: log})
	require.NoError(w.t, err)
	c := Config{Pool: w.pool, Requests: w.asked, Registry: reg, Operators: w.ops, Storage: w.storage, Vault: w.vault,
		Runner:   &operators.Runner{Registry: w.ops, Storage: w.storage, ScratchDir: w.scratch, Log: log},
		Runtimes: []string{"dispatcher", "other"}, Signer: w.signer, WorkerID: id, Poll: 50 * time.Millisecond, Log: log,
		Roots: func(slug, _ string) []string { root, _ := w.roots.Load(slug); return []string{root.(string)} }}
	for _, f := range change {
		f(&c)
	}
	d, err := New(c)
	require.NoError(w.t, err)
	require.NoError(w.t, d.register(w.t.Context()))
	return d
}

// start runs a whole dispatcher until the test ends, or stop is called.
func (w *world) start(d *Dispatcher) (stop func()) {
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

// eventually waits for a condition of the database, which the dispatchers under test bring about by themselves.
func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	require.Eventually(w.t, cond, 30*time.Second, 10*time.Millisecond, what)
}

// Deploying.

func dagName(yaml string) string {
	for line := range strings.Lines(yaml) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "name: "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

func (tn *tenant) tryDeploy(yaml string, change ...func(*registry.DeployRequest)) (registry.Deployment, error) {
	tn.w.t.Helper()
	req := registry.DeployRequest{YAML: yaml}
	for _, f := range change {
		f(&req)
	}
	return tn.w.d.Registry.Deploy(tn.w.t.Context(), tn.caller, dagName(yaml), req)
}

func supersede(r *registry.DeployRequest) { r.Supersede = true }

// deploy deploys, and leaves the build to be advanced.
func (tn *tenant) deploy(yaml string, change ...func(*registry.DeployRequest)) registry.Deployment {
	tn.w.t.Helper()
	deployed, err := tn.tryDeploy(yaml, change...)
	require.NoError(tn.w.t, err)
	return deployed
}

// serve deploys and works until the version serves.
func (tn *tenant) serve(yaml string, change ...func(*registry.DeployRequest)) registry.Deployment {
	tn.w.t.Helper()
	deployed := tn.deploy(yaml, change...)
	tn.w.settle()
	status, reason := tn.status(deployed.Version.ID)
	require.Equal(tn.w.t, registry.Active, status, reason)
	return deployed
}

func (tn *tenant) status(version uuid.UUID) (status registry.Status, reason string) {
	tn.w.t.Helper()
	tn.w.row(`SELECT status, coalesce(error, '') FROM dag_versions WHERE id = $1`, version)(&status, &reason)
	return status, reason
}

// drop writes a file into the landing folder, in one step, as those should who deliver files.
func (tn *tenant) drop(name, content string) {
	tn.w.t.Helper()
	path := filepath.Join(tn.landing, name)
	require.NoError(tn.w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	draft := path + ".part"
	require.NoError(tn.w.t, os.WriteFile(draft, []byte(content), 0o600))
	require.NoError(tn.w.t, os.Rename(draft, path))
}

// Turning the loops.

// settle works until nothing is left to do but to wait for a clock: every source that is due fired, every event routed,
// every task run, every build decided.
func (w *world) settle() {
	w.t.Helper()
	for range 200 {
		w.fire()
		w.route()
		w.advance()
		worked := w.work()
		var pending bool
		w.row(`SELECT EXISTS (SELECT FROM outbox WHERE status = 'Pending' AND kind <> 'notify' AND available_at <= now()) OR EXISTS (SELECT FROM ready)
			OR EXISTS (SELECT FROM sources WHERE next_fire_at <= now())`)(&pending)
		if worked == 0 && !pending {
			w.check()
			return
		}
	}
	require.Fail(w.t, "does not settle")
}

// unrouted does something while another holds every origin, so that the events which come of it are left to the router.
func (w *world) unrouted(do func()) {
	w.t.Helper()
	require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(w.t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended(o.origin_job_id::text, 1)) FROM (SELECT DISTINCT origin_job_id FROM jobs) AS o`)
		do()
		return err
	}))
}

func (w *world) route() {
	w.t.Helper()
	for more := true; more; {
		var err error
		more, err = w.d.routeOnce(w.t.Context(), time.Now())
		require.NoError(w.t, err)
	}
}

func (w *world) advance() {
	w.t.Helper()
	_, err := w.d.advanceBuilds(w.t.Context(), time.Now())
	require.NoError(w.t, err)
}

func (w *world) fire() {
	w.t.Helper()
	_, err := w.d.fireSources(w.t.Context(), time.Now())
	require.NoError(w.t, err)
}

// poll makes every source due that has a clock, and fires.
func (w *world) poll() {
	w.t.Helper()
	w.exec(`UPDATE sources SET next_fire_at = now() WHERE next_fire_at IS NOT NULL`)
	w.fire()
}

// work runs every claimable task, one by one, and tells how many.
func (w *world) work() (n int) {
	w.t.Helper()
	for {
		tasks := w.claim(w.d)
		if len(tasks) == 0 {
			return n
		}
		for _, t := range tasks {
			w.d.execute(w.t.Context(), t)
		}
		n += len(tasks)
	}
}

// claim leases what is claimable of every runtime.
func (w *world) claim(d *Dispatcher) (tasks []claimed) {
	w.t.Helper()
	tasks, err := d.claim(w.t.Context(), d.inProcessRuntimes(), d.WorkerID, 100, time.Now())
	require.NoError(w.t, err)
	return tasks
}

// one claims, where exactly one task is expected.
func (w *world) one(d *Dispatcher) claimed {
	w.t.Helper()
	tasks := w.claim(d)
	require.Len(w.t, tasks, 1)
	return tasks[0]
}

// do runs a claimed task without reporting it.
func (w *world) do(d *Dispatcher, t claimed) completion {
	w.t.Helper()
	c := d.run(w.t.Context(), t, &progressNote{})
	require.NoError(w.t, c.outcome.Err)
	return c
}

func (w *world) promote(now time.Time) {
	w.t.Helper()
	_, err := w.d.promoteDue(w.t.Context(), now)
	require.NoError(w.t, err)
}

func (w *world) reap(now time.Time) {
	w.t.Helper()
	_, err := w.d.reap(w.t.Context(), now)
	require.NoError(w.t, err)
}

// Looking.

// row runs a query of one row; what it returns scans it.
func (w *world) row(sql string, args ...any) func(dest ...any) {
	w.t.Helper()
	return func(dest ...any) {
		w.t.Helper()
		require.NoError(w.t, w.pool.QueryRow(w.t.Context(), sql, args...).Scan(dest...))
	}
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	w.row(`SELECT count(*) FROM (`+sql+`) AS q`, args...)(&n)
	return n
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

func texts(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return found
}

// tasks tells of every task of a job, oldest first: "partition status reason".
func (w *world) tasks(job string) []string {
	w.t.Helper()
	return texts(w.t, w.pool, `
		SELECT concat_ws(' ', coalesce(t.partitions[1], '-'), t.status, t.reason) FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE j.name = $1 AND t.kind <> 'check' ORDER BY t.id`, job)
}

// attempts counts how often tasks of a job were run.
func (w *world) attempts(job string) int {
	w.t.Helper()
	return w.attemptsOf(`SELECT t.* FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.kind <> 'check'`, job)
}

// runs counts how often anything was run.
func (w *world) runs() int {
	w.t.Helper()
	return w.attemptsOf(`SELECT * FROM tasks`)
}

// attemptsOf counts how often some tasks were run: the number of an attempt grows when the task has been started before.
func (w *world) attemptsOf(tasks string, args ...any) (n int) {
	w.t.Helper()
	w.row(`SELECT coalesce(sum(attempt), 0) FROM (`+tasks+`) AS t WHERE started_at IS NOT NULL`, args...)(&n)
	return n
}

// task tells how one task stands.
func (w *world) task(id uuid.UUID) string {
	w.t.Helper()
	var text string
	w.row(`SELECT concat_ws(' ', t.status, t.reason, (SELECT 'ready' FROM ready r WHERE r.task_id = t.id),
		(SELECT 'waiting:' || q.reason FROM waiting q WHERE q.task_id = t.id), (SELECT 'leased' FROM leases l WHERE l.task_id = t.id))
		FROM tasks t WHERE id = $1`, id)(&text)
	return text
}

// read gives the rows of a dataset as its readers see them, by partition, each as text.
func (tn *tenant) read(name string) map[string][]string {
	tn.w.t.Helper()
	out, err := tn.tryRead(name)
	require.NoError(tn.w.t, err)
	return out
}

func (tn *tenant) tryRead(name string) (map[string][]string, error) {
	w := tn.w
	var generation storage.Generation
	var partitions []storage.Partition
	err := pg.InOrgTx(w.t.Context(), w.asked, tn.caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		generation, partitions, _, err = w.d.Registry.ResolveForRead(ctx, tx, tn.caller, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, p := range partitions {
		columns, rows, err := w.storage.Preview(w.t.Context(), generation, []storage.Partition{p}, 10_000, 0)
		if err != nil {
			return nil, err
		}
		out[p.Key] = []string{}
		for _, row := range rows {
			values := make([]string, len(columns))
			for i := range columns {
				values[i] = fmt.Sprint(row[i])
			}
			out[p.Key] = append(out[p.Key], strings.Join(values, ","))
		}
		slices.Sort(out[p.Key])
	}
	return out, nil
}

// published tells the published revision of each partition of a job's outputs in the version that serves.
func (tn *tenant) published(job string) map[string]int64 {
	tn.w.t.Helper()
	rows, err := tn.w.pool.Query(tn.w.t.Context(), `
		SELECT p.partition_key, p.revision FROM dag_version_datasets s
		JOIN dag_current_versions c ON c.dag_version_id = s.dag_version_id
		JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.state = 'Published'
		WHERE s.org_id = $1 AND s.job_name = $2`, tn.caller.OrgID, job)
	require.NoError(tn.w.t, err)
	found := map[string]int64{}
	var key string
	var revision int64
	_, err = pgx.ForEachRow(rows, []any{&key, &revision}, func() error { found[key] = revision; return nil })
	require.NoError(tn.w.t, err)
	return found
}

// generation is the dataset version that a DAG version pins for a job's first output.
func (tn *tenant) generation(version uuid.UUID, job string) (id uuid.UUID) {
	tn.w.t.Helper()
	tn.w.row(`SELECT dataset_version FROM dag_version_datasets WHERE dag_version_id = $1 AND job_name = $2 AND output_index = 0`, version, job)(&id)
	return id
}

// check holds what is true after every transaction: each open task is in exactly one set, which agrees with its status;
// per slot at most one is queued and one is running; limits are held by exactly those that were admitted; a partition has at
// most one published revision.
func (w *world) check() {
	w.t.Helper()
	require.Empty(w.t, broken(w.t, w.pool))
}

func broken(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, pool, `
		WITH placed AS (
			SELECT t.id, t.org_id, t.job_id, t.slot, t.status, t.limits, t.attempt, t.lease_token,
				(SELECT count(*) FROM ready r WHERE r.task_id = t.id AND r.job_id = t.job_id AND r.slot = t.slot) AS ready,
				(SELECT count(*) FROM leases l WHERE l.task_id = t.id AND l.job_id = t.job_id AND l.slot = t.slot
				   AND l.attempt = t.attempt AND l.lease_token = t.lease_token) AS leased,
				(SELECT string_agg(q.reason, ',') FROM waiting q WHERE q.task_id = t.id) AS waits
			FROM tasks t)
		SELECT format('task %s is %s: ready %s, leased %s, waiting %s', id, status, ready, leased, waits) FROM placed
		WHERE CASE status
			WHEN 'Queued' THEN ready + (coalesce(waits IN ('sibling', 'limit', 'run_at', 'paused'), false))::int <> 1 OR leased <> 0
				OR ready = 1 AND waits IS NOT NULL
			WHEN 'Running' THEN leased <> 1 OR ready <> 0 OR waits IS NOT NULL
			WHEN 'Failed' THEN coalesce(waits NOT IN ('backoff', 'dead'), true) OR ready <> 0 OR leased <> 0
			ELSE ready <> 0 OR leased <> 0 OR waits IS NOT NULL END
		UNION ALL
		SELECT format('%s tasks are queued for slot %s of %s', count(*), slot, job_address(job_id)) FROM placed WHERE status = 'Queued' GROUP BY job_id, slot HAVING count(*) > 1
		UNION ALL
		SELECT format('%s tasks run for slot %s of %s', count(*), slot, job_address(job_id)) FROM placed WHERE status = 'Running' GROUP BY job_id, slot HAVING count(*) > 1
		UNION ALL
		SELECT format('limit %s: held %s of %s, used by %s', l.key, l.held, l.max, used.n) FROM limits l,
			LATERAL (SELECT count(*) AS n FROM placed p WHERE p.org_id = l.org_id AND l.key = ANY(p.limits) AND (p.ready = 1 OR p.leased = 1)) AS used
		WHERE l.held <> used.n OR l.held > l.max
		UNION ALL
		SELECT format('row of no task: %s', task_id) FROM (SELECT task_id FROM ready UNION ALL SELECT task_id FROM waiting UNION ALL SELECT task_id FROM leases) AS s
		WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = s.task_id)`)
}

// problemsOf lists what a refusal is about.
func problemsOf(err error) (messages []string) {
	var f *fault.Error
	if errors.As(err, &f) {
		for _, p := range f.Problems {
			messages = append(messages, p.Location+": "+p.Message)
		}
	}
	return messages
}

// later is a time ahead, for bodies that look at clocks.
func later(d time.Duration) time.Time { return time.Now().Add(d) }

// execute runs one task to its end, and no other.
func (d *Dispatcher) execute(ctx context.Context, t claimed) { d.attempt(ctx, t, nil) }
