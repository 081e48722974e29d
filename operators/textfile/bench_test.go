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
func BenchmarkNDJSON(b *testing.B) {
	var text bytes.Buffer
	for n := range 50_000 {
		fmt.Fprintf(&text, `{"id":%d,"name":"customer %d","amount":%d.25,"at":"2024-01-%02d 10:00:00","tags":["a","b"]}`+"\n",
			n, n, n, n%28+1)
	}
	dir := b.TempDir()
	path := filepath.Join(dir, "rows.ndjson")
	require.NoError(b, os.WriteFile(path, text.Bytes(), 0o600))

	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		_, err := declared("ndjson").Convert(b.Context(), []textfile.File{{Name: "rows", Path: path}},
			filepath.Join(dir, "rows.parquet"), nil)
		require.NoError(b, err)
	}
}
