package upkeep_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// more gives the dataset of a job so many more partitions like its first one, each of them with an older revision that
// was replaced. They name the same bytes.
func more(w *dispatchertest.World, job string, partitions int) {
	w.Exec(`
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, location,
			files, row_count, bytes, schema, schema_hash, source_version, task_id, attempt, materialized_at, ended_at)
		SELECT p.org_id, p.dataset_uuid, p.dataset_version, 'more' || n, v.revision, v.state,
			CASE v.state WHEN 'Published' THEN p.location ELSE regexp_replace(p.location, '[^/]+/$', gen_random_uuid() || '-1/') END,
			CASE v.state WHEN 'Published' THEN p.files ELSE '[]' END, p.row_count, p.bytes, p.schema, p.schema_hash,
			p.source_version, p.task_id, p.attempt, p.materialized_at,
			CASE v.state WHEN 'Replaced' THEN p.materialized_at END
		FROM partition_versions p JOIN dataset_versions g ON g.id = p.dataset_version JOIN jobs j ON j.id = g.origin_job_id,
			generate_series(1, $2::int) AS n, (VALUES (1, 'Replaced'), (2, 'Published')) AS v(revision, state)
		WHERE j.name = $1 AND p.state = 'Published'`, job, partitions)
}

// However many partitions are past their retention at once, one pass removes them.
func TestAllPartitionsPastTheirRetentionGo(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "a", "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "partition_by: { time: day }\n", "partition_by: key\n",
		"publish:\n", "publish:\n  pair_raw: { from: { job: raw }, retention: 240h }\n"))
	more(w, "raw", 1200)
	live := func() int {
		return w.Count(`SELECT FROM partition_versions WHERE partition_key LIKE 'more%' AND state = 'Published'`)
	}
	require.Equal(t, 1200, live())

	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), dispatchertest.Later(9*24*time.Hour)))
	require.Equal(t, 1200, live())
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), dispatchertest.Later(11*24*time.Hour)))
	require.Zero(t, live())
}

// A collection marks what is garbage in steps, and all of it.
func TestGCOfManyRevisions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Pair)
	more(w, "made", 2500)
	later := time.Now().Add(dispatchertest.PastWindow)
	marked, err := w.D.Upkeep.MarkGarbage(t.Context(), w.Caller.OrgID, later)
	require.NoError(t, err)
	require.Equal(t, 2500, marked.Revisions)
	require.Positive(t, marked.RevisionBytes)

	again, err := w.D.Upkeep.CollectGarbage(t.Context(), w.Caller, false, later)
	require.NoError(t, err)
	require.Zero(t, again.Revisions, "they were marked before")
	require.Equal(t, 2501, w.Count(`SELECT FROM partition_versions v JOIN dataset_versions g ON g.id = v.dataset_version
		JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = 'made'`))
}

// A process that runs asks for removals by itself, and does them.
func TestAProcessRemovesByItself(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Pair)
	more(w, "made", 3)
	w.Exec(`UPDATE partition_versions SET ended_at = now() - interval '30 days' WHERE state = 'Replaced'`)
	w.Start(w.D)
	w.Eventually("the garbage to go", func() bool {
		return w.Count(`SELECT FROM partition_versions WHERE state = 'Replaced'`) == 0 &&
			w.Count(`SELECT FROM work_items WHERE kind IN ('gc', 'expiry')`) == 0
	})
}
