package duck_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
)

// BenchmarkManyFiles counts the rows of a year of hourly partitions, which have two rows each, as a statement about a
// keyed relation does. Where files are alike, one footer tells the columns of all.
func BenchmarkManyFiles(b *testing.B) {
	dir := b.TempDir()
	s, err := duck.Open(b.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	var files, keys []string
	for i := range 8759 {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.parquet", i)))
		keys = append(keys, fmt.Sprintf("key %d", i))
		rows := fmt.Sprintf("SELECT %d + id AS id, now() AS made FROM range(2) AS t(id)", i)
		_, err := s.CopyToParquet(b.Context(), rows, files[i])
		require.NoError(b, err)
	}

	for name, r := range map[string]duck.Relation{
		"each":      {Files: files, Keys: keys, Keyed: true},
		"alike":     {Files: files, Keys: keys, Keyed: true, Alike: true},
		"one hour":  {Files: files[:1], Keys: keys[:1], Keyed: true, Alike: true},
		"not keyed": {Files: files, Alike: true},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r.Name = "hours"
				require.NoError(b, s.Create(b.Context(), r))
				_, err := s.Describe(b.Context(), "FROM hours")
				require.NoError(b, err)
				var rows int
				require.NoError(b, s.Value(b.Context(), &rows, "SELECT count(made) FROM hours"))
				require.Equal(b, 2*len(r.Files), rows)
				require.NoError(b, s.Drop(b.Context(), "hours"))
			}
		})
	}
}
