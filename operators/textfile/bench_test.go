package textfile_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/textfile"
)

// BenchmarkNDJSON reads 50,000 lines of five fields, of which nothing is known before.
func BenchmarkNDJSON(b *testing.B) { benchmarkNDJSON(b, 50_000, false) }

// BenchmarkLargeNDJSON reads 940,000 lines, 94 MB: as the first file of a dataset, and as a later one.
func BenchmarkLargeNDJSON(b *testing.B) {
	b.Run("first", func(b *testing.B) { benchmarkNDJSON(b, 940_000, false) })
	b.Run("later", func(b *testing.B) { benchmarkNDJSON(b, 940_000, true) })
}

func benchmarkNDJSON(b *testing.B, lines int, later bool) {
	var text bytes.Buffer
	for n := range lines {
		fmt.Fprintf(&text, `{"id":%d,"name":"customer %d","amount":%d.25,"at":"2024-01-%02d 10:00:00","tags":["a","b"]}`+"\n",
			n, n, n, n%28+1)
	}
	dir := b.TempDir()
	path := filepath.Join(dir, "rows.ndjson")
	require.NoError(b, os.WriteFile(path, text.Bytes(), 0o600))

	job, files, target := declared("ndjson"), []textfile.File{{Name: "rows", Path: path}},
		filepath.Join(dir, "rows.parquet")
	if later {
		first, err := job.Convert(b.Context(), files, target, nil)
		require.NoError(b, err)
		job.Standing = &first.Reading
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		_, err := job.Convert(b.Context(), files, target, nil)
		require.NoError(b, err)
	}
}

// BenchmarkWide reads one line of 8,000 columns: what is done for each pair of columns shows.
func BenchmarkWide(b *testing.B) {
	var text bytes.Buffer
	for n := range 8000 {
		fmt.Fprintf(&text, `,"c%d":%d`, n, n)
	}
	dir := b.TempDir()
	path := filepath.Join(dir, "rows.ndjson")
	require.NoError(b, os.WriteFile(path, []byte("{"+text.String()[1:]+"}\n"), 0o600))
	for b.Loop() {
		_, err := declared("ndjson").Convert(b.Context(), []textfile.File{{Name: "rows", Path: path}},
			filepath.Join(dir, "rows.parquet"), nil)
		require.NoError(b, err)
	}
}
