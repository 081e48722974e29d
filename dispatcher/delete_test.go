package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

func TestDeleteDAG(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(upkept)
	w.serve(wordsDAG)

	plan, err := w.d.PlanDeletion(t.Context(), w.caller, "letters", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"words/spelled"}, plan.Datasets[0].Consumers)
	_, err = w.d.DeleteDAG(t.Context(), w.caller, "letters", time.Now())
	require.ErrorContains(t, err, "letters_made is read by words/spelled")
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}}, w.read("letters_made"))

	_, err = w.d.DeleteDAG(t.Context(), w.caller, "words", time.Now())
	require.NoError(t, err)
	w.probe.put("raw", "2024-01-02", "b")
	w.poll() // a task is open
	w.deploy(tagged("two"), func(r *registry.DeployRequest) { r.Activate = new(bool) })
	deleted, err := w.d.DeleteDAG(t.Context(), w.caller, "letters", time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, deleted.Version)
	require.Equal(t, 2, deleted.Building)
	require.Equal(t, 1, deleted.OpenTasks)
	w.settle()
	_, err = w.tryRead("letters_made")
	require.ErrorContains(t, err, "no dataset")
	require.Zero(t, w.count(`SELECT FROM sources`))
	require.Equal(t, 1, w.count(`SELECT FROM tasks WHERE status = 'Canceled'`))
	dags, err := w.d.DAGs(t.Context(), w.caller, "", 10)
	require.NoError(t, err)
	require.Empty(t, dags)
	_, err = w.d.DeleteDAG(t.Context(), w.caller, "letters", time.Now())
	require.ErrorContains(t, err, `no DAG "letters"`)

	// Within the window nothing is lost.
	require.Empty(t, w.gc(time.Now().Add(6*24*time.Hour)).Generations)
	first := 1
	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{To: &first})
	require.NoError(t, err)
	w.poll()
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}}, w.read("letters_made"))

	// After it, everything goes; and the name is anybody's.
	_, err = w.d.DeleteDAG(t.Context(), w.caller, "letters", time.Now())
	require.NoError(t, err)
	require.NotEmpty(t, w.gc(time.Now().Add(pastWindow)).Generations)
	require.Empty(t, w.files())
	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{To: &first})
	require.ErrorContains(t, err, "purged")
	w.serve(upkept)
	require.Len(t, w.read("letters_made"), 2)
}
