package builds_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// builtDAG is raw → made, from a list of its own.
func builtDAG(name, tag string) string {
	return dispatchertest.Edit(dispatchertest.Pair, "name: pair", "name: "+name, "pair_made", name+"_made",
		"list: raw", "list: "+name, "tag: m", "tag: "+tag)
}

// Two DAGs that are built at the same time take turns, however many tasks the first has queued, and whenever the
// second came.
func TestABuildDoesNotWaitForAnothersBacklog(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	const many, few = 30, 9
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range many {
		w.Probe.Put("big", start.AddDate(0, 0, i).Format(time.DateOnly), fmt.Sprint(i))
	}
	for i := range few {
		w.Probe.Put("small", start.AddDate(0, 0, i).Format(time.DateOnly), fmt.Sprint(i))
	}
	w.Serve(builtDAG("big", "one"))
	w.Serve(builtDAG("small", "one"))

	w.Deploy(builtDAG("big", "two"))
	w.Advance()
	require.Equal(t, many, w.Count(`SELECT FROM ready`))
	w.Exec(`UPDATE ready SET rank = rank - 1200000`) // twenty minutes pass
	claim := func() string {
		claimed, err := w.D.Claim(t.Context(), w.D.InProcessRuntimes(), w.D.WorkerID, 1, time.Now())
		require.NoError(t, err)
		require.Len(t, claimed, 1)
		dispatchertest.Execute(t.Context(), w.D, claimed[0])
		return claimed[0].Job.DAG
	}
	for range 5 {
		require.Equal(t, "big", claim())
	}

	w.Deploy(builtDAG("small", "two"))
	w.Advance()
	require.Equal(t, many-5+few, w.Count(`SELECT FROM ready`))
	var order []string
	for range 2 * few {
		order = append(order, claim())
	}
	small := slices.DeleteFunc(slices.Clone(order), func(dag string) bool { return dag != "small" })
	require.GreaterOrEqual(t, len(small), few-1, "they take turns: %v", order)
	require.Contains(t, order[:4], "big", "and the large one goes on")

	w.Settle()
	require.Len(t, w.Read("big_made"), many)
	require.Equal(t, []string{"two(0)"}, w.Read("small_made")["2024-01-01"])
}
