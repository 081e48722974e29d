package textfile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/textfile"
)

// read converts a file of a format twice: by what it says itself, and by the reading that this found. Nothing may
// panic or last, and what was read once is read again.
func read(t *testing.T, d textfile.Declaration, text []byte) {
	t.Helper()
	if len(text) > 1<<16 {
		return
	}
	dir := t.TempDir()
	file := textfile.File{Name: "in", Path: filepath.Join(dir, "in")}
	require.NoError(t, os.WriteFile(file.Path, text, 0o600))
	begun := time.Now()

	job := textfile.Job{Declaration: d}
	first, err := job.Convert(t.Context(), []textfile.File{file}, filepath.Join(dir, "out.parquet"), nil)
	if err == nil {
		job.Standing = &first.Reading
		again, err := job.Convert(t.Context(), []textfile.File{file}, filepath.Join(dir, "again.parquet"), nil)
		require.NoError(t, err)
		require.Equal(t, first.Rows, again.Rows)
		require.Equal(t, first.BadRows, again.BadRows)
		require.Equal(t, first.Reading.Columns, again.Reading.Columns)
	}
	require.Less(t, time.Since(begun), time.Minute)
}

func FuzzCSV(f *testing.F) {
	f.Add([]byte("id,name\n1,ann\n2,\"b\"\"ob\"\n"), "", "", "", 0, "", "")
	f.Add([]byte("1;2,5;2024-01-31\r\n# no\r\n;;\r\n"), ";", "'", "#", 1, ",", "%d.%m.%Y")
	f.Fuzz(func(t *testing.T, text []byte, delimiter, quote, comment string, skip int, point, date string) {
		d := textfile.Declaration{Format: "csv", Delimiter: delimiter, Comment: comment, SkipLines: max(skip, 0) % 100,
			DecimalSeparator: point, DateFormat: date}
		if quote != "" {
			d.Quote = &quote
		}
		if d.Check() != nil {
			return
		}
		read(t, d, text)
	})
}

func FuzzNDJSON(f *testing.F) {
	f.Add([]byte(`{"a": 1.10, "b": [null, {"c": "\u00e9\n"}]}` + "\n" + `{"a": -0, "b": []}`))
	f.Add([]byte("{\"a\":1}\n\n[]\n{\"a\":1}{}\n{\"a\":\"\\ud800\"}"))
	f.Fuzz(func(t *testing.T, text []byte) { read(t, textfile.Declaration{Format: "ndjson"}, text) })
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`[{"a": 1, "b": {"c": [1, "x"]}}, {"a": 2}]`), "")
	f.Add([]byte(`{"features": [{"id": 9007199254740993}], "x": {"features": 1}}`), "features")
	f.Fuzz(func(t *testing.T, text []byte, path string) {
		d := textfile.Declaration{Format: "json", Records: path}
		if d.Check() != nil {
			return
		}
		read(t, d, text)
	})
}
