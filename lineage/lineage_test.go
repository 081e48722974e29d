package lineage_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/lineage"
)

// in runs fn in a transaction of the owner and returns what it returns.
func in[T any](t *testing.T, pool *pgxpool.Pool, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (got T) {
	t.Helper()
	require.NoError(t, pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		got, err = fn(ctx, tx)
		return err
	}))
	return got
}

func TestColumns(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	withoutForeignKeys(t, pool)
	org, job := uuid.New(), uuid.New()
	// flights (v1, and v2 beside it) -> delays -> ranking.
	flights1 := func(name string) lineage.Column {
		return lineage.Column{DatasetUUID: uuid.UUID{1}, DatasetVersion: uuid.UUID{1, 1}, Name: name}
	}
	flights2 := func(name string) lineage.Column {
		return lineage.Column{DatasetUUID: uuid.UUID{1}, DatasetVersion: uuid.UUID{1, 2}, Name: name}
	}

	delays := func(name string) lineage.Column {
		return lineage.Column{DatasetUUID: uuid.UUID{2}, DatasetVersion: uuid.UUID{2, 1}, Name: name}
	}
	candidate := func(name string) lineage.Column {
		return lineage.Column{DatasetUUID: uuid.UUID{2}, DatasetVersion: uuid.UUID{2, 2}, Name: name}
	}
	ranking := func(name string) lineage.Column {
		return lineage.Column{DatasetUUID: uuid.UUID{3}, DatasetVersion: uuid.UUID{3, 1}, Name: name}
	}
	live := []lineage.ColumnEdge{
		{Output: delays("airport"), Input: flights1("origin"), Transform: lineage.Identity},
		{Output: delays("mean"), Input: flights1("delay"), Transform: lineage.Aggregate},
		{Output: delays("mean"), Input: flights1("delay"), Transform: lineage.Expression},
	}

	next := []lineage.ColumnEdge{{Output: candidate("airport"), Input: flights2("origin"), Transform: lineage.Identity}}
	rank := []lineage.ColumnEdge{{Output: ranking("airport"), Input: delays("airport"), Transform: lineage.Identity}}
	for range 2 { // recording twice changes nothing
		for _, edges := range [][]lineage.ColumnEdge{live, next, rank, nil} {
			in(t, pool, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
				var b pg.Batch
				lineage.RecordColumns(&b, org, job, edges)
				return struct{}{}, b.Send(ctx, tx)
			})
		}
	}

	read := func(f func(context.Context, pgx.Tx, uuid.UUID, uuid.UUID) ([]lineage.ColumnEdge, error), org,
		version uuid.UUID) []lineage.ColumnEdge {
		return in(t, pool, func(ctx context.Context, tx pgx.Tx) ([]lineage.ColumnEdge, error) {
			return f(ctx, tx, org, version)
		})
	}
	require.Equal(t, live, read(lineage.Origins, org, uuid.UUID{2, 1}))
	require.Equal(t, next, read(lineage.Origins, org, uuid.UUID{2, 2}), "a candidate has its own beside the live ones")
	require.Equal(t, live, read(lineage.Uses, org, uuid.UUID{1, 1}))
	require.Equal(t, rank, read(lineage.Uses, org, uuid.UUID{2, 1}))
	require.Empty(t, read(lineage.Uses, org, uuid.UUID{3, 1}))
	require.Empty(t, read(lineage.Origins, uuid.New(), uuid.UUID{2, 1}), "another org sees none")
}

// withoutForeignKeys disables foreign keys, so that the test need not fill registry's tables.
func withoutForeignKeys(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT format('ALTER TABLE column_lineage DROP CONSTRAINT %I', conname) FROM pg_constraint
		WHERE conrelid = 'column_lineage'::regclass AND contype = 'f'`)
	require.NoError(t, err)
	drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, drops)
	for _, drop := range drops {
		_, err := pool.Exec(t.Context(), drop)
		require.NoError(t, err)
	}
}
