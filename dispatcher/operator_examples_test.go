package dispatcher_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// example serves the DAG of an operator's example, with its data in the landing folder.
func example(t *testing.T, operator string) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	folder := filepath.Join("..", "operators", operator, "example")
	require.NoError(t, os.CopyFS(w.Landing, os.DirFS(folder)))
	document, err := os.ReadFile(filepath.Join(folder, "dag.yaml"))
	require.NoError(t, err)
	w.Serve(string(document))
	w.Settle()
	return w
}

func TestExampleOfRanges(t *testing.T) {
	t.Parallel()
	w := example(t, "rangeaggregator")
	require.Equal(t, listedRanges(100, 0, 200), sortedRows(w, "hundreds"))
	require.Equal(t, listedRanges(50, 0, 50, 200, 250), sortedRows(w, "halves"))

	text := "range_start,range_end\n90,210\n"
	require.NoError(t, os.WriteFile(filepath.Join(w.Landing, "parts", "wednesday.csv"), []byte(text), 0o600))
	w.Poll()
	w.Settle()
	require.Equal(t, listedRanges(100, 0, 100, 200), sortedRows(w, "hundreds"))
	require.Equal(t, listedRanges(50, 0, 50, 100, 150, 200, 250), sortedRows(w, "halves"))
}

func TestExampleOfCompaction(t *testing.T) {
	t.Parallel()
	w := example(t, "parquetcompact")
	require.Equal(t, map[string][]string{"2026-01": {"11,1.5", "12,-0.5", "21,1.5", "22,-0.5", "31,1.5", "32,-0.5"}},
		w.Read("monthly_readings"))
	require.Len(t, w.Read("daily_readings"), 3, "the days stay as they are")
}

func TestExampleOfIntegrity(t *testing.T) {
	t.Parallel()
	w := example(t, "integritycheck")
	require.Equal(t, map[string][]string{"first": {},
		"second": {"sequence,after 4,5,6", "sequence,after 6,7,6", "unique,number 6,1 row,2 rows"}}, w.Read("findings"))
}
