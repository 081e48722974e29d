package storage_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// The columns of a sealed file do not depend on whether its schema is already known.
func TestColumnsAreThoseOfDuckDB(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"integers": "SELECT 1::TINYINT AS a, 2::UBIGINT AS b, 3::HUGEINT AS c",
		"renamed":  "SELECT 1::TINYINT AS a, 2::UBIGINT AS \"B b\"",
		"decimals": "SELECT 1.5::DECIMAL(10, 2) AS a",
		"wider":    "SELECT 1.5::DECIMAL(12, 2) AS a",
		"times": "SELECT now() AS a, now()::TIMESTAMP AS b, DATE '2026-01-01' AS c, TIME '10:00' AS d, uuid() " +
			"AS e",
		"nanoseconds": "SELECT '2026-01-01'::TIMESTAMP_NS AS a, 'x'::BLOB AS b",
		"nested":      "SELECT {'x': 1, 'y': [1, 2]} AS a, MAP {'k': 1} AS b, ['a'] AS c",
		"json":        "SELECT 'x' AS a, '{}'::JSON AS b, true AS c, 1.5::FLOAT AS d",
		"no rows":     "SELECT 1 AS a WHERE false",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, t.TempDir())
			session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
			require.NoError(t, err)
			defer session.Close()

			var first storage.Manifest
			for n, rows := range []string{query, query + " UNION ALL " + query} {
				file := parquet(t, rows)
				columns, err := session.Describe(t.Context(), "SELECT * FROM "+duck.ReadParquet([]string{file}))
				require.NoError(t, err)
				var count int64
				require.NoError(t, session.Value(t.Context(), &count, "SELECT count(*) FROM "+
					duck.ReadParquet([]string{file})))
				sealed, err := s.Seal(t.Context(), attempt(storage.Parquet, "k"), []string{file})
				require.NoError(t, err)
				require.Equal(t, columns, sealed.Schema)
				require.Equal(t, count, sealed.Rows)
				if n == 0 {
					first = sealed
				}
				require.Equal(t, first.SchemaHash, sealed.SchemaHash)
			}
		})
	}
}

// A wrong footer is refused with DuckDB's message, and never causes a panic.
func TestBrokenFootersAreRefused(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(parquet(t, "SELECT 1 AS a, 'x' AS b"))
	require.NoError(t, err)

	s := open(t, t.TempDir())
	begin := len(good) - 8 - int(binary.LittleEndian.Uint32(good[len(good)-8:]))
	for name, broken := range map[string][]byte{
		"empty":          {},
		"too short":      []byte("PAR1"),
		"no magic":       append(good[:len(good)-4:len(good)-4], "XXXX"...),
		"longer than it": append(good[:len(good)-8:len(good)-8], 0xff, 0xff, 0xff, 0x7f, 'P', 'A', 'R', '1'),
		"zeros":          slices.Concat(good[:begin], make([]byte, len(good)-8-begin), good[len(good)-8:]),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), uuid.NewString()+".parquet")
			require.NoError(t, os.WriteFile(file, broken, 0o600))
			_, err := s.Seal(t.Context(), attempt(storage.Parquet, "k"), []string{file})
			require.Equal(t, fault.Invalid, fault.KindOf(err), "%v", err)
		})
	}
}

func TestFilesOfOneOutputHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for other, says := range map[string]string{
		"SELECT 1.5::DOUBLE AS a, 'x' AS b": `but column "a" is INTEGER in a.parquet and DOUBLE in b.parquet`,
		"SELECT 1 AS a":                     `but a.parquet has the column "b", and b.parquet does not`,
		"SELECT 1 AS a, 'x' AS b, 2 AS c":   `but b.parquet has the column "c", and a.parquet does not`,
		"SELECT 'x' AS b, 1 AS a":           `but b.parquet has its columns in another order than a.parquet`,
	} {
		dir := t.TempDir()
		var files []string
		for name, query := range map[string]string{"a": "SELECT 1 AS a, 'x' AS b", "b": other} {
			files = append(files, filepath.Join(dir, name+".parquet"))
			require.NoError(t, os.Rename(parquet(t, query), files[len(files)-1]))
		}
		slices.Sort(files)
		_, err := s.Seal(t.Context(), attempt(storage.Parquet, "k"), files)
		require.ErrorContains(t, err, says)
		require.True(t, fault.Is(err, fault.Invalid))
		require.Contains(t, fault.Hinted(err).Error(), "`columns=`")
	}
}
