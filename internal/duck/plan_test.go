package duck

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// A plan says how a statement would be run, and neither runs it nor names a file.
func TestPlansNameNoFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "storage-of-acme.parquet")
	s, err := Open(t.Context(), Config{Threads: 1, AllowedPaths: []string{path}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err = s.CopyToParquet(t.Context(), "SELECT range AS n, 'a' || range AS name FROM range(100)", path)
	require.NoError(t, err)

	plan, err := s.Plan(t.Context(), "SELECT name, sum(n) FROM read_parquet('"+path+"') WHERE n > 5 GROUP BY 1 "+
		"ORDER BY 2 LIMIT 3")
	require.NoError(t, err)
	for _, want := range []string{"TOP_N", "HASH_GROUP_BY", "└─ SCAN", "Filters: n>5"} {
		require.Contains(t, plan, want)
	}
	for _, leak := range []string{"acme", "parquet", "PARQUET", filepath.Dir(path)} {
		require.NotContains(t, plan, leak)
	}

	_, err = s.Plan(t.Context(), "SELECT if(range = 5, error('it runs'), 1) FROM range(10)")
	require.NoError(t, err)
	_, err = s.Plan(t.Context(), "SELECT nope FROM range(10)")
	require.ErrorContains(t, err, "nope")
}

func TestParquetIsStreamed(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	var out bytes.Buffer
	done, err := s.WriteParquet(t.Context(), "SELECT range AS n, [range, NULL] AS list, 1.50::DECIMAL(38,2) AS d, "+
		"TIMESTAMPTZ '2026-01-01 00:00:00+01' AS at, uuid() AS id, MAP {'a': 1} AS m FROM range(200000)", &out,
		ArrowLimits{Rows: 150_000})
	require.NoError(t, err)
	require.Equal(t, Streamed{Columns: done.Columns, Rows: 150_000, Truncated: true}, done)
	in, err := pqarrow.ReadTable(t.Context(), bytes.NewReader(out.Bytes()), nil, pqarrow.ArrowReadProperties{},
		memory.DefaultAllocator)
	require.NoError(t, err)
	require.EqualValues(t, 150_000, in.NumRows())
	require.Equal(t, "1.5", in.Column(2).Data().Chunk(0).ValueStr(0))

	out.Reset()
	_, err = s.WriteParquet(t.Context(), "SELECT 1 AS n WHERE false", &out, ArrowLimits{})
	require.NoError(t, err)
	empty, err := file.NewParquetReader(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	require.Zero(t, empty.NumRows())
	_, err = s.WriteParquet(t.Context(), "SELECT INTERVAL 1 DAY AS long", &out, ArrowLimits{})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, `column "long" has a type that Parquet lacks`)
}
