package lineage_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/flow"
)

// many fills an org with DAGs of 500 jobs, each with its versions. Job n of a DAG reads two jobs before it, and the
// first one of a DAG reads the last one of the DAG before; each dataset has columns a and b, computed from a and b.
func many(t *testing.T, pool *pgxpool.Pool, dags, versions int) (org uuid.UUID) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, conn.QueryRow(t.Context(),
		`INSERT INTO orgs (name, slug) VALUES ('acme', 'acme') RETURNING id`).Scan(&org))

	for _, sql := range []string{`SET session_replication_role = replica`, `
		CREATE TEMP TABLE d AS SELECT g AS dag, n, gen_random_uuid() AS id, gen_random_uuid() AS generation
		FROM generate_series(1, $2::int) g, generate_series(1, 500) n WHERE $3::int > 0 AND $1::uuid IS NOT NULL`, `
		CREATE TEMP TABLE v AS SELECT g AS dag, n, gen_random_uuid() AS id
		FROM generate_series(1, $2::int) g, generate_series(1, $3::int) n WHERE $1::uuid IS NOT NULL`, `
		ANALYZE d, v`, `
		INSERT INTO dag_versions (id, org_id, dag_name, number, yaml_hash, source_hash, yaml, status, created_by,
			activated_at, ended_at)
		SELECT id, $1, 'dag-' || dag, n, 'h' || n, '', '', CASE WHEN n = $3 THEN 'Active' ELSE 'Superseded' END, 'user:t',
			now() - ($3 - n) * interval '1 hour', CASE WHEN n < $3 THEN now() - ($3 - n - 1) * interval '1 hour' END
		FROM v WHERE $2 > 0`, `
		INSERT INTO dag_activations (id, org_id, dag_name, dag_version_id, reason, actor, at)
		SELECT gen_random_uuid(), org_id, dag_name, id, 'deploy', 'user:t', activated_at FROM dag_versions
		WHERE org_id = $1 AND $2::int + $3::int > 0`, `
		INSERT INTO dag_current_versions (org_id, dag_name, dag_version_id)
		SELECT $1, 'dag-' || dag, id FROM v WHERE n = $3 AND $2::int > 0`, `
		INSERT INTO datasets (id, org_id, name, published, producer_dag_name, producer_job_name, producer_output_index)
		SELECT id, $1, 'd_' || dag || '_' || n, true, 'dag-' || dag, 'j' || n, 0 FROM d WHERE $2::int + $3::int > 0`, `
		INSERT INTO dataset_versions (id, org_id, dataset_uuid, origin_job_id, storage_location, config_hash, schema,
			created_by_dag_version)
		SELECT generation, $1, id, generation, '', id::text, '[{"name": "a"}, {"name": "b"}]', generation
		FROM d WHERE $2::int + $3::int > 0`, `
		INSERT INTO dag_version_datasets (org_id, dag_version_id, dataset_uuid, dataset_version, job_name, output_index,
			name, published_name)
		SELECT $1, v.id, d.id, d.generation, 'j' || d.n, 0, 'd_' || d.dag || '_' || d.n, 'd_' || d.dag || '_' || d.n
		FROM d JOIN v ON v.dag = d.dag WHERE $2::int + $3::int > 0`, `
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint,
			activation, runtime, operator, operator_version, config_hash, update_strategy, effect, definition)
		SELECT gen_random_uuid(), $1, 'j' || d.n, 'dag-' || d.dag, v.id, d.generation, v.n::text, '', 'reactive',
			'dispatcher', 'sql', '1', '', 'replace', 'internal', '{}'
		FROM d JOIN v ON v.dag = d.dag WHERE $2::int + $3::int > 0`, `
		ANALYZE jobs`, `
		INSERT INTO job_inputs (org_id, job_id, input_index, dataset_uuid, in_dag, triggers, dag_version_id)
		SELECT $1, j.id, i, u.id, u.dag = d.dag, true, v.id
		FROM d JOIN v ON v.dag = d.dag JOIN jobs j ON j.dag_version_id = v.id AND j.name = 'j' || d.n
		CROSS JOIN generate_series(0, 1) i
		JOIN d u ON CASE WHEN d.n = 1 THEN i = 0 AND u.dag = d.dag - 1 AND u.n = 500
			ELSE u.dag = d.dag AND u.n = greatest(1, d.n - 1 - i * (1 + d.n % 20)) AND (i = 0 OR d.n > 2) END
		WHERE $2::int + $3::int > 0`, `
		INSERT INTO column_lineage (org_id, output_dataset_uuid, output_dataset_version, output_column,
			input_dataset_uuid, input_dataset_version, input_column, transform)
		SELECT DISTINCT $1::uuid, o.id, o.generation, c, u.id, u.generation, c, 'identity'
		FROM job_inputs i JOIN jobs j ON j.id = i.job_id JOIN v ON v.id = j.dag_version_id AND v.n = $3
		JOIN d o ON o.generation = j.origin_job_id JOIN d u ON u.id = i.dataset_uuid, unnest('{a,b}'::text[]) c
		WHERE $2::int > 0`, `SET session_replication_role = origin`, `ANALYZE`} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = []any{org, dags, versions}
		}
		_, err := conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err, sql)
	}
	return org
}

// counting counts the statements of a pool.
type counting struct{ n atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (*counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// readersAbroad asks who reads what a DAG makes, in others: that looks at no job of the DAG itself.
func readersAbroad(ctx context.Context, t *testing.T, tx pgx.Tx, caller authz.Caller) error {
	t.Helper()
	read := func() (n int64) {
		require.NoError(t, tx.QueryRow(ctx, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE relname = 'jobs'`).Scan(&n))
		return n
	}
	rows, err := tx.Query(ctx, `SELECT id FROM datasets WHERE producer_dag_name = 'dag-5'`)
	require.NoError(t, err)
	made, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	live, err := flow.ServingAt(ctx, tx, caller, "dag-5", registry.Live)
	require.NoError(t, err)

	before := read()
	readers, err := flow.Abroad(ctx, tx, caller, live, made)
	require.NoError(t, err)
	require.Len(t, readers, 1)
	require.Equal(t, "dag-6", readers[0].DAG)
	require.Less(t, read()-before, int64(10))
	return nil
}

// The graph of 5,000 datasets of ten DAGs is there while one waits, for whoever asks, now and as of long ago.
func TestLargeGraphs(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	pool, err := pg.Open(t.Context(), url, pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	statements := new(counting)
	requests, err := pg.OpenRequests(t.Context(), url, pg.WithMaxConns(2),
		func(c *pgxpool.Config) { c.ConnConfig.Tracer = statements })
	require.NoError(t, err)
	t.Cleanup(requests.Close)
	org := many(t, pool, 10, 4)
	r, err := registry.New(registry.Config{Pool: pool, Requests: requests,
		Catalog: dag.Catalog{Operators: map[string]dag.OperatorSpec{"sql": {}}}})
	require.NoError(t, err)
	l, err := lineage.New(requests, r)
	require.NoError(t, err)

	admin := authz.Caller{OrgID: org, OrgSlug: "acme", Actor: "user:admin", Role: authz.RoleAdmin}
	reader := authz.Caller{OrgID: org, OrgSlug: "acme", Actor: "user:reader", Role: authz.RoleReader}
	ask := func(what string, caller authz.Caller, q lineage.Query) lineage.Graph {
		ctx := context.Background()
		if caller.Role == authz.RoleReader {
			ctx = pg.WithReader(ctx, pg.Reader{})
		}
		began, before := time.Now(), statements.n.Load()
		g, err := l.Graph(ctx, caller, q)
		took := time.Since(began)
		require.NoError(t, err)
		require.Less(t, statements.n.Load()-before, int64(60), "not two for each of a hundred steps")
		t.Logf("%s: %d nodes, %d edges in %s", what, len(g.Nodes), len(g.Edges), took.Round(time.Millisecond))
		require.Less(t, took, 30*time.Second, "one or two on an idle machine")
		return g
	}

	require.NoError(t, pg.InOrgTx(t.Context(), pool, org, func(ctx context.Context, tx pgx.Tx) error {
		return readersAbroad(ctx, t, tx, admin)
	}))

	whole := lineage.Query{Dataset: "d_10_500", Direction: lineage.Up, Depth: lineage.MaxDepth, Nodes: lineage.MaxNodes}
	g := ask("100 steps up", admin, whole)
	require.True(t, g.Truncated)
	require.Equal(t, "depth", g.TruncatedBy)
	whole.Dataset, whole.Direction = "d_5_250", lineage.Both
	for _, caller := range []authz.Caller{admin, reader} {
		whole.At, whole.Columns = "", false
		now := ask("now, "+string(caller.Role), caller, whole)
		whole.Columns = true
		require.NotEmpty(t, ask("with columns", caller, whole).Edges[0].Columns)
		whole.Columns, whole.At = false, "v2"
		then := ask("as of v2", caller, whole)
		require.Len(t, then.Nodes, len(now.Nodes))
		require.Equal(t, 2, then.Node(then.Root).DAGVersion)
	}

	few := ask("300 nodes", reader, lineage.Query{Dataset: "d_5_250", Depth: lineage.MaxDepth, Nodes: 300})
	require.Equal(t, "size", few.TruncatedBy)
	require.Len(t, few.Nodes, 300)
	five := lineage.Query{Dataset: "d_5_250", Depth: 5, Nodes: 300, Column: "a"}
	ask("five steps of a column", reader, five)

	// Deploys make no circles; if there is one, it ends all the same.
	_, err = pool.Exec(t.Context(), `
		INSERT INTO job_inputs (org_id, job_id, input_index, dataset_uuid, in_dag, triggers, dag_version_id)
		SELECT j.org_id, j.id, 5, d.id, true, true, j.dag_version_id
		FROM jobs j JOIN datasets d ON d.name = 'd_5_252' WHERE j.dag_name = 'dag-5' AND j.name = 'j248'`)
	require.NoError(t, err)
	five.Column = ""
	circle, around := ask("a circle", reader, five), 0
	for _, e := range circle.Edges {
		if circle.Node(e.From).Dataset == "d_5_252" && circle.Node(e.To).Dataset == "d_5_248" {
			around++
		}
	}
	require.Equal(t, 1, around)

	// Whole DAGs lead to the same graph as one step after the other.
	_, err = pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{role:x}' WHERE name IN ('d_4_400', 'd_6_20')`)
	require.NoError(t, err)
	for _, caller := range []authz.Caller{admin, reader} {
		ctx := context.Background()
		if caller.Role == authz.RoleReader {
			ctx = pg.WithReader(ctx, pg.Reader{})
		}
		for _, nodes := range []int{700, lineage.MaxNodes} {
			q := lineage.Query{Dataset: "d_5_250", Depth: lineage.MaxDepth, Nodes: nodes}
			slow, err := l.StepByStep().Graph(ctx, caller, q)
			require.NoError(t, err)
			g := ask("the same", caller, q)
			require.Equal(t, slow.Nodes, g.Nodes)
			require.Equal(t, slow.Edges, g.Edges)
			require.Equal(t, slow.TruncatedBy, g.TruncatedBy)
		}
	}
}
