package storage_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/storage"
)

func openTables(t *testing.T) (*storage.Storage, *pgxpool.Pool) {
	t.Helper()
	pool := testdb.New(t)
	s, err := storage.New(storage.Config{Root: t.TempDir(), Pool: pool, Rows: enginetest.Engines()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, pool
}

// publish seals a query's rows and publishes them in a transaction of its own.
func publish(
	t *testing.T, s *storage.Storage, pool *pgxpool.Pool, a storage.Attempt, revision int64, query string,
) storage.Partition {
	t.Helper()
	m, err := s.Seal(t.Context(), a, []string{parquet(t, query)})
	require.NoError(t, err)
	require.Equal(t, s.Location(a), m.Location)
	require.NoError(t, s.Verify(t.Context(), m))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return s.Publish(t.Context(), tx, a, revision, m)
	}))
	require.True(t, fault.Is(s.Verify(t.Context(), m), fault.NotFound), "published rows leave the staging table")
	return storage.Partition{Key: a.Partition, Revision: revision}
}

// content returns the rows of files, with their types.
func content(t *testing.T, query string, files ...string) string {
	t.Helper()
	session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	defer session.Close()

	from := strings.ReplaceAll(query, "FILES", duck.ReadParquet(files))
	columns, err := session.Describe(t.Context(), from)
	require.NoError(t, err)

	var b strings.Builder
	for _, c := range columns {
		b.WriteString(c.Name + " " + c.Type + "\n")
	}
	rows, err := session.Query(t.Context(), "SELECT CAST(whole AS VARCHAR) FROM ("+from+") AS whole")
	require.NoError(t, err)
	defer rows.Close()

	for rows.Next() {
		var row string
		require.NoError(t, rows.Scan(&row))
		b.WriteString(row + "\n")
	}
	require.NoError(t, rows.Err())
	return b.String()
}

func TestTablesRoundTrip(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "all")
	query := `SELECT * FROM (VALUES
		(1, true, (-128)::TINYINT, 255::UTINYINT, (-32768)::SMALLINT, 65535::USMALLINT, 2147483647::INTEGER,
			4294967295::UINTEGER, 9223372036854775807::BIGINT,
		 18446744073709551615::UBIGINT, (-12345678901234567890123456789012345678)::HUGEINT, 0.1::FLOAT, 1e-300::DOUBLE,
			12345.678::DECIMAL(18,3),
		 E'quote " comma , back \\ line\nend', DATE '2024-02-29', TIME '12:34:56.789',
			TIMESTAMP '2024-01-31 12:34:56.123456', TIMESTAMPTZ '2024-01-31 12:34:56+02',
		 INTERVAL '1 year 2 days 3 seconds', '6e1b9b3c-6d31-4e1a-8c0f-0a8f3a1b2c3d'::UUID, '\x00\xFFa'::BLOB,
			'{"a": [1, null]}'::JSON,
		 [1, NULL, 3], ['a,b', '"', NULL], {'x': 1, 'y': {'z': DATE '2024-01-31'}}, MAP {'k': 1.5::DOUBLE}, 'sad'),
		(2, false, 0, 0, 0, 0, 0, 0, 0, 0, (-1)::HUGEINT, 'inf'::FLOAT, 'nan'::DOUBLE, 0, '', DATE '0001-01-01',
			TIME '00:00:00', TIMESTAMP '1969-12-31 23:59:59.999999', TIMESTAMPTZ '1900-01-01 00:00:00+00',
		 INTERVAL '1 month', '00000000-0000-0000-0000-000000000000'::UUID, ''::BLOB, 'null'::JSON, [], [''],
			{'x': NULL, 'y': NULL}, MAP {}, 'happy'),
		(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
			NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
		(4, true, 1, 1, 1, 1, 1, 1, 1, 1, 1, '-inf'::FLOAT, -0.0::DOUBLE, 1, '\N', NULL, NULL, NULL, NULL, NULL, NULL,
			NULL, NULL, NULL, NULL, NULL, NULL, NULL),
		(5, true, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 'é 😀 NULL', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
			NULL, NULL, NULL, NULL)
	) AS t(n, "Bool", tiny, utiny, small, usmall, int, uint, big, ubig, huge, float, double, dec, "te""xt", day, clock,
		ts, tstz, span, id, bytes, js, ints, texts, nested, dict, mood)`

	original := parquet(t, query)
	columns := "SELECT * FROM FILES ORDER BY n"

	p := publish(t, s, pool, a, 1, query)
	files, err := s.Open(t.Context(), a.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)

	want := content(t, columns, original)
	require.Contains(t, want, "18446744073709551615")
	require.Equal(t, want, content(t, columns, files[0]...))

	// One column of NULLs and empty text: an empty line must not be lost or end the data.
	one := attempt(storage.Postgres, "all")
	p = publish(t, s, pool, one, 1, "SELECT unnest([NULL, '', NULL, 'x']) AS only")
	files, err = s.Open(t.Context(), one.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "only VARCHAR\n{'only': NULL}\n{'only': ''}\n{'only': NULL}\n{'only': x}\n",
		content(t, "SELECT * FROM FILES", files[0]...))

	none := attempt(storage.Postgres, "all")
	p = publish(t, s, pool, none, 1, "SELECT 1 AS x WHERE false")
	files, err = s.Open(t.Context(), none.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "x INTEGER\n", content(t, "SELECT * FROM FILES", files[0]...))
}

func TestTablesRevisions(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "2024-01-31")
	a.Generation.Indexes = [][]string{{"x"}, {"y", "x"}}
	next := func(partition string) storage.Attempt {
		n := a
		n.Partition, n.Task = partition, uuid.New()
		return n
	}

	read := func(p storage.Partition) (string, error) {
		files, err := s.Open(t.Context(), a.Generation, []storage.Partition{p}, t.TempDir())
		if err != nil {
			return "", err
		}
		return content(t, "SELECT x FROM FILES", files[0]...), nil
	}

	first := publish(t, s, pool, next("d1"), 1, "SELECT range AS x, 'a' AS y FROM range(2)")
	hostile := publish(t, s, pool, next("'; DROP TABLE x; --"), 1, "SELECT 7::BIGINT AS x, 'b' AS y")
	second := publish(t, s, pool, next("d1"), 2, "SELECT 5::BIGINT AS x, 'a' AS y")

	_, err := read(first)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	got, err := read(second)
	require.NoError(t, err)
	require.Equal(t, "x BIGINT\n{'x': 5}\n", got)

	got, err = read(hostile)
	require.NoError(t, err)
	require.Equal(t, "x BIGINT\n{'x': 7}\n", got)

	// A revision without rows must not be mistaken for the one before.
	empty := publish(t, s, pool, next("d1"), 3, "SELECT 5::BIGINT AS x, 'a' AS y WHERE false")
	_, err = read(second)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)

	got, err = read(empty)
	require.NoError(t, err)
	require.Equal(t, "x BIGINT\n", got)

	// An older revision cannot be published over a newer one.
	late := next("d1")
	m, err := s.Seal(t.Context(), late, []string{parquet(t, "SELECT 1::BIGINT AS x, 'late' AS y")})
	require.NoError(t, err)

	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return s.Publish(t.Context(), tx, late, 2, m) })
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.NoError(t, s.Verify(t.Context(), m), "what was not published stays in staging")

	sealed, err := s.OpenSealed(t.Context(), a.Generation, m, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "x BIGINT\ny VARCHAR\n{'x': 1, 'y': late}\n", content(t, "SELECT * FROM FILES", sealed...))

	_, err = s.Seal(t.Context(), late, []string{parquet(t, "SELECT 2::BIGINT AS x, 'later' AS y")})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.NoError(t, s.Discard(t.Context(), m.Location))
	require.NoError(t, s.Discard(t.Context(), m.Location), "twice is once")

	_, err = s.OpenSealed(t.Context(), a.Generation, m, t.TempDir())
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)

	_, rows, err := s.Preview(t.Context(), a.Generation, []storage.Partition{empty, hostile}, 10, 0)
	require.NoError(t, err)
	require.Equal(t, [][]any{{int64(7), "b"}}, rows)
}

func TestTablesRefuse(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "all")
	publish(t, s, pool, a, 1, "SELECT 1 AS x")
	for name, test := range map[string]struct {
		query, message string
		change         func(*storage.Attempt)
	}{
		"a new column":     {query: "SELECT 1 AS x, 2 AS y", message: `it has no column "y"`},
		"another type":     {query: "SELECT 'a' AS x", message: `column "x" is INTEGER in the table, and VARCHAR here`},
		"a missing column": {query: "SELECT 1 AS z", message: `it has no column "z"`},
		"our own column":   {query: "SELECT 1 AS _revision", message: `uses a column with this name itself`},
		"a long name":      {query: "SELECT 1 AS " + strings.Repeat("x", 64), message: "allows names of 63 bytes"},
		"a system column":  {query: "SELECT 1 AS xmin", message: "every table of PostgreSQL has a column"},
		"too many columns": {query: "SELECT " + many(1598), message: "there are 1598 columns: "},
		"NUL in text":      {query: "SELECT chr(0) AS x", message: `column "x" has the character NUL`, change: fresh},
		"no such index": {query: "SELECT 1 AS x", message: "storage.postgres.indexes",
			change: func(a *storage.Attempt) {
				fresh(a)
				a.Generation.Indexes = [][]string{{"nope"}}
			}},
		"a hostile slug": {query: "SELECT 1 AS x", message: "is not a staging table", change: func(a *storage.Attempt) {
			a.Generation.OrgSlug = `x"; DROP SCHEMA public; --`
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := a
			b.Task = uuid.New()
			if test.change != nil {
				test.change(&b)
			}
			_, err := s.Seal(t.Context(), b, []string{parquet(t, test.query)})
			require.ErrorContains(t, err, test.message)
			require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		})
	}
}

// many returns so many columns of a query.
func many(columns int) string {
	list := make([]string, columns)
	for i := range list {
		list[i] = fmt.Sprintf("1 AS c%d", i)
	}
	return strings.Join(list, ", ")
}

func fresh(a *storage.Attempt) { a.Generation.Version = uuid.New() }

func TestTablesAppend(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "all")
	a.Generation.UniqueKey = []string{"k", "l"}
	publish(t, s, pool, a, 1, "SELECT * FROM (VALUES (1, 'a', 'old'), (2, NULL, 'old'), (1, 'a', 'newer')) t(k, l, v)")
	a.Task = uuid.New()
	p := publish(t, s, pool, a, 2, "SELECT * FROM (VALUES (2, NULL, 'new'), (3, 'c', 'x'), (3, 'c', 'y')) t(k, l, v)")
	files, err := s.Open(t.Context(), a.Generation, []storage.Partition{p}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "v VARCHAR\n{'v': newer}\n{'v': new}\n{'v': y}\n", content(t, "SELECT v FROM FILES ORDER BY k",
		files[0]...))
}

func TestTablesMadeOnce(t *testing.T) {
	t.Parallel()
	s, _ := openTables(t)
	a := attempt(storage.Postgres, "all")
	errs := make(chan error)
	file := parquet(t, "SELECT 1 AS x")
	const sealers = 6
	for i := range sealers {
		b := a
		b.Task = uuid.New()
		own := filepath.Join(t.TempDir(), "part.parquet")
		copyFile(t, file, own)
		b.Number = i + 1
		go func() {
			_, err := s.Seal(context.WithoutCancel(t.Context()), b, []string{own})
			errs <- err
		}()
	}

	for range sealers {
		require.NoError(t, <-errs)
	}
}

// TestTablesSealedTwice repeats a completion, concurrently and in sequence.
func TestTablesSealedTwice(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	a := attempt(storage.Postgres, "all")
	query := "SELECT 1 AS x"
	var wait sync.WaitGroup
	var manifests [4]storage.Manifest
	var errs [4]error
	for i := range manifests {
		file := parquet(t, query)
		wait.Go(func() { manifests[i], errs[i] = s.Seal(t.Context(), a, []string{file}) })
	}

	wait.Wait()
	for i := range manifests {
		require.NoError(t, errs[i])
		require.Equal(t, manifests[0], manifests[i])
	}

	_, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 2 AS x")})
	require.True(t, fault.Is(err, fault.Conflict), "other rows: %v", err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return s.Publish(t.Context(), tx, a, 1, manifests[0])
	}))
}

func TestPublishRefusesAnotherAttemptsManifest(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	for _, kind := range []storage.Kind{storage.Parquet, storage.Postgres} {
		mine, theirs := attempt(kind, "all"), attempt(kind, "all")
		m, err := s.Seal(t.Context(), theirs, []string{parquet(t, "SELECT 1 AS x")})
		require.NoError(t, err)
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return s.Publish(t.Context(), tx, mine, 1, m) })
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		require.NoError(t, s.Verify(t.Context(), m))
	}
}

// Two servers that collect garbage may drop a generation at once. One may have to wait too long, and drops it later.
func TestAGenerationIsDroppedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	s, pool := openTables(t)
	for range 10 {
		a := attempt(storage.Postgres, "all")
		publish(t, s, pool, a, 1, "SELECT 1 AS x")
		var drops sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			drops.Go(func() { errs[i] = s.DropGeneration(t.Context(), a.Generation, nil) })
		}
		drops.Wait()
		for _, err := range errs {
			require.True(t, err == nil || pg.LostTable(err), "%v", err)
		}
	}
}
