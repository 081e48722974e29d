package proof_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

// deploysOf is one statement that returns, for each dataset of the swap DAG, the deploys that made its rows and the
// number of rows.
var deploysOf = func() string {
	parts := make([]string, len(swapped))
	for i, name := range swapped {
		parts[i] = fmt.Sprintf("SELECT '%[1]s' AS name, string_agg(DISTINCT deploy, '+') AS deploys, count(*) AS n "+
			"FROM %[1]s", name)
	}
	return strings.Join(parts, " UNION ALL ")
}()

// ofOneDeploy checks an answer to deploysOf, and returns the deploy.
func ofOneDeploy(answer query.Answer, deployOf map[uuid.UUID]string) (string, error) {
	deploy := deployOf[answer.Datasets[0].Version]
	for _, d := range answer.Datasets {
		if deployOf[d.Version] != deploy || deploy == "" {
			return "", errTorn(fmt.Sprintf("pinned deploys %q and %q", deploy, deployOf[d.Version]))
		}
	}

	for _, row := range answer.Rows {
		if row[1] != any(deploy) || fmt.Sprint(row[2]) != fmt.Sprint(swapRows) {
			return "", errTorn(fmt.Sprintf("pinned deploy %q, read %v", deploy, answer.Rows))
		}
	}

	if len(answer.Rows) != len(swapped) {
		return "", errTorn(fmt.Sprintf("read %v", answer.Rows))
	}
	return deploy, nil
}

// serveSwaps builds both deploys of the swap DAG, A and then B.
func serveSwaps(w *world) *swapper {
	for name, content := range swapFiles {
		w.drop(name, content)
	}
	w.start(w.d)
	s := &swapper{server: w.listen(), versions: map[string]int{}}
	for range 2 {
		require.NoError(w.t, s.other(w.t.Context(), false))
	}
	return s
}

// TestQueriesNeverMixDeploys reads all datasets of a DAG, in both kinds of storage, while it is swapped back and forth.
func TestQueriesNeverMixDeploys(t *testing.T) {
	const swaps = 50
	w := newWorld(t)
	s := serveSwaps(w)
	deployOf := generationsOf(t, w.pool, "swap", s.versions)
	ctx, stop := context.WithCancel(t.Context())
	var (
		asking  sync.WaitGroup
		answers atomic.Int64
		mu      sync.Mutex
		seen    = map[string]int{}
		wrong   []string
	)

	for range 3 {
		asking.Go(func() {
			for ctx.Err() == nil {
				answer, err := w.query.Run(ctx, w.caller, query.Statement{SQL: deploysOf})
				deploy := ""
				if err == nil {
					deploy, err = ofOneDeploy(answer, deployOf)
				}
				if err != nil && ctx.Err() != nil {
					return
				}
				mu.Lock()
				if err != nil {
					wrong = append(wrong, err.Error())
				}
				seen[deploy]++
				mu.Unlock()
				answers.Add(1)
			}
		})
	}

	for i := range swaps {
		before := answers.Load()
		require.NoError(t, s.other(t.Context(), true), "swap %d", i)
		w.eventually("another answer", func() bool { return answers.Load() > before })
	}

	stop()
	asking.Wait()
	require.Empty(t, first(wrong), "%d answers are wrong", len(wrong))
	require.Positive(t, seen["A"])
	require.Positive(t, seen["B"])
	w.eventually("every hold to end", func() bool { return w.count(`SELECT FROM reader_leases`) == 0 })
	t.Logf("%d swaps, %d answers: %v", swaps, answers.Load(), seen)
}

// TestQueriesReadOtherMoments reads versions that are not live: the candidate, and an earlier one until it is purged.
func TestQueriesReadOtherMoments(t *testing.T) {
	w := newWorld(t)
	s := serveSwaps(w)
	coming := w.deploy(strings.ReplaceAll(swapDAG("C"), "  kept: {", "  kept_anew: {"), parked)
	w.reach(coming, registry.Ready)
	s.versions["C"] = coming.Version.Number
	deployOf := generationsOf(t, w.pool, "swap", s.versions)
	run := func(caller authz.Caller, sql string, at registry.Moment) (query.Answer, error) {
		return w.query.Run(t.Context(), caller, query.Statement{SQL: sql, At: at})
	}

	anew := strings.ReplaceAll(deploysOf, "kept", "kept_anew")
	for _, test := range []struct {
		sql, want string
		at        registry.Moment
	}{
		{deploysOf, "B", registry.Moment{}},
		{deploysOf, "B", registry.Moment{Which: registry.Live}},
		{deploysOf, "B", registry.Moment{Which: "latest"}},
		{anew, "C", registry.Moment{Which: registry.Candidate}},
		{anew, "C", registry.Moment{Which: registry.Candidate, DAG: "swap"}},
		{anew, "C", registry.Moment{Which: "3", DAG: "swap"}},
		{deploysOf, "B", registry.Moment{Which: "v2", DAG: "swap"}},
		{deploysOf, "A", registry.Moment{Which: "v1", DAG: "swap"}},
	} {
		answer, err := run(w.caller, test.sql, test.at)
		require.NoError(t, err, "%+v", test.at)
		deploy, err := ofOneDeploy(answer, deployOf)
		require.NoError(t, err)
		require.Equal(t, test.want, deploy, "%+v", test.at)
	}

	for _, test := range []struct {
		sql  string
		at   registry.Moment
		kind fault.Kind
	}{
		{anew, registry.Moment{}, fault.NotFound},
		{deploysOf, registry.Moment{Which: registry.Candidate}, fault.NotFound}, // kept has another name there
		{"SELECT 1", registry.Moment{Which: "v4", DAG: "swap"}, fault.NotFound},
		{"SELECT 1", registry.Moment{Which: registry.Candidate, DAG: "other"}, fault.NotFound},
		{"SELECT 1", registry.Moment{Which: "v1"}, fault.Invalid},
	} {
		_, err := run(w.caller, test.sql, test.at)
		require.Equal(t, test.kind, fault.KindOf(err), "%+v: %v", test.at, err)
	}

	reader := w.caller
	reader.Role = authz.RoleReader
	_, err := run(reader, "SELECT 1 FROM stamped", registry.Moment{Which: registry.Candidate})
	require.Equal(t, fault.Forbidden, fault.KindOf(err))

	_, err = run(w.caller, `SELECT count(*) FROM "swap/landing/0"`, registry.Moment{})
	require.NoError(t, err)
	_, err = run(reader, `SELECT count(*) FROM "swap/landing/0"`, registry.Moment{})
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

// TestGCTakesNothingFromARunningQuery runs gc while a query reads a version that nothing else refers to. A lock on one
// of its tables keeps the query waiting.
func TestGCTakesNothingFromARunningQuery(t *testing.T) {
	w := newWorld(t)
	s := serveSwaps(w)
	deployOf := generationsOf(t, w.pool, "swap", s.versions)
	w.settle()
	gc := func(dry bool) int {
		found, err := w.d.Upkeep.CollectGarbage(t.Context(), w.caller, dry, time.Now())
		require.NoError(t, err)
		return len(found.Generations)
	}

	table := ""
	w.one(`SELECT format('%I.%I', 'data_acme', '_g_' || replace(p.dataset_version::text, '-', ''))
		FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id
		WHERE v.number = 1 AND p.job_name = 'stored'`)(&table)
	lock, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }()

	_, err = lock.Exec(t.Context(), `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)

	at := registry.Moment{Which: "v1", DAG: "swap"}
	type result struct {
		answer query.Answer
		err    error
	}

	answered := make(chan result, 1)
	go func() {
		answer, err := w.query.Run(t.Context(), w.caller, query.Statement{SQL: deploysOf, At: at})
		answered <- result{answer, err}
	}()

	w.eventually("the query to wait for the table", func() bool {
		return w.count(`SELECT FROM reader_leases`) == len(swapped) &&
			w.count(`SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass`, table) == 1
	})

	// Only now version 1 becomes garbage: the server's own collection must not come before the query.
	w.exec(`UPDATE dag_versions SET ended_at = now() - interval '90 days' WHERE number = 1`)
	w.exec(`UPDATE dag_current_versions SET rollback_until = now() - interval '1 day'`)
	require.Zero(t, gc(false))
	require.NoError(t, lock.Rollback(t.Context()))

	r := <-answered
	require.NoError(t, r.err)
	deploy, err := ofOneDeploy(r.answer, deployOf)
	require.NoError(t, err)
	require.Equal(t, "A", deploy)

	require.Zero(t, w.count(`SELECT FROM reader_leases`))
	gc(false) // unless the server's own collection has come first
	require.Zero(t, gc(true), "the query is over, and version 1 is gone")
	_, err = w.query.Run(t.Context(), w.caller, query.Statement{SQL: deploysOf, At: at})
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.ErrorContains(t, err, "purged")
}

// A late hold is noticed: gc marks what a query has just resolved before the hold is committed.
func TestQueryNoticesThatGCWasFirst(t *testing.T) {
	w := newWorld(t)
	serveSwaps(w)
	w.settle()
	tx, err := w.asked.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()

	_, err = tx.Exec(t.Context(), `SELECT set_config('dagctl.org', $1, true)`, w.caller.OrgID.String())
	require.NoError(t, err)
	found, err := registry.Resolve(t.Context(), tx, w.caller, []string{"stamped"},
		registry.Moment{Which: "v1", DAG: "swap"})
	require.NoError(t, err)
	require.Len(t, found, 1)

	w.exec(`UPDATE dag_versions SET ended_at = now() - interval '90 days' WHERE number = 1`)
	w.exec(`UPDATE dag_current_versions SET rollback_until = now() - interval '1 day'`)
	_, err = w.d.Upkeep.CollectGarbage(t.Context(), w.caller, false, time.Now())
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))

	held := []registry.Readable{found["stamped"]}
	err = pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		return registry.StillThere(t.Context(), tx, w.caller.OrgID, held)
	})
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.ErrorContains(t, err, "dataset stamped of version v1 of DAG swap was purged")
}

// TestQueriesAreBounded fills every place with queries, checks that one more is refused, and that places become free
// when the clients go away.
func TestQueriesAreBounded(t *testing.T) {
	w := newWorld(t)
	limits := query.DefaultLimits
	limits.Concurrent = 2
	folders := t.TempDir()
	at, err := engine.New(engine.Config{Dir: folders})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, at.Close()) })
	w.query, err = query.New(query.Config{Requests: w.asked, Registry: w.registry, Storage: w.storage,
		Engines: at, Limits: limits})
	require.NoError(t, err)

	api := w.listen()
	// It runs until its client goes away.
	const endless = `{"sql": "SELECT sum(range % 7) FROM range(100000000000)"}`
	post := func(ctx context.Context, body string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, api.url+"/v1/query", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+api.token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := api.client.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return resp, err
	}

	ctx, goAway := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range limits.Concurrent {
		asking.Go(func() {
			for ctx.Err() == nil { // the checks below may take a place for a moment
				_, _ = post(ctx, endless)
			}
		})
	}

	w.eventually("a query to be turned away", func() bool {
		resp, err := post(t.Context(), `{"sql": "SELECT 1"}`)
		require.NoError(t, err)
		if resp.StatusCode == http.StatusTooManyRequests {
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
			return true
		}
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return false
	})

	goAway()
	asking.Wait()
	w.eventually("a place to be free", func() bool {
		resp, err := post(t.Context(), `{"sql": "SELECT 1"}`)
		require.NoError(t, err)
		return resp.StatusCode == http.StatusOK
	})

	w.eventually("the folders of the queries to go", func() bool {
		left, err := filepath.Glob(filepath.Join(folders, "engine-*"))
		return err == nil && len(left) == 0
	})
}

func TestSlowQueriesAreStopped(t *testing.T) {
	w := newWorld(t)
	limits := query.DefaultLimits
	limits.Timeout = 5 * time.Second // long enough to get as far as the engine on a loaded machine
	slow, err := query.New(query.Config{Requests: w.asked, Registry: w.registry, Storage: w.storage,
		Engines: engines(t), Limits: limits})
	require.NoError(t, err)
	_, err = slow.Run(t.Context(), w.caller, query.Statement{SQL: "SELECT sum(range % 7) FROM range(100000000000)"})
	require.Equal(t, fault.TooLarge, fault.KindOf(err))
	require.ErrorContains(t, err, "took longer than the 5s")
	require.Equal(t, 1,
		w.count(`SELECT FROM audit_log WHERE action = 'query.run' AND detail ->> 'failed' = 'too_large'`))
}
