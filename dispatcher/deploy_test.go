package dispatcher

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// letters: raw → upper → joined, and raw → other.
const letters = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: upper
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT upper(content) AS content FROM raw" }
  - name: other
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content || '!' AS content FROM raw" }
  - name: joined
    operator: sql
    inputs: [{ from: { job: upper } }]
    partition_by: none
    config: { query: "SELECT string_agg(content, '' ORDER BY content) AS content FROM upper" }
publish:
  letters_upper: { from: { job: upper } }
  letters_joined: { from: { job: joined } }
`

func lettersWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	return w
}

func edit(yaml string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(yaml) }

func TestFirstDeployBuildsAndCutsOver(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	deployed := w.deploy(letters)
	require.True(t, deployed.Created)
	require.Equal(t, 1, deployed.Version.Number)
	for _, c := range deployed.Changes {
		require.Equal(t, registry.Create, c.Action)
	}
	// Step by step, nobody sees anything until everything is there.
	for range 3 {
		w.route()
		w.advance()
		for _, name := range []string{"letters_upper", "letters_joined"} {
			rows, err := w.tryRead(name)
			require.True(t, err != nil && fault.Is(err, fault.NotFound) || len(rows) == 0, "%s is seen: %v", name, rows)
		}
		for _, task := range w.claim(w.d) {
			w.d.execute(t.Context(), task)
		}
		w.check()
	}
	w.settle()
	status, _ := w.status(deployed.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"B"}}, w.read("letters_upper"))
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.read("letters_joined"))
	require.Equal(t, 1, w.count(`SELECT FROM dag_activations`))
	settled, err := w.d.Settled(t.Context(), w.caller.OrgID)
	require.NoError(t, err)
	require.True(t, settled)
}

func TestTheSameDocumentIsTheSameVersion(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	first := w.serve(letters)
	made := `SELECT FROM datasets UNION ALL SELECT FROM dataset_versions UNION ALL SELECT FROM tasks
		UNION ALL SELECT FROM (SELECT DISTINCT origin_job_id FROM jobs) AS o`
	before := w.count(made)
	for _, yaml := range []string{letters, "# about letters\n" + letters, edit(letters, "operator: listed", "operator: listed\n    max_attempts: 3")} {
		again := w.deploy(yaml)
		require.False(t, again.Created)
		require.Equal(t, first.Version.ID, again.Version.ID)
		require.Equal(t, registry.Active, again.Version.Status)
		require.Equal(t, 1, w.count(`SELECT FROM dag_versions`))
	}
	// The same query in other words may be another version, which rebuilds nothing.
	for _, yaml := range []string{
		edit(letters, `"SELECT upper(content)`, `"SELECT /* loud */ upper(content)`),
		edit(letters, `upper(content) AS content FROM raw`, `UPPER( content )   as content from raw`),
	} {
		for _, c := range w.serve(yaml).Changes {
			require.Equal(t, registry.Reuse, c.Action, "%s/%d: %s", c.Job, c.Output, c.Reason)
		}
	}
	require.Equal(t, before, w.count(made), "something was made")
}

func TestOperationalEditsRebuildNothing(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	w.serve(letters)
	runs := w.runs()
	second := w.serve(edit(letters, "operator: listed", "operator: listed\n    max_attempts: 7\n    priority: 5", "every: 1h", "every: 2h"))
	require.True(t, second.Created)
	require.Equal(t, 2, second.Version.Number)
	require.Equal(t, runs, w.runs())
	// The new settings are the ones that count, for the same origin.
	w.probe.put("raw", "2024-01-03", "c")
	w.poll()
	w.settle()
	require.Equal(t, 1, w.count(`SELECT FROM tasks WHERE max_attempts = 7 AND priority = 5`))
	require.Equal(t, map[string][]string{"all": {"ABC"}}, w.read("letters_joined"))
}

func TestOneChangedQueryRebuildsItsDownstreamAlone(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	first := w.serve(letters)
	attempts := map[string]int{"raw": w.attempts("raw"), "other": w.attempts("other")}

	second := w.deploy(edit(letters, "upper(content) AS content", "upper(content) || upper(content) AS content"))
	actions := map[string]string{}
	for _, c := range second.Changes {
		actions[c.Job] = c.Action + ": " + c.Reason
	}
	require.Equal(t, map[string]string{"raw": "reuse: same definition", "other": "reuse: same definition",
		"upper": "rebuild: definition changed", "joined": "rebuild: upstream changed"}, actions)
	for job, same := range map[string]bool{"raw": true, "other": true, "upper": false, "joined": false} {
		require.Equal(t, same, w.generation(first.Version.ID, job) == w.generation(second.Version.ID, job), job)
		require.Equal(t, same, w.origin(first.Version.ID, job) == w.origin(second.Version.ID, job), job)
	}
	for range 2 { // the old numbers are served until everything is new
		w.advance()
		require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"B"}}, w.read("letters_upper"))
		require.Equal(t, map[string][]string{"all": {"AB"}}, w.read("letters_joined"))
		for _, task := range w.claim(w.d) {
			w.d.execute(t.Context(), task)
		}
		w.route()
	}
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"AA"}, "2024-01-02": {"BB"}}, w.read("letters_upper"))
	require.Equal(t, map[string][]string{"all": {"AABB"}}, w.read("letters_joined"))
	for job, n := range attempts {
		require.Equal(t, n, w.attempts(job), "%s was computed again", job)
	}

	// The first document again: its generations are still there, nothing is computed.
	runs := w.runs()
	third := w.serve(letters)
	require.False(t, third.Created)
	require.Equal(t, first.Version.ID, third.Version.ID)
	require.Equal(t, runs, w.runs())
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.read("letters_joined"))
}

// What arrives while a version is built reaches the live generation and the candidate.
func TestWhatArrivesDuringABuildReachesBoth(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	w.serve(letters)
	w.deploy(edit(letters, "upper(content) AS content", "upper(content) || '2' AS content"))
	w.advance()
	w.probe.put("raw", "2024-01-03", "c")
	w.poll()
	for _, task := range w.claim(w.d) {
		w.d.execute(t.Context(), task)
	}
	w.route()
	require.Equal(t, 2, w.count(`SELECT FROM ready r JOIN jobs j ON j.id = r.job_id WHERE j.name = 'upper' AND r.slot = '2024-01-03'`))
	w.settle()
	require.Equal(t, map[string][]string{"all": {"A2B2C2"}}, w.read("letters_joined"))
}

func (tn *tenant) origin(version uuid.UUID, job string) (id uuid.UUID) {
	tn.w.t.Helper()
	tn.w.row(`SELECT origin_job_id FROM jobs WHERE dag_version_id = $1 AND name = $2`, version, job)(&id)
	return id
}

func TestADeployDuringABuild(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	w.serve(letters)
	slow := edit(letters, "upper(content) AS content", "upper(content) || '2' AS content")
	first := w.deploy(slow)
	w.advance()
	running := w.claim(w.d) // its two tasks run
	require.Len(t, running, 2)
	w.d.execute(t.Context(), running[0])
	w.check()

	hotfix := edit(letters, "content || '!' AS content", "content || '?' AS content")
	_, err := w.tryDeploy(hotfix)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	var f *fault.Error
	require.True(t, errors.As(err, &f))
	require.Contains(t, f.Hint, "--supersede")

	second := w.deploy(hotfix, supersede)
	status, _ := w.status(first.Version.ID)
	require.Equal(t, registry.Abandoned, status)
	w.settle()
	status, _ = w.status(second.Version.ID)
	require.Equal(t, registry.Active, status)
	// The one that still runs for nobody hears of it, and what was queued is canceled.
	require.Equal(t, 1, w.count(`SELECT FROM leases WHERE task_id = $1 AND cancel_requested`, running[1].TaskID))
	require.NoError(t, w.d.cancelRunning(t.Context(), running[1], running[1].timeoutAt))
	require.Zero(t, w.count(`SELECT FROM ready`))
	w.check()

	// Deployed once more, it goes on from what it had.
	again := w.serve(slow)
	require.False(t, again.Created)
	require.Equal(t, map[string][]string{"all": {"A2B2"}}, w.read("letters_joined"))
	require.Equal(t, 3, w.attemptsOf(`SELECT * FROM tasks WHERE job_id = $1`, w.origin(first.Version.ID, "upper")),
		"one was done and stays, one was canceled and is done again")
}

const consumer = `
name: words
jobs:
  - name: shout
    operator: sql
    inputs: [{ from: { dataset: letters_upper }, as: up }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT content || '!!' AS content FROM up" }
publish:
  shouts: { from: { job: shout } }
`

func TestADatasetOfAnotherDAG(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	_, err := w.tryDeploy(consumer)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Len(t, problemsOf(err), 1)
	require.Regexp(t, `^dag.yaml:6:\d+: job shout reads dataset "letters_upper", which no DAG publishes$`, problemsOf(err)[0])

	w.serve(letters)
	w.serve(consumer)
	require.Equal(t, map[string][]string{"2024-01-01": {"A!!"}, "2024-01-02": {"B!!"}}, w.read("shouts"))
	w.probe.put("raw", "2024-01-03", "c")
	w.poll()
	w.settle()
	require.Equal(t, []string{"C!!"}, w.read("shouts")["2024-01-03"])

	// The producer's new generation is followed in place.
	w.serve(edit(letters, "upper(content) AS content", "upper(content) || '2' AS content"))
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"A2!!"}, "2024-01-02": {"B2!!"}, "2024-01-03": {"C2!!"}}, w.read("shouts"))
	// And back.
	w.serve(letters)
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"A!!"}, "2024-01-02": {"B!!"}, "2024-01-03": {"C!!"}}, w.read("shouts"))
}

func TestANameBelongsToOneDAG(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	w.serve(letters)
	thief := edit(letters, "name: letters\n", "name: thief\n")
	_, err := w.tryDeploy(thief)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Contains(t, problemsOf(err)[0], `dataset name "letters_`)
	require.Zero(t, w.count(`SELECT FROM dag_versions WHERE dag_name = 'thief'`))

	// Two that are built at the same moment: the second to arrive fails, and says why.
	a, b := edit(letters, "name: letters\n", "name: a\n", "letters_", "mine_"), edit(letters, "name: letters\n", "name: b\n", "letters_", "mine_")
	first := w.deploy(a)
	w.exec(`UPDATE dag_version_datasets SET published_name = NULL WHERE dag_version_id = $1`, first.Version.ID) // as if it had come later
	second := w.deploy(b)
	w.exec(`UPDATE dag_version_datasets SET published_name = name WHERE dag_version_id = $1 AND name LIKE 'mine_%'`, first.Version.ID)
	w.settle()
	statuses := map[registry.Status]string{}
	for _, id := range []uuid.UUID{first.Version.ID, second.Version.ID} {
		status, reason := w.status(id)
		statuses[status] = reason
	}
	require.Contains(t, statuses, registry.Active)
	require.Contains(t, statuses[registry.Failed], "is taken by another DAG")
}

// Whoever deploys what serves already, over a build, wants what serves to stay.
func TestTheActiveVersionOverABuild(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	first := w.serve(letters)
	second := w.deploy(edit(letters, "upper(content) AS content", "upper(content) || '2' AS content"))
	w.advance()
	again := w.deploy(letters, supersede)
	require.Equal(t, first.Version.ID, again.Version.ID)
	w.settle()
	status, _ := w.status(second.Version.ID)
	require.Equal(t, registry.Abandoned, status)
	status, _ = w.status(first.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.read("letters_joined"))
}
