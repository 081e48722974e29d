package dispatcher

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
	w := newWorld(t)
	acted := map[string]int{}
	w.probe.on("page", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		read, err := contents(ctx, task, 0)
		acted[fmt.Sprint(read)]++
		return operators.Result{}, err
	})
	w.probe.put("raw", "k", "a")
	w.serve(alarm)
	require.Empty(t, acted, "it is not built, and acts on what comes from now on")
	w.probe.put("raw", "k", "b")
	w.probe.put("raw", "l", "a")
	w.poll()
	w.settle()
	want := map[string]int{"[m(a)]": 1, "[m(b)]": 1}
	require.Equal(t, want, acted)
	quiet := func(what string) {
		t.Helper()
		require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
		w.settle()
		require.NoError(t, w.d.sweepRetention(t.Context(), later(2*keepTasks)))
		require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
		w.settle()
		require.Equal(t, want, acted, what)
	}
	quiet("nothing new")
	w.serve(edit(alarm, "tag: p", "tag: q"))
	quiet("its own definition changed")
	w.serve(edit(alarm, "tag: m", "tag: n"))
	quiet("what it reads was rebuilt by a deploy")
	w.probe.put("raw", "k", "c")
	w.poll()
	w.settle()
	want["[n(c)]"] = 1
	quiet("new data")
	w.serve(alarm)
	quiet("what it reads was gone back to")
}
