package dispatcher_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// checking has rows in files, and what is wrong with them. A finding fails the task.
const checking = `
name: checking
jobs:
  - name: rows
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: rows, pattern: "{key}.csv", format: csv }
  - name: wrong
    operator: integrity_check
    inputs: [{ from: { job: rows } }]
    config: { unique: [n] }
publish:
  checking_wrong: { from: { job: wrong } }
`

// What is wrong is published although the task fails, once; a mended partition has no findings any more. A file that
// was changed where it is stored is found, too.
func TestIntegrityFindingsFailTheirTask(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	put := func(key, content string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Join(w.Landing, "rows"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(w.Landing, "rows", key+".csv"), []byte("n\n"+content), 0o600))
	}
	put("a", "1\n2\n")
	put("b", "1\n1\n")
	w.Serve(dispatchertest.Edit(checking, "unique: [n]", "unique: [n], on_findings: warn"))
	require.Equal(t, map[string][]string{"a": {}, "b": {"unique,n 1,1 row,2 rows"}}, w.Read("checking_wrong"))

	put("b", "1\n1\n2\n")
	w.Serve(checking)
	w.Poll()
	w.Settle()
	found := w.Read("checking_wrong")
	require.Equal(t, []string{"unique,n 1,1 row,2 rows"}, found["b"])
	var message string
	w.Row(`SELECT error_message FROM tasks WHERE status = 'Failed' ORDER BY id DESC LIMIT 1`)(&message)
	require.Contains(t, message, "1 findings, the first: unique: n 1: expected 1 row, found 2 rows")

	failed := w.Count(`SELECT FROM tasks WHERE status = 'Failed'`)
	w.Settle()
	require.Equal(t, failed, w.Count(`SELECT FROM tasks WHERE status = 'Failed'`), "it is not tried again")
	put("b", "1\n2\n")
	w.Poll()
	w.Settle()
	require.Empty(t, w.Read("checking_wrong")["b"])
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE status = 'Failed'`), "nothing is left to be mended")
}

func TestIntegrityOfAFileThatWasChanged(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	require.NoError(t, os.MkdirAll(filepath.Join(w.Landing, "rows"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(w.Landing, "rows", "a.csv"), []byte("n\n1\n2\n"), 0o600))
	w.Serve(dispatchertest.Edit(checking, "unique: [n]", "unique: [n], on_findings: warn"))
	require.Empty(t, w.Read("checking_wrong")["a"])

	var stored []string
	require.NoError(t, filepath.WalkDir(w.Data, func(path string, d os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".parquet" {
			stored = append(stored, path)
		}
		return err
	}))
	require.NotEmpty(t, stored)
	for _, path := range stored {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(path, 0o600))
		require.NoError(t, os.WriteFile(path, append([]byte("PAR1"), content...), 0o600))
	}
	w.Serve(dispatchertest.Edit(checking, "unique: [n]", "monotonic: n, on_findings: warn"))
	rows := w.Read("checking_wrong")["a"]
	require.Len(t, rows, 1)
	require.Contains(t, rows[0], "bytes,partition a, revision 1, ")
}
