package storage_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/storage"
)

// BenchmarkTables writes a partition of 200,000 rows to Postgres, publishes it, and reads it back. It reports the
// median of each. Run it with -benchtime 3x.
func BenchmarkTables(b *testing.B) {
	pool := testdb.New(b)
	s, err := storage.New(storage.Config{Root: b.TempDir(), Pool: pool, Rows: enginetest.Engines()})
	require.NoError(b, err)
	defer s.Close()

	query := `SELECT range AS id, hash(range) % 1000 AS bucket, 'name of ' || range AS name, sqrt(range) AS root,
		(range / 7)::DECIMAL(18,3) AS amount, DATE '2024-01-01' + (range % 366)::INTEGER AS day,
		TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_seconds(range) AS at, range % 2 = 0 AS even,
		{'a': range, 'b': [range % 10, NULL]} AS nested, NULLIF(range % 5, 0) AS gap FROM range(200000)`
	a := attempt(storage.Postgres, "all")
	var writes, reads []time.Duration
	for b.Loop() {
		a.Task = uuid.New()
		file := parquetOf(b, query)
		began := time.Now()
		m, err := s.Seal(b.Context(), a, []string{file})
		require.NoError(b, err)
		revision := int64(len(writes) + 1)
		require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			return s.Publish(b.Context(), tx, a, revision, m)
		}))
		writes = append(writes, time.Since(began))

		began = time.Now()
		_, err = s.Open(b.Context(), a.Generation, []storage.Partition{{Key: "all", Revision: revision}}, b.TempDir())
		require.NoError(b, err)
		reads = append(reads, time.Since(began))
	}

	for name, all := range map[string][]time.Duration{"write-ms": writes, "read-ms": reads} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Milliseconds()), name)
	}
}
