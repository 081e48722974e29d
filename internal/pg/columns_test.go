package pg_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestColumns(t *testing.T) {
	t.Parallel()
	type row struct {
		ID    uuid.UUID
		Name  string
		Count *int64
		At    time.Time
		Done  bool
	}
	n, at := int64(7), time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)
	rows := []row{{uuid.UUID{1}, "a", &n, at, true}, {uuid.UUID{2}, "", nil, at, false}}
	args := pg.Columns(rows)
	require.Equal(t, []any{[]uuid.UUID{{1}, {2}}, []string{"a", ""}, []*int64{&n, nil}, []time.Time{at, at},
		[]bool{true, false}}, args)
	require.Equal(t, []any{[]uuid.UUID{}, []string{}, []*int64{}, []time.Time{}, []bool{}}, pg.Columns[row](nil),
		"no rows are empty arrays")

	pool := open(t, testdb.Empty(t))
	found, err := pool.Query(t.Context(), `SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::timestamptz[], $5::boolean[])`, args...)
	require.NoError(t, err)
	read, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	require.Equal(t, rows, read)
}
