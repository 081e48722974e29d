package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// newsOnly is chained without the job that reads all of the chain again.
var newsOnly = dispatchertest.Edit(chained, `  - name: whole
    operator: hook
    inputs: [{ from: { job: chain } }]
    config: { tag: w }
`, "", "  chained_whole: { from: { job: whole } }\n", "")

// A consumer reads the segments beyond its position, and none before it.
func TestACursorIsAsFastAtItsEnd(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "abc"}
	w.Probe.On("chain", l.Read)
	w.Serve(newsOnly)

	// step adds a block, and returns how long its event takes until the consumer's task is leased.
	step := func() time.Duration {
		quickest := time.Hour
		for range 5 {
			l.Set(l.Blocks + "y")
			w.Poll()
			dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
			began := time.Now()
			w.Route()
			task := w.One(w.D)
			quickest = min(quickest, time.Since(began))
			require.Equal(t, 1, w.Count(`SELECT jsonb_array_elements(input_versions) FROM tasks WHERE id = $1`, task.TaskID))
			dispatchertest.Execute(t.Context(), w.D, task)
		}
		return quickest
	}
	early := step()

	const many = 150_000
	chain, news := generationOf(w, "chain"), generationOf(w, "news")
	w.Exec(`INSERT INTO partition_versions
		SELECT p.* FROM partition_versions one, generate_series(length($2), $3) AS i, jsonb_populate_record(one,
			jsonb_build_object('partition_key', i || '-' || i + 1, 'range_start', i, 'range_end', i + 1)) AS p
		WHERE one.dataset_version = $1 AND one.range_start = 0`, chain, l.Blocks, many)
	w.Exec(`INSERT INTO partition_inputs
		SELECT i.* FROM partition_inputs one, generate_series(length($2), $3) AS n, jsonb_populate_record(one,
			jsonb_build_object('input_key', n || '-' || n + 1)) AS i
		WHERE one.output_version = $1 AND one.input_key = '0-3'`, news, l.Blocks, many)
	w.Exec(`UPDATE dataset_cursors SET cursor_value = $1`, many)
	w.Exec(`ANALYZE partition_versions, partition_inputs`)
	l.Set(strings.Repeat("x", many+1))

	late := step()
	t.Logf("from a segment's event to its consumer's lease: %s at position 5, %s at %d", early, late, many)
	require.Less(t, late, 5*early+100*time.Millisecond)

	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	require.Zero(t, w.Work(), "it has read everything")
}
