package storage_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, content, 0o600))
}

// pointers writes the rows that the view reads, without the rows that they refer to.
type pointers struct {
	pool     *pgxpool.Pool
	view     storage.View
	dataset  uuid.UUID
	versions []uuid.UUID // of the DAG, one for each generation
}

func (p *pointers) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
		// No foreign keys
		if _, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	}))
}

func (p *pointers) pin(t *testing.T, generation uuid.UUID) {
	t.Helper()
	version := uuid.New()
	p.exec(t, `INSERT INTO dag_version_datasets (org_id, dag_version_id, dataset_uuid, dataset_version, job_name,
		output_index, name, published_name)
		VALUES ($1, $2, $3, $4, 'j', 0, $5, $5)`, p.view.OrgID, version, p.dataset, generation, p.view.Name)
	p.versions = append(p.versions, version)
}

func (p *pointers) cutover(t *testing.T, version uuid.UUID) {
	t.Helper()
	p.exec(t, `INSERT INTO dag_current_versions (org_id, dag_name, dag_version_id) VALUES ($1, $2, $3)
		ON CONFLICT (org_id, dag_name) DO UPDATE
			SET dag_version_id = excluded.dag_version_id`, p.view.OrgID, p.view.DAG, version)
	p.exec(t, `INSERT INTO dataset_names (org_id, name, dag_name, dataset_uuid, activation_id) VALUES ($1, $2, $3, $4, $4)
		ON CONFLICT DO NOTHING`, p.view.OrgID, p.view.Name, p.view.DAG, p.dataset)
}

func TestViewFollowsThePointer(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	old := attempt(storage.Postgres, "all")
	candidate := old
	candidate.Generation.Version, candidate.Task = uuid.New(), uuid.New()
	publish(t, s, pool, old, 1, "SELECT 'old' AS v")
	publish(t, s, pool, candidate, 1, "SELECT 'new' AS v")

	v := storage.View{OrgID: old.Generation.OrgID, OrgSlug: "acme", DAG: `it's \ a "dag`, Name: "quakes",
		Generations: []uuid.UUID{old.Generation.Version}}
	p := &pointers{pool: pool, view: v, dataset: old.Generation.Dataset}
	p.exec(t, `INSERT INTO orgs (id, slug, name) VALUES ($1, $2, $2)`, v.OrgID, v.OrgSlug)
	p.pin(t, old.Generation.Version)
	p.pin(t, candidate.Generation.Version)
	read := func() []string {
		rows, err := pool.Query(t.Context(), `SELECT v FROM data_acme.quakes`)
		require.NoError(t, err)
		values, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return values
	}
	require.NoError(t, s.EnsureView(t.Context(), v))
	_, err := pool.Exec(t.Context(), `SELECT v FROM data_acme.quakes`)
	require.ErrorContains(t, err, "is not published: no version of DAG", "nothing is current yet")

	p.cutover(t, p.versions[0])
	require.Equal(t, []string{"old"}, read())
	shown, err := pool.Query(t.Context(), `SELECT * FROM data_acme.quakes`)
	require.NoError(t, err)
	require.Len(t, shown.FieldDescriptions(), 1, "the platform's own columns do not show")
	shown.Close()

	v.Generations = append(v.Generations, candidate.Generation.Version, uuid.New()) // the last has no table yet
	require.NoError(t, s.EnsureView(t.Context(), v))
	require.Equal(t, []string{"old"}, read(), "a candidate does not show")

	// A snapshot taken before the cutover still sees the old generation.
	before, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer before.Rollback(t.Context())

	var value string
	require.NoError(t, before.QueryRow(t.Context(), `SELECT v FROM data_acme.quakes`).Scan(&value))
	p.cutover(t, p.versions[1])
	require.Equal(t, []string{"new"}, read())
	require.NoError(t, before.QueryRow(t.Context(), `SELECT v FROM data_acme.quakes`).Scan(&value))
	require.Equal(t, "old", value)

	// A view that is up to date is not touched. While it is read it cannot be narrowed, and nobody waits for long.
	v.Generations[0], v.Generations[1] = v.Generations[1], v.Generations[0]
	require.NoError(t, s.EnsureView(t.Context(), v))

	v.Generations = v.Generations[:1]
	err = s.EnsureView(t.Context(), v)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.NoError(t, before.Rollback(t.Context()))
	require.NoError(t, s.EnsureView(t.Context(), v))
	require.Equal(t, []string{"new"}, read())

	// Only one generation is scanned.
	rows, err := pool.Query(t.Context(),
		`EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT * FROM data_acme.quakes`)
	require.NoError(t, err)

	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "One-Time Filter")
}

func TestViewOfOtherColumns(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	old := attempt(storage.Postgres, "all")
	candidate := old
	candidate.Generation.Version, candidate.Task = uuid.New(), uuid.New()
	publish(t, s, pool, old, 1, "SELECT 'old' AS v, 1 AS n")
	publish(t, s, pool, candidate, 1, "SELECT 2 AS v")
	long := strings.Repeat("long_", 20)
	v := storage.View{OrgID: old.Generation.OrgID, OrgSlug: "acme", DAG: "d", Name: long,
		Generations: []uuid.UUID{old.Generation.Version}}
	p := &pointers{pool: pool, view: v, dataset: old.Generation.Dataset}
	p.pin(t, candidate.Generation.Version)
	p.cutover(t, p.versions[0])
	require.NoError(t, s.EnsureView(t.Context(), v))

	v.Generations = append(v.Generations, candidate.Generation.Version)
	require.True(t, fault.Is(s.EnsureView(t.Context(), v), fault.Conflict))
	v.Generations = v.Generations[1:]
	require.NoError(t, s.EnsureView(t.Context(), v))

	var value int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT v FROM data_acme."`+storage.ViewName(long)+`"`).Scan(&value))
	require.Equal(t, 2, value)

	v.Name = `x"; DROP SCHEMA public CASCADE; --`
	require.True(t, fault.Is(s.EnsureView(t.Context(), v), fault.Invalid))
}
