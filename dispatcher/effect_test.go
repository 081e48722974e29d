package dispatcher_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/operators"
)

const alarm = `
name: alarm
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { list: raw }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: m }
  - name: page
    operator: act
    outputs: 0
    inputs: [{ from: { job: made } }]
    execution_strategy: PerPartition
    config: { tag: p }
publish:
  alarm_made: { from: { job: made } }
`

// A job with effects acts once on each revision: no deploy, retention or sweep makes it act twice.
func TestAnEffectActsOncePerRevision(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	acted := map[string]int{}
	w.Probe.On("page", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		read, err := dispatchertest.Contents(ctx, task, 0)
		acted[fmt.Sprint(read)]++
		return operators.Result{}, err
	})
	w.Probe.Put("raw", "k", "a")
	w.Serve(alarm)
	require.Empty(t, acted, "it is not built, and acts on what comes from now on")
	w.Probe.Put("raw", "k", "b")
	w.Probe.Put("raw", "l", "a")
	w.Poll()
	w.Settle()
	want := map[string]int{"[m(a)]": 1, "[m(b)]": 1}
	require.Equal(t, want, acted)
	quiet := func(what string) {
		t.Helper()
		require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
		w.Settle()
		require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*upkeep.KeepTasks)))
		require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
		w.Settle()
		require.Equal(t, want, acted, what)
	}
	quiet("nothing new")
	w.Serve(dispatchertest.Edit(alarm, "tag: p", "tag: q"))
	quiet("its own definition changed")
	w.Serve(dispatchertest.Edit(alarm, "tag: m", "tag: n"))
	quiet("what it reads was rebuilt by a deploy")
	w.Probe.Put("raw", "k", "c")
	w.Poll()
	w.Settle()
	want["[n(c)]"] = 1
	quiet("new data")
	w.Serve(alarm)
	quiet("what it reads was gone back to")
}

// The position at a partition that is gone goes too, and those at others stay.
func TestPositionsOfEffectsAtGonePartitionsGo(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Exec(`INSERT INTO effect_positions (org_id, dag_name, job_name, dataset_uuid, partition_key, dataset_version,
			revision)
		SELECT org_id, 'pair', 'told', dataset_uuid, partition_key, dataset_version, 1 FROM (
			SELECT v.org_id, v.dataset_uuid, p.partition_key, p.dataset_version
			FROM partition_versions p JOIN dataset_versions v ON v.id = p.dataset_version
			UNION ALL
			SELECT v.org_id, v.dataset_uuid, 'gone ' || n, v.id FROM dataset_versions v, generate_series(1, 1500) AS n
		) AS all_of_them`)
	there := w.Count(`SELECT FROM partition_versions`)
	require.Positive(t, there)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(0)))
	require.Equal(t, there, w.Count(`SELECT FROM effect_positions`))
}
