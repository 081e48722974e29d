package examples_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

func TestMain(m *testing.M) { os.Exit(processtest.Main(m)) }

// world is a copy of an example, and a database for the servers that run it.
type world struct {
	dir    string // the copy
	data   string // data folder of the servers
	dbURL  string
	s3     *storage.S3Config // of the servers; nil: files are in the data folder
	owner  *pgxpool.Pool
	reader *pgxpool.Pool
}

func newWorld(t testing.TB, example string) *world {
	t.Helper()
	return newWorldOn(t, example, testdb.URL(t))
}

// newWorldOn returns a world with a database of the caller's.
func newWorldOn(t testing.TB, example, url string) *world {
	t.Helper()
	w := &world{dir: copyOf(t, example), data: t.TempDir(), dbURL: url}
	var err error
	w.owner, err = pg.Open(t.Context(), w.dbURL, pg.WithMaxConns(4))
	require.NoError(t, err)
	t.Cleanup(w.owner.Close)
	w.reader, err = pg.OpenRequests(t.Context(), w.dbURL, pg.WithMaxConns(4))
	require.NoError(t, err)
	t.Cleanup(w.reader.Close)
	t.Cleanup(func() {
		if t.Failed() {
			w.logOpen(t)
		}
	})
	return w
}

// logOpen logs what settle would wait for.
func (w *world) logOpen(t testing.TB) {
	t.Helper()
	for _, open := range []string{"dag_versions WHERE status IN ('Staged', 'Building', 'Ready')",
		"tasks WHERE status NOT IN ('Completed', 'Cancelled')", "ready", "waiting", "leases",
		"outbox WHERE status <> 'Done'"} {
		rows, err := w.owner.Query(context.Background(),
			"SELECT now()::text || ' ' || to_jsonb(r)::text FROM (SELECT * FROM "+open+") r")
		if err != nil {
			t.Logf("%s: %v", open, err)
			continue
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		t.Logf("%s: %v\n%s", open, err, strings.Join(lines, "\n"))
	}
}

func copyOf(t testing.TB, example string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), example)
	require.NoError(t, os.CopyFS(dir, os.DirFS(example)))
	return dir
}

// serve starts `dagctl dev` on the copy.
func (w *world) serve(t testing.TB, flags ...string) *processtest.Server {
	t.Helper()
	return processtest.Dev(t, w.dir, w.data, append(flags, "--database-url", w.dbURL)...)
}

// ask runs a command against the running server.
func ask[T any](t testing.TB, w *world, args ...string) T {
	t.Helper()
	return processtest.Decode[T](t, w.dir, append(args, "--data", w.data)...)
}

// count reads a number from the database.
func (w *world) count(t testing.TB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, w.owner.QueryRow(t.Context(), query, args...).Scan(&n))
	return n
}

// settle waits until nothing is left to do.
func (w *world) settle(t testing.TB) {
	t.Helper()
	w.settleWithin(t, 2*time.Minute)
}

func (w *world) settleWithin(t testing.TB, limit time.Duration) {
	t.Helper()
	processtest.Within(t, limit, "all is computed", func() bool {
		return w.count(t, `SELECT count(*) FROM dag_versions WHERE status IN ('Staged', 'Building', 'Ready')`) == 0 &&
			w.count(t, `SELECT count(*) FROM dag_versions WHERE status = 'Active'`) > 0 &&
			w.count(t, `SELECT (SELECT count(*) FROM outbox WHERE status = 'Pending') + (SELECT count(*) FROM ready)
				+ (SELECT count(*) FROM leases) + (SELECT count(*) FROM waiting)`) == 0
	})
}

// files returns local Parquet files with the live rows of a dataset.
func (w *world) files(t testing.TB, dataset string) []string {
	t.Helper()
	org, err := authz.OrgBySlug(t.Context(), w.owner, "local")
	require.NoError(t, err)

	store, err := storage.New(storage.Config{Root: filepath.Join(w.data, "storage"), Pool: w.owner, S3: w.s3,
		Rows: enginetest.Engines()})
	require.NoError(t, err)
	reg, err := registry.New(registry.Config{Pool: w.owner, Requests: w.reader, Storage: store, Catalog: catalog(t)})
	require.NoError(t, err)

	caller := authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "test", Role: authz.RoleAdmin}
	var generation storage.Generation
	var partitions []storage.Partition
	err = pg.InOrgTx(t.Context(), w.reader, org.ID, func(ctx context.Context, tx pgx.Tx) error {
		generation, partitions, _, err = reg.ResolveForRead(ctx, tx, caller, dataset)
		return err
	})
	require.NoError(t, err)

	opened, err := store.Open(t.Context(), generation, partitions, t.TempDir())
	require.NoError(t, err)
	return slices.Concat(opened...)
}

// document returns the example's DAG.
func document(t testing.TB, dir string) *dag.Document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "dag.yaml"))
	require.NoError(t, err)
	doc, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: text, Files: os.DirFS(dir)}, catalog(t))
	require.Empty(t, problems)
	return doc
}

// catalog returns the catalog of dagctl's operators.
func catalog(t testing.TB) dag.Catalog {
	t.Helper()
	builtin, err := standard.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	return builtin.Catalog(nil)
}

// session returns a DuckDB session without restrictions, to compare dagctl with.
func session(t testing.TB) *duck.Session {
	t.Helper()
	s, err := duck.Open(t.Context(), duck.Config{AnyPath: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// equal requires that a dataset has the same columns, types and rows as a table of the session, each row as often.
func (w *world) equal(t testing.TB, s *duck.Session, dataset, table string) {
	t.Helper()
	files := w.files(t, dataset)
	require.NotEmpty(t, files, dataset)

	got := "SELECT * FROM " + duck.ReadParquet(files)
	want := "SELECT * FROM " + sqltext.Quote(table)
	gotColumns, err := s.Describe(t.Context(), got)
	require.NoError(t, err)

	wantColumns, err := s.Describe(t.Context(), want)
	require.NoError(t, err)
	require.Equal(t, wantColumns, gotColumns, dataset)

	for name, query := range map[string]string{
		"rows":       "SELECT abs((SELECT count(*) FROM (" + want + ")) - (SELECT count(*) FROM (" + got + ")))",
		"missing":    "SELECT count(*) FROM (" + want + " EXCEPT ALL " + got + ")",
		"unexpected": "SELECT count(*) FROM (" + got + " EXCEPT ALL " + want + ")",
	} {
		var n int64
		require.NoError(t, s.Value(t.Context(), &n, query))
		require.Zero(t, n, "%s: %s", dataset, name)
	}
}
