package builds_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// goBack rolls back to a version, or with 0 to the one before, and works until all is done.
func goBack(w *dispatchertest.World, dagName string, to int, edit ...func(*builds.RollbackRequest)) error {
	var req builds.RollbackRequest
	if to > 0 {
		req.To = &to
	}
	for _, e := range edit {
		e(&req)
	}
	_, err := w.D.Builds.Rollback(w.T.Context(), w.Caller, dagName, req)
	w.Settle()
	return err
}

func movesAllowed(r *registry.DeployRequest) { r.AllowMoves = true }

func allowMoves(req *builds.RollbackRequest) { req.AllowMoves = true }

// A name that was taken over comes back with the rollback of the taker, whatever its former owner did meanwhile.
func TestANameReturnsAfterRollbacksOnBothSides(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Serve(dispatchertest.Edit(oldStations, "'old '", "'older '"))
	w.Serve(dispatchertest.Edit(greedy, "stations:", "others:"))
	w.Serve(newStations)
	require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])
	stored := dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', v.dag_name, v.number, p.published_name)
		FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id
		WHERE p.published_name IS NOT NULL ORDER BY 1`)
	require.Equal(t, []string{"new 1 others", "new 2 stations", "old 1 stations", "old 2 stations"}, stored,
		"no version is written again")

	// The old DAG may not take the name back unasked.
	err := goBack(w, "old", 1)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, `dataset name "stations" belongs to DAG new by now`)
	require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])

	require.NoError(t, goBack(w, "new", 1, allowMoves))
	require.Equal(t, []string{"older a"}, w.Read("stations")["2024-01-01"])
	require.NoError(t, goBack(w, "old", 1))
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
	require.Equal(t, []string{"new a"}, w.Read("others")["2024-01-01"])
}

// A consumer's file stays the same; what its input means does not.
func TestAnInputThatMeansAnotherDatasetIsAnotherVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	first := w.Serve(readsStations)
	w.Serve(newStations)
	require.Equal(t, []string{"old a!"}, w.Read("shouted")["2024-01-01"], "until it is deployed again")

	require.Equal(t, []string{"says: stations, which job shout reads, is another dataset by now: that of new/made, " +
		"not of old/made"}, planned(t, w, readsStations))
	again := w.Serve(readsStations)
	require.NotEqual(t, first.Version.Number, again.Version.Number)
	require.Equal(t, []string{"new a!"}, w.Read("shouted")["2024-01-01"])
	require.Equal(t, again.Version.Number, w.Serve(readsStations).Version.Number)

	require.NoError(t, goBack(w, "reader", 1))
	require.Equal(t, []string{"old a!"}, w.Read("shouted")["2024-01-01"])
}

// Also where the DAG that takes a name has served nothing yet.
func TestATakeoverThatLosesPartitionsAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Probe.Put("few", "2024-01-02", "c")
	w.Serve(oldStations)
	fewer := dispatchertest.Edit(newStations, "list: raw", "list: few")
	require.Contains(t, planned(t, w, fewer), "says: the name stations is taken over from DAG old")
	failed := w.Deploy(fewer) // nothing is known of its source yet
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "stations would lose 1 partition that it serves: 2024-01-01")

	require.Equal(t, []string{"says: the name stations is taken over from DAG old",
		`asks: stations would lose 1 partition that it serves: 2024-01-01 (input "raw" has nothing for it)`},
		planned(t, w, fewer))
	_, err := w.TryDeploy(fewer)
	require.ErrorContains(t, err, "stations would lose 1 partition")
	w.Serve(fewer, allowRemovals)
	require.Equal(t, map[string][]string{"2024-01-02": {"new c"}}, w.Read("stations"))
}

func TestARollbackTakesANameBackIfAsked(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Serve(dispatchertest.Edit(oldStations, "'old '", "'older '"))
	w.Serve(newStations)

	require.NoError(t, goBack(w, "old", 1, allowMoves))
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
	require.Equal(t, []string{"new a"}, w.Read("new/made/0")["2024-01-01"])

	// The version that lost the name serves, so a deploy of its document moves nothing, and says so.
	says := []string{"says: the name stations belongs to DAG old by now: whoever reads it by name gets the rows of " +
		"old. Deploying the same document again does not take it back; a changed one does, if it says " +
		"`takes_over: old`"}
	require.Equal(t, says, planned(t, w, newStations))
	require.Len(t, w.Deploy(newStations).Findings, 1)
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])

	w.Serve(dispatchertest.Edit(newStations, "The new ones.", "The newest ones."))
	require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])
	require.Empty(t, planned(t, w, dispatchertest.Edit(newStations, "The new ones.", "The newest ones.")))
}

func TestDeletingTheTakerGivesItsNameBack(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Serve(newStations)
	_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "new", nil, time.Now())
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "the name stations would go back to DAG old")
	require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])

	moves := []registry.Consent{registry.AllowMoves}
	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "new", moves, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])

	// Its rollback takes the name again, as its document says, if somebody agrees.
	require.ErrorContains(t, goBack(w, "new", 1), "the name stations is taken over from DAG old")
	require.NoError(t, goBack(w, "new", 1, allowMoves))
	require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])
}

// A renamed job keeps its dataset, and a new job under the old name has one of its own, through any rollback.
func TestANewJobUnderAnOldNameSurvivesRollbacks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	renamed := dispatchertest.Edit(oldStations, "name: made", "name: built\n    renamed_from: made", "job: made",
		"job: built")
	w.Serve(renamed)
	reused := dispatchertest.Edit(renamed, "\n    renamed_from: made", "", "publish:\n", `  - name: made
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT 'again ' || content AS content FROM raw" }
publish:
`)
	w.Serve(reused)
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
	require.Equal(t, []string{"again a"}, w.Read("old/made/0")["2024-01-01"])
	tasks := w.Count(`SELECT FROM tasks`)

	require.NoError(t, goBack(w, "old", 1))
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
	for range 2 {
		again := w.Serve(reused)
		require.Equal(t, registry.Active, statusOf(w, again))
		require.Equal(t, []string{"again a"}, w.Read("old/made/0")["2024-01-01"])
		w.Serve(oldStations)
		require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
	}
	require.Equal(t, tasks, w.Count(`SELECT FROM tasks`), "a name is not data")

	// Both at once: the rename and the new job under the old name.
	w.Serve(dispatchertest.Edit(reused, "'again '", "'once more '"), movesAllowed)
	require.Equal(t, []string{"once more a"}, w.Read("old/made/0")["2024-01-01"])
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
}

func statusOf(w *dispatchertest.World, d registry.Deployment) registry.Status {
	status, _ := w.Status(d.Version.ID)
	return status
}

// A renamed job keeps its history and its pause, under the name that it has in the version that serves.
func TestARenamedJobKeepsItsTasks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	tasksOf := func(job string) []string {
		list, err := w.D.Views.Tasks(t.Context(), w.Caller,
			views.TaskFilter{TaskSelection: views.TaskSelection{DAG: "old", Job: job}, Limit: 10})
		require.NoError(t, err)

		var partitions []string
		for _, task := range list {
			require.Equal(t, job, task.Job)
			partitions = append(partitions, task.Partition)
		}
		return partitions
	}
	completed := func(job string) int64 {
		detail, err := w.D.Views.Job(t.Context(), w.Caller, "old", job)
		require.NoError(t, err)
		return detail.Tasks.Completed
	}

	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	older := dispatchertest.Edit(oldStations, "'old '", "'older '")
	w.Serve(older)
	require.Len(t, tasksOf("made"), 2, "one for each definition")
	_, err := w.D.Control.Pause(t.Context(), w.Caller, "old", "made", "", time.Now())
	require.NoError(t, err)

	w.Serve(dispatchertest.Edit(older, "name: made", "name: built\n    renamed_from: made", "job: made", "job: built"))
	require.Len(t, tasksOf("built"), 2)
	require.Empty(t, tasksOf("made"))
	require.EqualValues(t, 2, completed("built"))
	_, err = w.D.Views.Job(t.Context(), w.Caller, "old", "made")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.ErrorContains(t, err, "old/made is now old/built")

	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	require.Empty(t, w.Read("stations")["2024-01-02"], "the pause is the job's")
	require.NoError(t, w.D.Control.Resume(t.Context(), w.Caller, "old", "built", time.Now()))
	w.Settle()
	require.Equal(t, []string{"older b"}, w.Read("stations")["2024-01-02"])

	// Later definitions lie under its name too, and all of them go back with a rollback.
	w.Serve(dispatchertest.Edit(older, "name: made", "name: built", "job: made", "job: built", "'older '", "'oldest '"))
	require.Len(t, tasksOf("built"), 5)
	require.NoError(t, goBack(w, "old", 1))
	require.Len(t, tasksOf("made"), 5)
	require.Empty(t, tasksOf("built"))
}
