package views_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// gridded makes numbers of the contents of raw; what is no number fails, and 9 does not pass.
const gridded = `
name: gridded
jobs:
` + dispatchertest.Raw + `  - name: numbers
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    max_attempts: 1
    config: { query: "SELECT CAST(content AS BIGINT) AS n FROM raw" }
    checks:
      - { name: small, sql: "SELECT * FROM output WHERE n > 8" }
publish:
  numbers: { from: { job: numbers } }
`

func day(n int) string { return fmt.Sprintf("2024-01-%02d", n) }

// A history of one dataset leaves its partitions in every state, and the grid shows each once.
func TestGridShowsEachPartitionOnceInItsState(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", day(1), "1")
	w.Serve(gridded)
	for n, content := range map[int]string{2: "9", 3: "x", 5: "1", 6: "1"} {
		w.Probe.Put("raw", day(n), content)
	}
	w.Poll()
	w.Settle()

	// The sixth is held and the eighth runs; the fifth has a newer input of which the router does not know yet.
	finish := func(days ...string) {
		for _, task := range w.Claim(w.D) {
			if slices.Contains(days, task.Slot) {
				w.Unchecked(task)
			}
		}
	}
	w.Probe.Put("raw", day(6), "6")
	w.Probe.Put("raw", day(8), "8")
	w.Poll()
	finish(day(6), day(8))
	w.Route()
	finish(day(6))
	w.Probe.Put("raw", day(5), "5")
	w.Poll()
	w.Unrouted(func() { finish(day(5)) })

	now := time.Date(2024, 1, 10, 12, 0, 0, 0, time.UTC)
	newest := func() string {
		t.Helper()
		cells, err := w.D.Views.Grid(t.Context(), w.Caller, "numbers", "", 1, now)
		require.NoError(t, err)
		return cells[0].Partition
	}
	require.Equal(t, day(8), newest(), "nothing says that a later one is due")
	w.Exec(`UPDATE datasets SET due_within_seconds = 3600 WHERE name = 'numbers'`)
	require.Equal(t, day(9), newest())
	want := map[string]views.CellState{
		day(1): views.CellPresent, day(2): views.CellRejected, day(3): views.CellFailed, day(4): views.CellMissing,
		day(5): views.CellStale, day(6): views.CellHeld, day(7): views.CellMissing, day(8): views.CellBuilding,
		day(9): views.CellMissing,
	}
	for _, limit := range []int{1, 2, 4, 100} {
		got, before, last := map[string]views.CellState{}, "", ""
		for {
			cells, err := w.D.Views.Grid(t.Context(), w.Caller, "numbers", before, limit, now)
			require.NoError(t, err)
			for _, c := range cells {
				require.NotContains(t, got, c.Partition)
				require.True(t, last == "" || c.Partition < last, "from the last key down")
				got[c.Partition], last = c.State, c.Partition
			}
			if len(cells) < limit {
				break
			}
			before = last
		}
		require.Equal(t, want, got, "pages of %d", limit)
	}

	reader := authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: "acme", Actor: "user:reader", Role: authz.RoleReader}
	cells, err := w.D.Views.Grid(t.Context(), reader, "numbers", "", 100, now)
	require.NoError(t, err)
	for _, c := range cells {
		if c.State == views.CellRejected || c.State == views.CellHeld {
			require.Zero(t, c.Rows, "a reader learns nothing of what is withheld")
		}
	}
	w.Exec(`UPDATE datasets SET read_roles = '{role:finance}' WHERE name = 'numbers'`)
	_, err = w.D.Views.Grid(t.Context(), reader, "numbers", "", 100, now)
	require.ErrorContains(t, err, "there is no dataset")
}

// What is not partitioned, or not in time, has a grid too.
func TestGridOfOtherPartitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "ab")
	w.Serve(dispatchertest.Checked)
	cells, err := w.D.Views.Grid(t.Context(), w.Caller, "checked_count", "", 100, time.Now())
	require.NoError(t, err)
	require.Len(t, cells, 1)
	require.Equal(t, views.CellPresent, cells[0].State)
	require.EqualValues(t, 1, cells[0].Rows)
}

// A page costs what it shows, however many partitions there are.
func TestGridOf100000Partitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", day(1), "1")
	w.Serve(gridded)
	w.Exec(`
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, location,
			row_count, bytes, schema, schema_hash, task_id, attempt)
		SELECT org_id, dataset_uuid, dataset_version, to_char(date '1720-01-01' + n, 'YYYY-MM-DD'), 1, 'Published', 'x',
			1, 1, '[]', '', gen_random_uuid(), 1
		FROM partition_versions p, generate_series(1, 100000) AS n
		WHERE p.dataset_version = (SELECT p.dataset_version FROM dag_version_datasets p JOIN datasets d
			ON d.id = p.dataset_uuid WHERE d.name = 'numbers')
		ON CONFLICT DO NOTHING`)

	now := time.Date(2024, 1, 2, 12, 0, 0, 0, time.UTC)
	cells, err := w.D.Views.Grid(t.Context(), w.Caller, "numbers", "", 372, now)
	require.NoError(t, err)
	require.Len(t, cells, 372)
	require.Equal(t, []string{day(1), "2023-12-31"}, []string{cells[0].Partition, cells[1].Partition})
	older, err := w.D.Views.Grid(t.Context(), w.Caller, "numbers", "1800-03-01", 372, now)
	require.NoError(t, err)
	require.Equal(t, "1800-02-28", older[0].Partition)
}
