package pg_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestOpenSetsDefaults(t *testing.T) {
	t.Parallel()
	show := func(pool *pgxpool.Pool, setting string) (value string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT current_setting($1)`, setting).Scan(&value))
		return value
	}
	url := testdb.Empty(t)
	pool := open(t, url)
	require.Equal(t, "dagctl", show(pool, "application_name"))
	require.Equal(t, "UTC", show(pool, "TimeZone"))
	require.Equal(t, "0", show(pool, "statement_timeout"))
	require.Equal(t, "1min", show(pool, "idle_in_transaction_session_timeout"))
	require.Equal(t, "force_generic_plan", show(pool, "plan_cache_mode"))
	require.EqualValues(t, 20, pool.Config().MaxConns)
	var jit string // the tests' server has none itself
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT setting || ' by ' || source FROM pg_settings
		WHERE name = 'jit'`).Scan(&jit))
	require.Equal(t, "off by client", jit)

	pool = open(t, url+"&application_name=mine&statement_timeout=5s&plan_cache_mode=auto&pool_max_conns=3")
	require.Equal(t, "mine", show(pool, "application_name"))
	require.Equal(t, "auto", show(pool, "plan_cache_mode"))
	require.Equal(t, "5s", show(pool, "statement_timeout"))
	require.EqualValues(t, 3, pool.Config().MaxConns)

	pool = open(t, url, pg.WithApplicationName("other"), pg.WithMaxConns(2))
	require.Equal(t, "other", show(pool, "application_name"))
	require.EqualValues(t, 2, pool.Config().MaxConns)
}

func TestOpenReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url  string
		kind fault.Kind
	}{
		"no URL at all":  {"postgres://u:secret@[::1", fault.Invalid},
		"a bad setting":  {"postgres://u:secret@127.0.0.1/db?sslmode=perhaps", fault.Invalid},
		"nobody listens": {"postgres://u:secret@127.0.0.1:1/db?sslmode=disable", fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pg.Open(t.Context(), c.url)
			require.Equal(t, c.kind, fault.KindOf(err), "%v", err)
			require.NotContains(t, err.Error(), "secret")

			var f *fault.Error
			require.ErrorAs(t, err, &f)
			require.NotEmpty(t, f.Hint)
		})
	}
}

func TestUUIDsAreNative(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	_, err := pool.Exec(t.Context(), `CREATE TABLE things (id UUID, parent UUID, friends UUID[], note JSONB)`)
	require.NoError(t, err)
	a, b := uuid.New(), uuid.New()

	n, err := pool.CopyFrom(t.Context(), pgx.Identifier{"things"}, []string{"id", "parent", "friends", "note"},
		pgx.CopyFromRows([][]any{
			{a, &b, []uuid.UUID{a, b}, json.RawMessage(`{"n": 1}`)},
			{b, (*uuid.UUID)(nil), []uuid.UUID(nil), nil},
		}))
	require.NoError(t, err)
	require.EqualValues(t, 2, n)

	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			type row struct {
				ID      uuid.UUID
				Parent  *uuid.UUID
				Friends []uuid.UUID
				Note    json.RawMessage
			}
			rows, _ := pool.Query(t.Context(), `SELECT id, parent, friends, note FROM things WHERE id = $1`, mode, a)
			first, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
			require.NoError(t, err)
			require.Equal(t, row{a, &b, []uuid.UUID{a, b}, json.RawMessage(`{"n": 1}`)}, first)

			rows, _ = pool.Query(t.Context(), `SELECT id, parent, friends, note FROM things WHERE id = $1`, mode, &b)
			second, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
			require.NoError(t, err)
			require.Equal(t, row{ID: b}, second)

			var id uuid.UUID
			err = pool.QueryRow(t.Context(), `SELECT parent FROM things WHERE id = $1`, mode, b).Scan(&id)
			require.ErrorContains(t, err, "NULL", "a NULL must not pass for the zero UUID")
		})
	}

	rows, _ := pool.Query(t.Context(), `SELECT u.id FROM unnest($1::uuid[]) WITH ORDINALITY AS u (id, n) ORDER BY n`,
		[]uuid.UUID{b, a})
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{b, a}, ids)

	var found int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM things WHERE id = ANY($1)`,
		[]uuid.UUID{a, b}).Scan(&found))
	require.Equal(t, 2, found)

	var optional []*uuid.UUID
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT ARRAY[$1::uuid, NULL]`, a).Scan(&optional))
	require.Equal(t, []*uuid.UUID{&a, nil}, optional)

	var some any
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT $1::uuid`, a).Scan(&some))
	require.Equal(t, a, some)
}

func TestInTx(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	_, err := pool.Exec(t.Context(), `CREATE TABLE n (n INT)`)
	require.NoError(t, err)
	insert := func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `INSERT INTO n VALUES (1)`)
		require.NoError(t, err)
	}
	count := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM n`).Scan(&n))
		return n
	}

	wrong := errors.New("wrong")
	require.ErrorIs(t, pg.InTx(t.Context(), pool, func(_ context.Context, tx pgx.Tx) error {
		insert(tx)
		return wrong
	}), wrong)
	require.Zero(t, count(), "an error rolls back")
	require.PanicsWithValue(t, "bad", func() {
		_ = pg.InTx(t.Context(), pool, func(_ context.Context, tx pgx.Tx) error { insert(tx); panic("bad") })
	})
	require.Zero(t, count(), "a panic rolls back")
	require.NoError(t, pg.InTx(t.Context(), pool, func(_ context.Context, tx pgx.Tx) error { insert(tx); return nil }))
	require.Equal(t, 1, count())
}

func TestInTxRepeatsAfterADeadlock(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	_, err := pool.Exec(t.Context(), `CREATE TABLE n (id INT PRIMARY KEY, n INT); INSERT INTO n VALUES (1, 0), (2, 0)`)
	require.NoError(t, err)

	// Each transaction holds one row before either requests the other's; from the second run on, nobody waits.
	arrived := make(chan struct{}, 2)
	bothHold := make(chan struct{})
	go func() { <-arrived; <-arrived; close(bothHold) }()
	runs := make([]int, 2)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range 2 {
		group.Go(func() error {
			return pg.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				runs[i]++
				if _, err := tx.Exec(ctx, `UPDATE n SET n = n + 1 WHERE id = $1`, 1+i); err != nil {
					return err
				}
				if runs[i] == 1 {
					arrived <- struct{}{}
					<-bothHold
				}
				_, err := tx.Exec(ctx, `UPDATE n SET n = n + 1 WHERE id = $1`, 2-i)
				return err
			})
		})
	}
	require.NoError(t, group.Wait())
	require.GreaterOrEqual(t, runs[0]+runs[1], 3, "one of them ran again, or both on a slow machine")
	var total int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT sum(n) FROM n`).Scan(&total))
	require.Equal(t, 4, total)
}

func TestALockThatIsNotFreeInTime(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	locked := func(then func()) error {
		return pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`)
			if err == nil {
				_, err = tx.Exec(ctx, `SELECT pg_advisory_xact_lock(1)`)
			}
			then()
			return pg.Busy(err, "the door is locked")
		})
	}
	require.NoError(t, locked(func() {
		err := locked(func() {})
		require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
		require.EqualError(t, err, "the door is locked")
	}))
}

func TestInTxGivesUp(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	runs := 0
	lost := &pgconn.PgError{Code: "40001", Message: "could not serialize access"}
	err := pg.InTx(t.Context(), pool, func(context.Context, pgx.Tx) error { runs++; return lost })
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.ErrorIs(t, err, lost)
	require.Equal(t, 8, runs)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	err = pg.InTx(ctx, pool, func(context.Context, pgx.Tx) error { cancel(); return lost })
	require.ErrorIs(t, err, context.Canceled)
}

func TestRequestsSeeOneOrg(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	owner := open(t, url)
	acme, other := uuid.New(), uuid.New()
	_, err := owner.Exec(t.Context(), `INSERT INTO orgs (id, name, slug)
		VALUES ($1, 'Acme', 'acme'), ($2, 'Other', 'other')`, acme, other)
	require.NoError(t, err)
	requests, err := pg.OpenRequests(t.Context(), url, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(requests.Close)

	slugs := func(ctx context.Context, q interface {
		Query(context.Context, string, ...any) (pgx.Rows, error)
	}) []string {
		rows, _ := q.Query(ctx, `SELECT slug FROM orgs ORDER BY slug`)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return found
	}
	require.Equal(t, []string{"acme", "other"}, slugs(t.Context(), owner))
	require.Empty(t, slugs(t.Context(), requests), "outside of a transaction for an org")
	require.NoError(t, pg.InOrgTx(t.Context(), requests, acme, func(ctx context.Context, tx pgx.Tx) error {
		require.Equal(t, []string{"acme"}, slugs(ctx, tx))
		return nil
	}))
	require.Empty(t, slugs(t.Context(), requests), "the same connection afterwards")
	_, err = requests.Exec(t.Context(), `RESET ROLE`)
	require.NoError(t, err)
	require.Empty(t, slugs(t.Context(), requests), "resetting the role changes nothing")
	_, err = requests.Exec(t.Context(), `CREATE TABLE mine (n INT)`)
	require.ErrorContains(t, err, "permission denied")
	require.Error(t, pg.InOrgTx(t.Context(), requests, uuid.Nil, func(context.Context, pgx.Tx) error { return nil }))
}

func open(t *testing.T, url string, opts ...pg.Option) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), url, opts...)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}
