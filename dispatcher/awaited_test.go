package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// dimensioned is join with its right input as a dimension.
func dimensioned(more string) string {
	return dispatchertest.Edit(join, "{ from: { job: right } }", "{ from: { job: right }, map: latest"+more+" }")
}

// generationOf returns the generation of a job's output that serves.
func generationOf(w *dispatchertest.World, job string) (version uuid.UUID) {
	w.T.Helper()
	w.Row(`SELECT g.id FROM dataset_versions g JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = $1`, job)(&version)
	return version
}

// multiply publishes partitions n00001 to n of a job's output that are like the one there is.
func multiply(w *dispatchertest.World, job string, n int) {
	w.T.Helper()
	w.Exec(`INSERT INTO partition_versions
		SELECT p.* FROM partition_versions one, generate_series(1, $2) AS i, jsonb_populate_record(one,
			jsonb_build_object('partition_key', 'n' || lpad(i::text, 5, '0'))) AS p
		WHERE one.dataset_version = $1 AND one.state = 'Published'`, generationOf(w, job), n)
	w.Exec(`ANALYZE partition_versions`)
}

// derive records what the outputs that multiply has published were made from.
func derive(w *dispatchertest.World, job string) {
	w.T.Helper()
	w.Exec(`INSERT INTO partition_inputs
		SELECT i.org_id, i.output_version, p.partition_key, i.output_revision, i.input_index, i.input_dataset,
			i.input_version, CASE i.input_index WHEN 0 THEN p.partition_key ELSE i.input_key END, i.input_revision, i.compared
		FROM partition_inputs i JOIN partition_versions p ON p.dataset_version = i.output_version
		WHERE i.output_version = $1 ON CONFLICT DO NOTHING`, generationOf(w, job))
	w.Exec(`ANALYZE partition_inputs`)
}

// routed routes the events there are, and returns how long that took.
func routed(w *dispatchertest.World) time.Duration {
	w.T.Helper()
	began := time.Now()
	w.Route()
	return time.Since(began)
}

func TestADimensionForWhichNothingWaitsCostsNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("left", "k", "l")
	w.Probe.Put("right", "x", "r1")
	w.Serve(dimensioned(""))
	multiply(w, "left", 60_000)
	multiply(w, "both", 60_000)
	derive(w, "both")

	var quickest = time.Hour
	for i := range 5 {
		w.Probe.Put("right", "x", fmt.Sprintf("r%d", i+2))
		w.Poll()
		require.Equal(t, 1, w.Work())
		quickest = min(quickest, routed(w))
	}
	t.Logf("60,000 partitions under a dimension: its event is routed in %s", quickest)
	require.Less(t, quickest, 100*time.Millisecond)
	require.Zero(t, w.Count(`SELECT FROM work_items`))
	require.Zero(t, w.Work())
}

func TestADimensionOfManyOutputsFansOutInTheBackground(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"first revision": "", "with refresh": ", refresh: true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("left", "k", "l")
			w.Serve(dimensioned(more))
			multiply(w, "left", 2000)
			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
			require.Zero(t, w.Work(), "every output waits for the dimension")

			w.Probe.Put("right", "x", "r1")
			w.Poll()
			require.Equal(t, 1, w.Work())
			w.Route()
			require.Zero(t, w.Count(`SELECT FROM ready`))
			require.Equal(t, 1, w.Count(`SELECT FROM work_items WHERE kind = 'fan out'`))
			w.FanOut()
			require.Equal(t, 2001, w.Count(`SELECT FROM ready`))
			w.Check()

			w.Exec(`DELETE FROM ready; DELETE FROM tasks WHERE status = 'Queued'`)
			w.Probe.Put("right", "x", "r2")
			w.Poll()
			require.Equal(t, 1, w.Work())
			w.Route()
			asked := w.Count(`SELECT FROM work_items WHERE kind = 'fan out'`)
			require.Equal(t, more != "", asked == 1, "only with refresh it makes the outputs stale")
		})
	}
}
