package proof_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// swapDAG returns a DAG whose rows name the deploy that made them, in both kinds of storage.
func swapDAG(deploy string) string {
	return strings.ReplaceAll(`
name: swap
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv }
  - name: stamped
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    config: { query: "SELECT 'DEPLOY' AS deploy, n FROM landing" }
  - name: copied
    operator: sql
    inputs: [{ from: { job: stamped } }]
    execution_strategy: PerPartition
    config: { query: "SELECT deploy, n * 2 AS n FROM stamped" }
  - name: stored
    operator: sql
    inputs: [{ from: { job: stamped } }]
    execution_strategy: PerPartition
    storage: { postgres: {} }
    config: { query: "SELECT deploy, n FROM stamped" }
  - name: kept
    operator: sql
    inputs: [{ from: { job: copied } }]
    execution_strategy: PerPartition
    storage: { postgres: {} }
    config: { query: "SELECT deploy, n FROM copied" }
publish:
  stamped: { from: { job: stamped } }
  copied: { from: { job: copied } }
  stored: { from: { job: stored } }
  kept: { from: { job: kept } }
`, "DEPLOY", deploy)
}

var (
	swapped   = []string{"stamped", "copied", "stored", "kept"}
	swapFiles = map[string]string{"one.csv": "n\n1\n2\n", "two.csv": "n\n3\n"}
)

// swapRows is the number of rows of each dataset, whichever deploy made it.
const swapRows = 3

// readers read the datasets of a DAG again and again and check that every answer is complete and of one deploy.
type readers struct {
	server *server // nil: none over HTTP
	// Sessions that query the stable views. They are the owner's, because rights do not matter here
	sql      *pgxpool.Pool
	asked    *pgxpool.Pool
	registry *registry.Registry
	storage  *storage.Storage
	caller   authz.Caller
	datasets []string
	deployOf map[uuid.UUID]string // by generation
	// pause is a reader's pause between two answers, so that many readers leave the machine time to swap. Readers of
	// files pause ten times as long.
	pause time.Duration
	// tolerant accepts failed requests, for killed servers. The answers are checked as ever.
	tolerant bool

	reads   [3]atomic.Int64 // over HTTP, by SQL, through the query path
	slowest [3]atomic.Int64 // nanoseconds
	mu      sync.Mutex
	torn    []string
	failed  []string
}

const (
	overHTTP = iota
	bySQL
	byQuery
)

// errTorn is an inconsistent answer.
type errTorn string

func (e errTorn) Error() string { return string(e) }

// read runs n readers until ctx ends: a quarter over HTTP, a half by SQL, a quarter through the query path.
func (r *readers) read(ctx context.Context, n int) {
	var all sync.WaitGroup
	for i := range n {
		kind := [...]int{overHTTP, bySQL, byQuery, bySQL}[i%4]
		if kind == overHTTP && r.server == nil {
			kind = byQuery
		}
		all.Go(func() {
			for round := i; ctx.Err() == nil; round++ {
				start := time.Now()
				err := r.once(ctx, kind, round)
				r.note(ctx, kind, time.Since(start), err)
				think := r.pause
				if kind != bySQL {
					think *= 10
				}
				select {
				case <-ctx.Done():
				case <-time.After(think):
				}
			}
		})
	}
	all.Wait()
}

func (r *readers) note(ctx context.Context, kind int, took time.Duration, err error) {
	var torn errTorn
	switch {
	case err == nil:
		r.reads[kind].Add(1)
		for old := r.slowest[kind].Load(); int64(took) > old &&
			!r.slowest[kind].CompareAndSwap(old, int64(took)); old = r.slowest[kind].Load() {
		}
	case errors.As(err, &torn):
		r.mu.Lock()
		r.torn = append(r.torn, err.Error())
		r.mu.Unlock()
	case ctx.Err() == nil && !(r.tolerant && kind == overHTTP):
		r.mu.Lock()
		r.failed = append(r.failed, err.Error())
		r.mu.Unlock()
	}
}

func (r *readers) once(ctx context.Context, kind, round int) error {
	switch kind {
	case overHTTP:
		return r.http(ctx, r.datasets[round%len(r.datasets)])
	case byQuery:
		return r.pinned(ctx, round)
	}
	if round%2 == 0 {
		return r.statement(ctx)
	}
	return r.transaction(ctx)
}

// http reads one dataset. Its rows must belong to the deploy that made the generation that the answer names.
func (r *readers) http(ctx context.Context, name string) error {
	var answer query.Rows
	if err := r.server.get(ctx, "/v1/datasets/"+name+"/rows", &answer); err != nil {
		return err
	}
	if answer.Version == nil {
		return errTorn("over HTTP: " + name + " is served by nothing")
	}
	return r.check("over HTTP: "+name, r.deployOf[*answer.Version], answer.Rows)
}

func (r *readers) check(what, deploy string, rows [][]any) error {
	seen := map[string]bool{}
	for _, row := range rows {
		seen[fmt.Sprint(row[0])] = true
	}
	if len(rows) != swapRows || len(seen) != 1 || !seen[deploy] {
		return errTorn(fmt.Sprintf("%s: %d rows of deploys %v under a generation of deploy %q", what, len(rows),
			keysOf(seen), deploy))
	}
	return nil
}

// pinned resolves several datasets in one snapshot, as a query over them does, and then reads one of them.
func (r *readers) pinned(ctx context.Context, round int) error {
	names := make([]string, min(8, len(r.datasets)))
	for i := range names { // another random choice each time
		names[i] = r.datasets[(round+i*(len(r.datasets)/len(names)))%len(r.datasets)]
	}
	var generations []storage.Generation
	var partitions [][]storage.Partition
	err := pgx.BeginTxFunc(ctx, r.asked, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT set_config('dagctl.org', $1, true)`,
				r.caller.OrgID.String()); err != nil {
				return err
			}
			for _, name := range names {
				g, p, _, err := r.registry.ResolveForRead(ctx, tx, r.caller, name)
				if err != nil {
					return err
				}
				generations, partitions = append(generations, g), append(partitions, p)
			}
			return nil
		})
	if err != nil {
		return err
	}

	deploy := r.deployOf[generations[0].Version]
	for i, g := range generations {
		if r.deployOf[g.Version] != deploy || deploy == "" {
			return errTorn(fmt.Sprintf("in one snapshot: %s is of deploy %q, %s of deploy %q", names[0], deploy,
				names[i], r.deployOf[g.Version]))
		}
	}

	i := round % len(names)
	_, rows, err := r.storage.Preview(ctx, generations[i], partitions[i], 100, 0)
	if err != nil {
		return err
	}
	return r.check("in one snapshot: "+names[i], deploy, rows)
}

const viewsOfDeploy = `SELECT 'stored', coalesce(string_agg(DISTINCT deploy, '+'), ''), count(*) FROM data_acme.stored
	UNION ALL SELECT 'kept', coalesce(string_agg(DISTINCT deploy, '+'), ''), count(*) FROM data_acme.kept`

// statement reads two stable views in one statement.
func (r *readers) statement(ctx context.Context) error {
	seen, err := viewed(ctx, r.sql, viewsOfDeploy)
	if err != nil {
		return err
	}
	return sameDeploy("in one statement", seen)
}

// transaction reads two stable views by two statements of one snapshot.
func (r *readers) transaction(ctx context.Context) error {
	var seen []string
	err := pgx.BeginTxFunc(ctx, r.sql, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			for sql := range strings.SplitSeq(viewsOfDeploy, "UNION ALL") {
				some, err := viewed(ctx, tx, sql)
				if err != nil {
					return err
				}
				seen = append(seen, some...)
			}
			return nil
		})
	if err != nil {
		return err
	}
	return sameDeploy("in one transaction", seen)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// viewed runs a query of (view, deploys, rows).
func viewed(ctx context.Context, q querier, sql string) ([]string, error) {
	rows, err := q.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var view, deploys string
		var n int
		err := row.Scan(&view, &deploys, &n)
		return fmt.Sprintf("%s %d", deploys, n), err
	})
}

func sameDeploy(what string, seen []string) error {
	for _, s := range seen {
		if s != seen[0] || s != fmt.Sprintf("A %d", swapRows) && s != fmt.Sprintf("B %d", swapRows) {
			return errTorn(fmt.Sprintf("%s: %v", what, seen))
		}
	}
	return nil
}

// report logs the readers' figures and fails the test if one of them saw an inconsistent answer.
func (r *readers) report(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, first(r.torn), "%d readers saw two deploys mixed", len(r.torn))
	require.Empty(t, first(r.failed), "%d reads failed", len(r.failed))
	for kind, name := range []string{"over HTTP", "by SQL", "query path"} {
		t.Logf("%s: %d reads, the slowest %v", name, r.reads[kind].Load(), time.Duration(r.slowest[kind].Load()).
			Round(time.Millisecond))
	}
}

func first(s []string) []string { return s[:min(3, len(s))] }

// lockWatch measures how long sessions wait for locks on relations, which a swap could cause.
type lockWatch struct {
	longest time.Duration
	query   string
}

func (l *lockWatch) run(ctx context.Context, pool *pgxpool.Pool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	since := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}

		now := time.Now()
		rows, err := pool.Query(ctx, `SELECT pid || ' ' || query_start, query FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'
				AND query ~* '^\s*(SELECT|EXPLAIN)'`)
		if err != nil {
			continue
		}

		waits := map[string]time.Time{}
		var id, query string
		_, _ = pgx.ForEachRow(rows, []any{&id, &query}, func() error {
			waits[id] = now
			if began, was := since[id]; was {
				waits[id] = began
			}
			if d := now.Sub(waits[id]); d >= l.longest {
				l.longest, l.query = d, query
			}
			return nil
		})
		since = waits
	}
}

// swapper moves the swap DAG between two versions, forward by a deploy and back by a rollback.
type swapper struct {
	server   *server
	versions map[string]int // by deploy
	active   string
	times    []time.Duration // of rollbacks, as the client sees them
}

// other switches to the version that is not live, by a deploy or by a rollback.
func (s *swapper) other(ctx context.Context, back bool) error {
	to := "A"
	if s.active == "A" {
		to = "B"
	}
	start := time.Now()
	if back {
		var r *refused
		if err := s.server.rollback(ctx, "swap", s.versions[to]); errors.As(err, &r) &&
			strings.Contains(r.body, "is already active") {
			err = nil // a killed server had done it but could not answer
		} else if err != nil {
			return err
		}
		s.times = append(s.times, time.Since(start))
		s.active = to
		return nil
	}

	v, err := s.server.deploy(ctx, "swap", swapDAG(to))
	if err != nil {
		return err
	}
	for v.Status != registry.Active {
		if v.Status == registry.Failed {
			return errTorn("deploy " + to + " failed: " + v.Error)
		}
		select { // do not load the machine with constant requests
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
		if v, err = s.server.version(ctx, "swap", v.Number); err != nil {
			return err
		}
	}

	s.active, s.versions[to] = to, v.Number
	return nil
}

// generationsOf returns the deploy that made each generation.
func generationsOf(t *testing.T, pool *pgxpool.Pool, dag string, versions map[string]int) map[uuid.UUID]string {
	t.Helper()
	of := map[uuid.UUID]string{}
	for deploy, number := range versions {
		rows, err := pool.Query(t.Context(), `SELECT p.dataset_version FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id
			WHERE v.dag_name = $1 AND v.number = $2 AND p.job_name <> 'landing'`, dag, number)
		require.NoError(t, err)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		require.NoError(t, err)
		for _, id := range ids {
			of[id] = deploy
		}
	}
	return of
}

// TestReadersNeverSeeTwoDeploys swaps a DAG back and forth under readers of every kind.
func TestReadersNeverSeeTwoDeploys(t *testing.T) {
	const swaps = 40
	w := newWorld(t)
	for name, content := range swapFiles {
		w.drop(name, content)
	}

	w.start(w.d)
	w.start(w.dispatcher("second", runtimes[0]))
	api := w.listen()
	s := &swapper{server: api, versions: map[string]int{}}
	for range 2 { // both are built before anyone reads
		require.NoError(t, s.other(t.Context(), false))
	}

	r := &readers{server: api, sql: w.open(pg.Open, 12), asked: w.open(pg.OpenRequests, 6), registry: w.registry,
		storage: w.storage, caller: w.caller, datasets: swapped,
		deployOf: generationsOf(t, w.pool, "swap", s.versions)}
	ctx, stop := context.WithCancel(t.Context())
	var watch lockWatch
	var reading sync.WaitGroup
	reading.Go(func() { watch.run(ctx, w.pool) })
	reading.Go(func() { r.read(ctx, 24) })
	start := time.Now()
	for i := range swaps {
		require.NoError(t, s.other(t.Context(), i%2 == 1), "swap %d", i)
	}

	took := time.Since(start)
	stop()
	reading.Wait()
	r.report(t)
	t.Logf("%d swaps in %v; the median rollback %v as its caller saw it; the longest wait of a reader for a lock %v "+
		"(%s)",
		swaps, took.Round(time.Millisecond), median(s.times).Round(time.Millisecond),
		watch.longest.Round(time.Millisecond), cmp.Or(watch.query, "none"))
	require.Equal(t, swaps+2, w.count(`SELECT FROM dag_activations`))
	require.Equal(t, 2, w.count(`SELECT FROM dag_versions`), "the same documents are the same versions")
}

func median(d []time.Duration) time.Duration { return quantile(d, 0.5) }

// quantile returns the duration that the share q of the durations does not exceed; 0 if there are none.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
