package pg_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// tripsTx counts the batches that are sent.
type tripsTx struct {
	pgx.Tx
	trips []int // statements of each
}

func (t *tripsTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	t.trips = append(t.trips, b.Len())
	return t.Tx.SendBatch(ctx, b)
}

// numbers adds a query for the numbers from 1 to n.
func numbers(b *pg.Batch, n int) *pg.Later[[]int] {
	var (
		found []int
		i     int
	)
	b.Query("numbers", []any{&i}, func() error {
		found = append(found, i)
		return nil
	}, `SELECT generate_series(1, $1::int)`, n)
	return pg.Answer(b, &found)
}

func TestLater(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	sum := func(calls *int) func(context.Context, pgx.Tx, []int) (int, error) {
		return func(_ context.Context, _ pgx.Tx, list []int) (sum int, err error) {
			*calls++
			for _, n := range list {
				sum += n
			}
			return sum, nil
		}
	}
	for _, c := range []struct {
		name  string
		trips []int
		do    func(t *testing.T, ctx context.Context, tx pgx.Tx)
	}{
		{"Get sends what is pending", []int{1}, func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			found, err := numbers(new(pg.Batch), 3).Get(ctx, tx)
			require.NoError(t, err)
			require.Equal(t, []int{1, 2, 3}, found)
		}},
		{"Get twice sends once", []int{1}, func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			later := numbers(new(pg.Batch), 2)
			for range 2 {
				found, err := later.Get(ctx, tx)
				require.NoError(t, err)
				require.Equal(t, []int{1, 2}, found)
			}
		}},
		{"one Get sends for all of the batch, also what was added after it", []int{3},
			func(t *testing.T, ctx context.Context, tx pgx.Tx) {
				var b pg.Batch
				first := numbers(&b, 1)
				second := numbers(&b, 2)
				b.Exec("nothing", `SELECT`)
				found, err := second.Get(ctx, tx)
				require.NoError(t, err)
				require.Equal(t, []int{1, 2}, found)
				found, err = first.Get(ctx, tx)
				require.NoError(t, err)
				require.Equal(t, []int{1}, found)
			}},
		{"Get after Send sends nothing, also not what was added since", []int{1, 1},
			func(t *testing.T, ctx context.Context, tx pgx.Tx) {
				var b pg.Batch
				first := numbers(&b, 1)
				require.NoError(t, b.Send(ctx, tx))
				second := numbers(&b, 2)
				found, err := first.Get(ctx, tx)
				require.NoError(t, err)
				require.Equal(t, []int{1}, found)
				found, err = second.Get(ctx, tx)
				require.NoError(t, err)
				require.Equal(t, []int{1, 2}, found)
			}},
		{"several statements fill one answer", []int{2}, func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			var (
				b   pg.Batch
				all []int
				i   int
			)
			for n := range 2 {
				b.Query("one", []any{&i}, func() error { all = append(all, i); return nil }, `SELECT $1::int`, n)
			}
			found, err := pg.Answer(&b, &all).Get(ctx, tx)
			require.NoError(t, err)
			require.Equal(t, []int{0, 1}, found)
		}},
		{"what is known sends nothing", nil, func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			found, err := pg.Known(7).Get(ctx, tx)
			require.NoError(t, err)
			require.Equal(t, 7, found)
			value := 8
			found, err = pg.Answer(new(pg.Batch), &value).Get(ctx, tx)
			require.NoError(t, err)
			require.Equal(t, 8, found)
		}},
		{"an answer keeps statements from waiting for COMMIT", []int{1},
			func(t *testing.T, ctx context.Context, tx pgx.Tx) {
				var b pg.Batch
				b.Exec("nothing", `SELECT`)
				known := 1
				later := pg.Answer(&b, &known)
				require.NoError(t, b.SendLast(ctx, tx))
				_, err := later.Get(ctx, tx)
				require.NoError(t, err)
			}},
		{"Then is made once, of an answer that it sends for", []int{1},
			func(t *testing.T, ctx context.Context, tx pgx.Tx) {
				var calls int
				later := pg.Then(numbers(new(pg.Batch), 4), sum(&calls))
				require.Zero(t, calls)
				for range 2 {
					found, err := later.Get(ctx, tx)
					require.NoError(t, err)
					require.Equal(t, 10, found)
				}
				require.Equal(t, 1, calls)
			}},
		{"Then may send statements of its own", []int{1, 1}, func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			found, err := pg.Then(numbers(new(pg.Batch), 2), func(
				ctx context.Context, tx pgx.Tx, list []int,
			) ([]int, error) {
				return numbers(new(pg.Batch), len(list)+1).Get(ctx, tx)
			}).Get(ctx, tx)
			require.NoError(t, err)
			require.Equal(t, []int{1, 2, 3}, found)
		}},
		{"Then returns its error again", []int{1}, func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			refused := errors.New("refused")
			later := pg.Then(numbers(new(pg.Batch), 1), func(context.Context, pgx.Tx, []int) (int, error) {
				return 1, refused
			})
			for range 2 {
				found, err := later.Get(ctx, tx)
				require.ErrorIs(t, err, refused)
				require.Zero(t, found)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var trips []int
			require.NoError(t, pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				counting := &tripsTx{Tx: tx}
				c.do(t, ctx, counting)
				trips = counting.trips
				return nil
			}))
			require.Equal(t, c.trips, trips)
		})
	}
}

// Every answer of a failed batch is the error, whether or not its own statement ran, and Then is not called.
func TestLaterOfABatchThatFailed(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	for _, sent := range []bool{false, true} {
		t.Run("sent before: "+strconv.FormatBool(sent), func(t *testing.T) {
			t.Parallel()
			err := pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				counting := &tripsTx{Tx: tx}
				var b pg.Batch
				before := numbers(&b, 3)
				b.Exec("divide", `SELECT 1 / $1::int`, 0)
				after := numbers(&b, 2)
				then := pg.Then(before, func(context.Context, pgx.Tx, []int) (int, error) {
					t.Error("made of nothing")
					return 1, nil
				})
				if sent {
					require.ErrorContains(t, b.Send(ctx, counting), "divide: ")
				}
				for _, later := range []*pg.Later[[]int]{before, after, before} {
					found, err := later.Get(ctx, counting)
					require.ErrorContains(t, err, "divide: ")
					require.Nil(t, found)
				}
				_, err := then.Get(ctx, counting)
				require.Equal(t, []int{3}, counting.trips)
				return err
			})
			var failed *pgconn.PgError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "22012", failed.Code)
		})
	}
}

// One answer is of a statement sent with BEGIN; the other is of a statement sent after those that were left for
// COMMIT.
func TestLaterInATransactionThatBeginsLate(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	_, err := pool.Exec(t.Context(), `CREATE TABLE numbers (n INT PRIMARY KEY)`)
	require.NoError(t, err)
	require.NoError(t, pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		found, err := numbers(new(pg.Batch), 2).Get(ctx, tx)
		require.NoError(t, err)
		require.Equal(t, []int{1, 2}, found)

		var last, b pg.Batch
		last.Exec("insert", `INSERT INTO numbers VALUES (1)`)
		require.NoError(t, last.SendLast(ctx, tx))
		var count int
		b.Query("count", []any{&count}, func() error { return nil }, `SELECT count(*) FROM numbers`)
		n, err := pg.Answer(&b, &count).Get(ctx, tx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		return nil
	}))
}
