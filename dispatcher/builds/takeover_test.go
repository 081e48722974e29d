package builds_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// old and new both have an output `stations`; only one of them may publish it.
const (
	oldStations = `
name: old
jobs:
` + dispatchertest.Raw + `  - name: made
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT 'old ' || content AS content FROM raw" }
publish:
  stations: { from: { job: made }, description: The old ones. }
`
	readsStations = `
name: reader
jobs:
  - name: shout
    operator: sql
    inputs: [{ from: { dataset: stations }, as: st }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT content || '!' AS content FROM st" }
publish:
  shouted: { from: { job: shout } }
`
)

var (
	newStations = dispatchertest.Edit(oldStations, "name: old", "name: new", "'old '", "'new '", "The old ones.",
		"The new ones., takes_over: old")
	greedy     = dispatchertest.Edit(newStations, ", takes_over: old", "")
	oldWithout = dispatchertest.Edit(oldStations, "publish:\n"+
		"  stations: { from: { job: made }, description: The old ones. }\n", "")
)

func TestAPublishedNameMovesToAnotherDAG(t *testing.T) {
	t.Parallel()
	for name, storage := range map[string]string{"parquet": "", "postgres": "    storage: { postgres: {} }\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored := func(yaml string) string {
				return dispatchertest.Edit(yaml, "    execution_strategy: PerPartition\n",
					"    execution_strategy: PerPartition\n"+storage)
			}
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(stored(oldStations))
			w.Serve(readsStations)
			w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'stations'`)

			_, err := w.TryDeploy(stored(greedy))
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
			require.Contains(t, err.Error(), `dataset name "stations" is published by DAG old`)
			first := w.Serve(dispatchertest.Edit(stored(greedy), "stations:", "others:"))
			deployed := w.Deploy(stored(newStations))
			require.Equal(t, "same definition, takes its name over from old, whose dataset stays an input of "+
				"reader/shout until it is deployed again", deployed.Changes[1].Reason)
			require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"], "until the swap")
			w.Settle()
			require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])
			require.Equal(t, []string{"old a"}, w.Read("old/made/0")["2024-01-01"])
			require.Equal(t, []string{"old a!"}, w.Read("shouted")["2024-01-01"])
			require.Equal(t, []string{"new {finance} true", "old {finance} false"}, dispatchertest.Texts(t, w.Pool,
				`SELECT concat_ws(' ', producer_dag_name, read_roles, published::text) FROM datasets
					WHERE producer_job_name = 'made' ORDER BY 1`))
			if storage != "" {
				require.Equal(t, []string{"new a"}, dispatchertest.Texts(t, w.Pool, `SELECT content
					FROM data_acme.stations`))
			}

			// The old DAG does not get the name back by itself, and can continue without it.
			_, err = w.TryDeploy(dispatchertest.Edit(stored(oldStations), "'old '", "'older '"))
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
			w.Serve(dispatchertest.Edit(stored(newStations), "'new '", "'newer '"))
			require.Equal(t, []string{"newer a"}, w.Read("stations")["2024-01-01"])

			// Rolled back to a version without the name, the new DAG gives it back.
			to := first.Version.Number
			back := builds.RollbackRequest{To: &to, AllowMoves: true}
			_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "new", back)
			require.NoError(t, err)
			w.Settle()
			require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
			require.Equal(t, []string{"new a"}, w.Read("others")["2024-01-01"])
			if storage != "" {
				require.Equal(t, []string{"old a"}, dispatchertest.Texts(t, w.Pool, `SELECT content
					FROM data_acme.stations`))
			}
		})
	}
}

// Readers of the name are told what the other dataset lacks.
func TestATakeoverSaysWhatItsReadersLose(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(wideStations)
	unpublished := dispatchertest.Edit(oldWithout, "name: old", "name: new")
	w.Serve(unpublished)
	require.Equal(t, []string{
		"says: the name stations is taken over from DAG old",
		"says: dataset stations would lose column size",
	}, planned(t, w, newStations))
}

func TestANameIsNotTakenFromABuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Deploy(dispatchertest.Edit(oldStations, "'old '", "'older '"))
	_, err := w.TryDeploy(newStations)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Contains(t, err.Error(),
		"cannot be taken over from DAG old, whose version 2 publishes it and is on its way")
	w.Settle()

	// While a build of the new DAG is to take the name, the old DAG cannot claim it either.
	taking := w.Deploy(newStations)
	_, err = w.TryDeploy(dispatchertest.Edit(oldStations, "'old '", "'oldest '"))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	w.Settle()
	status, reason := w.Status(taking.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	// A rollback to a version that had the name is refused with the reason.
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "old", builds.RollbackRequest{})
	require.ErrorContains(t, err, `dataset name "stations" belongs to DAG new by now`)
	w.Serve(oldWithout)
}

func TestADeployThatClosesACycleOverDAGsIsRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Serve(readsStations)
	w.Serve(dispatchertest.Edit(readsStations, "name: reader", "name: second", "stations", "shouted", "shouted:",
		"twice:"))
	closing := dispatchertest.Edit(oldStations, "    inputs: [{ from: { job: raw } }]\n",
		"    inputs: [{ from: { job: raw } }, { from: { dataset: twice }, as: back }]\n")
	_, err := w.TryDeploy(closing)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "the deploy would close a cycle over DAGs: old reads second reads reader reads old")
	require.Equal(t, 1, w.Count(`SELECT FROM dag_versions WHERE dag_name = 'old'`))
	w.Serve(dispatchertest.Edit(oldStations, "'old '", "'other '"))
	w.Serve(oldStations)
}

func TestARollbackThatClosesACycleOverDAGsIsRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Serve(readsStations)
	w.Serve(dispatchertest.Edit(oldStations, "name: old", "name: reader", "stations:", "shouted:"),
		movesAllowed)
	w.Serve(dispatchertest.Edit(oldStations, "    inputs: [{ from: { job: raw } }]\n",
		"    inputs: [{ from: { job: raw } }, { from: { dataset: shouted }, as: back, map: latest }]\n"))
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "reader", builds.RollbackRequest{})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "would close a cycle over DAGs: reader reads old reads reader")
}

// filed is a DAG whose source declares what it reads.
const filed = `
name: filed
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { path: files, pattern: "{date}.csv", format: csv, columns: [id, v, note], types: { id: INT, v: BIGINT, note: text } }
  - name: made
    operator: sql
    inputs: [{ from: { job: landing }, as: r }]
    execution_strategy: PerPartition
    storage: { postgres: {} }
    config: { query: "SELECT id, v, note FROM r" }
publish:
  filed: { from: { job: made } }
`

// What a source declares is compared before it was ever read, and so are the columns of tables.
func TestDeclaredTypesAreComparedAhead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("files/2024-01-01.csv", "id,v,note\n1,2,x\n")
	w.Serve(filed)
	const remade = "says: view data_acme.filed would be made anew, with its grants: " +
		"column \"v\" changes from bigint to text"
	require.Equal(t, []string{
		"says: dataset filed would have columns of other types: v BIGINT → SMALLINT",
		"says: dataset filed would lose column note",
		"says: the name filed is taken over from DAG filed",
	}, sorted(planned(t, w, dispatchertest.Edit(filed, "name: filed", "name: other", "v: BIGINT", "v: SMALLINT",
		"id, v, note FROM", "id, v FROM", "{ job: made } }", "{ job: made }, takes_over: filed }"))))
	require.Equal(t, []string{"says: dataset filed would have columns of other types: v BIGINT → VARCHAR",
		"says: dataset filed/landing/0 would have columns of other types: v BIGINT → VARCHAR", remade,
	}, sorted(planned(t, w, dispatchertest.Edit(filed, "v: BIGINT", "v: VARCHAR"))))
	require.Equal(t, []string{"says: dataset filed would have columns of other types: v BIGINT → VARCHAR", remade},
		sorted(planned(t, w, dispatchertest.Edit(filed, "id, v, note FROM", "id, v::VARCHAR AS v, note FROM"))))
}

func sorted(texts []string) []string {
	slices.Sort(texts)
	return texts
}

// Whoever goes back agrees to names that move, in either direction.
func TestARollbackThatMovesANameAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldStations)
	w.Serve(dispatchertest.Edit(greedy, "stations:", "others:"))
	w.Serve(newStations)
	asks := func(to int, text string) {
		t.Helper()
		require.ErrorContains(t, goBack(w, "new", to), text)
		require.NoError(t, goBack(w, "new", to, allowMoves))
	}
	asks(1, "the name stations would go back to DAG old: whoever reads it by name gets other rows")
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])
	asks(2, "the name stations is taken over from DAG old: whoever reads it by name gets other rows")
	require.Equal(t, []string{"new a"}, w.Read("stations")["2024-01-01"])

	given := []registry.Consent{registry.AllowMoves}
	_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "new", given, time.Now())
	require.NoError(t, err)
	asks(2, "the name stations is taken over from DAG old: whoever reads it by name gets other rows")
}
