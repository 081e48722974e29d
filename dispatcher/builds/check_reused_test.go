package builds_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// unchecked is dispatchertest.Checked without its check.
var unchecked = dispatchertest.Edit(dispatchertest.Checked,
	"    checks:\n      - { name: short, sql: \"SELECT * FROM output WHERE n > 3\" }\n", "")

func TestNewChecksOnAReusedOutputGate(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Probe.Put("raw", "2024-01-02", "toolong")
	w.Serve(unchecked)
	runs := w.Attempts("good")

	failed := w.Deploy(dispatchertest.Checked)
	require.Equal(t, deploy.Reuse, failed.Changes[1].Action)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "checks of checked/good fail on partition 2024-01-02, which was made before: short: 1 row",
		reason)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}, "2024-01-02": {"toolong,7"}}, w.Read("checked_good"),
		"live is untouched")
	require.Zero(t, w.Count(`SELECT FROM check_results WHERE outcome <> 'pass'`),
		"readers hear nothing of checks that do not serve")

	// Deployed again unchanged, it fails again; with the data fixed it serves, and computes nothing else.
	w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, _ = w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	w.Probe.Put("raw", "2024-01-02", "cd")
	w.Poll()
	w.Settle()
	require.Equal(t, runs+1, w.Attempts("good"))
	w.Serve(dispatchertest.Checked)
	require.Equal(t, runs+1, w.Attempts("good"))
	require.Equal(t, []string{"2024-01-01 pass", "2024-01-02 pass"}, dispatchertest.Texts(t, w.Pool,
		`SELECT k.partition_key || ' ' || k.outcome FROM check_results k
			JOIN partition_versions p USING (dataset_version, partition_key, revision) WHERE p.state = 'Published'
			ORDER BY 1`))

	// From now on, the check decides on publication.
	w.Probe.Put("raw", "2024-01-02", "toolong")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"cd,2"}, w.Read("checked_good")["2024-01-02"])

	// A partition that has passed a check is not checked again.
	w.Probe.Put("raw", "2024-01-02", "ef")
	w.Poll()
	w.Settle()
	checks := w.Count(`SELECT FROM tasks WHERE kind = 'check'`)
	w.Serve(unchecked)
	w.Serve(dispatchertest.Edit(dispatchertest.Checked, "name: raw", "name: raw\n    max_attempts: 9"))
	w.Serve(dispatchertest.Checked)
	require.Equal(t, checks, w.Count(`SELECT FROM tasks WHERE kind = 'check'`))
}

// Of rows in PostgreSQL there are only those of the newest revision. The check of one that is replaced before it runs
// ends without a word, and the version goes on with the check of the next.
func TestTheCheckOfAReplacedRevisionIsNoFailure(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	const strategy = "    execution_strategy: PerPartition\n"
	inTables := []string{strategy, strategy + "    storage: postgres\n    max_attempts: 1\n"}
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Edit(unchecked, inTables...))
	next := w.Deploy(dispatchertest.Edit(dispatchertest.Checked, inTables...))
	w.Advance()
	check := w.One(w.D)
	require.NotNil(t, check.Check)

	w.Probe.Put("raw", "2024-01-01", "cd")
	w.Poll()
	for range 2 {
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
	}
	dispatchertest.Execute(t.Context(), w.D, check)
	require.Equal(t, []string{"Canceled superseded"}, dispatchertest.Texts(t, w.Pool,
		`SELECT status || ' ' || reason FROM tasks WHERE id = '`+check.TaskID.String()+`'`))

	w.Settle()
	status, reason := w.Status(next.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Equal(t, []string{"cd,2"}, w.Read("checked_good")["2024-01-01"])
}

func TestNewChecksOnAnOutputOfAnEarlierVersionGate(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Serve(unchecked)
	w.Serve(dispatchertest.Edit(unchecked, "length(content) AS n", "1 AS n"))
	failed := w.Deploy(dispatchertest.Checked)
	require.Equal(t, deploy.SwapOnly, failed.Changes[1].Action)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "checks of checked/good fail on partition 2024-01-01")
	require.Equal(t, map[string][]string{"2024-01-01": {"toolong,1"}}, w.Read("checked_good"))
	runs := w.Runs()
	w.Serve(unchecked)
	require.Equal(t, runs, w.Runs(), "a version that served needs no check to serve again")
}

// What a candidate computed under fewer checks is held against those of the version that takes it over.
func TestChecksThatACandidateDidNotHave(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Deploy(unchecked, func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.Settle()

	failed := w.Deploy(dispatchertest.Checked, dispatchertest.Supersede)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "checks of checked/good fail on partition 2024-01-01, which was made before: short: 1 row",
		reason)
}

// A check that an old version had proves nothing about what came while another version served.
func TestAnOldDocumentReturnsToWhatItNeverChecked(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Checked)
	w.Serve(unchecked)
	w.Probe.Put("raw", "2024-01-02", "toolong")
	w.Poll()
	w.Settle()
	require.Len(t, w.Read("checked_good"), 2)
	w.Serve(unchecked + "description: the same again\n")

	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "partition 2024-01-02, which was made before: short: 1 row")
}

// What a candidate's check refused in a generation of an earlier version is nothing to that version, which has none.
func TestARollbackShowsWhatACandidatesCheckRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	first := w.Serve(unchecked)
	w.Serve(dispatchertest.Edit(unchecked, "length(content) AS n", "1 AS n"))
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Poll()
	w.Settle()

	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, _ := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)

	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "checked", builds.RollbackRequest{To: &first.Version.Number})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"toolong,7"}}, w.Read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"7"}}, w.Read("checked_count"))
}

// What a candidate's check refused is not lost to the same definition without the check: its swap shows it.
func TestTheSameDefinitionWithoutTheCheckLosesNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Probe.Put("raw", "2024-01-02", "toolong")
	w.Serve(dispatchertest.Edit(unchecked, "length(content) AS n", "1 AS n"))
	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, _ := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)

	w.Serve(unchecked)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}, "2024-01-02": {"toolong,7"}}, w.Read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"9"}}, w.Read("checked_count"))
}

// A parked version without the check shares the generation. What the check refused stays hidden while its version
// serves.
func TestAParkedVersionShowsNothingThatTheServingCheckRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-02", "cd")
	w.Serve(dispatchertest.Checked)
	w.Probe.Put("raw", "2024-01-02", "toolong")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"cd,2"}, w.Read("checked_good")["2024-01-02"])

	off := false
	parked := w.Deploy(unchecked, func(r *registry.DeployRequest) { r.Activate = &off })
	w.Settle()
	status, reason := w.Status(parked.Version.ID)
	require.Equal(t, registry.Ready, status, reason)
	require.Equal(t, []string{"cd,2"}, w.Read("checked_good")["2024-01-02"], "the check serves")
}

// A check looks at what is there also after the input that it was made from was purged.
func TestWhatWasMadeOfPurgedInputsIsChecked(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Serve(unchecked)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "checked/raw/0", upkeep.PurgeRequest{Reason: "erasure request 17",
		From: "2024-01-01", To: "2024-01-01", BreakWindow: true}, time.Now())
	require.NoError(t, err)

	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "checks of checked/good fail on partition 2024-01-01, which was made before: short: 1 row",
		reason)
}

// A version is told of its own checks alone, although a revision keeps what those of other versions found.
func TestOnlyChecksOfTheVersionAreNamed(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Serve(dispatchertest.Edit(dispatchertest.Checked, "length(content) AS n", "1 AS n"))
	two := dispatchertest.Edit(dispatchertest.Checked, "    checks:\n",
		"    checks:\n      - { name: tiny, sql: \"SELECT * FROM output WHERE n > 1\" }\n")
	first := w.Deploy(two)
	w.Settle()
	_, reason := w.Status(first.Version.ID)
	require.Equal(t, "checks of checked/good failed on partition 2024-01-01: short: 1 row; tiny: 1 row", reason)

	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "checks of checked/good failed on partition 2024-01-01: short: 1 row", reason)
	found, err := w.D.Registry.Dataset(t.Context(), w.Caller, "checked_good")
	require.NoError(t, err)
	require.Len(t, found.Withheld, 1)
	require.Equal(t, "short: 1 row", found.Withheld[0].Why)

	w.Serve(unchecked)
	found, err = w.D.Registry.Dataset(t.Context(), w.Caller, "checked_good")
	require.NoError(t, err)
	require.Empty(t, found.Withheld)
	require.Empty(t, found.Checks)
}

// What only a dropped check refused is served from the swap on, and consumers follow. What a changed check may pass is
// checked again.
func TestWhatADroppedCheckRefusedIsServed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		after       string
		first, last []string
	}{
		"dropped": {unchecked, []string{"toolong,7"}, []string{"toolong,7"}},
		"milder": {dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 9"), []string{"cd,2"},
			[]string{"toolong,7"}},
		"stricter": {dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 2"), []string{"cd,2"},
			[]string{"cd,2"}},
		"renamed": {dispatchertest.Edit(dispatchertest.Checked, "name: short", "name: brief"), []string{"cd,2"},
			[]string{"cd,2"}},
		"only warns": {dispatchertest.Edit(dispatchertest.Checked, "{ name: short,",
			"{ name: short, severity: warn,"), []string{"toolong,7"}, []string{"toolong,7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-02", "cd")
			w.Serve(dispatchertest.Checked)
			w.Probe.Put("raw", "2024-01-02", "toolong")
			w.Poll()
			w.Settle()
			require.Equal(t, []string{"cd,2"}, w.Read("checked_good")["2024-01-02"])

			next := w.Deploy(test.after)
			serves := func() bool {
				w.Advance()
				status, _ := w.Status(next.Version.ID)
				return status == registry.Active
			}
			for !serves() {
				require.NotZero(t, w.Work(), "the version waits for its checks")
			}
			require.Equal(t, test.first, w.Read("checked_good")["2024-01-02"])
			w.Settle()
			require.Equal(t, test.last, w.Read("checked_good")["2024-01-02"])
			require.Equal(t, test.last[0][len(test.last[0])-1:], w.Read("checked_count")["all"][0])
		})
	}
}

// TestAPersonAcceptsWhatANewCheckRefuses lets a version serve whose new check fails on a partition that readers see.
func TestAPersonAcceptsWhatANewCheckRefuses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Probe.Put("raw", "2024-01-02", "toolong")
	w.Serve(unchecked)
	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, _ := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)

	ask := control.DecideRequest{Partition: "2024-01-02", Version: "candidate", Reason: "long letters are fine"}
	_, err := w.D.Control.Reject(t.Context(), w.Caller, "checked_good", ask)
	require.ErrorContains(t, err, "readers see revision 1")
	decided, err := w.D.Control.Accept(t.Context(), w.Caller, "checked_good", ask)
	require.NoError(t, err)
	require.Equal(t, []any{"Published", int64(1), "short"}, []any{decided.State, decided.Revision, decided.Why})
	_, err = w.D.Control.Accept(t.Context(), w.Caller, "checked_good", ask)
	require.ErrorContains(t, err, "no check of the version on its way refuses it")

	w.Serve(dispatchertest.Checked)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}, "2024-01-02": {"toolong,7"}}, w.Read("checked_good"))
	w.Check()
}

// A failed version is over once what serves is deployed again, with its dead tasks. Until then both are shown.
func TestDeployingWhatServesGivesUpAFailedVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	failed := func() (version int, dead int64) {
		dags, err := w.D.Views.DAGs(t.Context(), w.Caller, "", 10)
		require.NoError(t, err)
		if dags[0].Failed != nil {
			version = dags[0].Failed.Number
		}
		return version, dags[0].Tasks.Dead
	}

	w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "SELECT upper(content)", "SELECT error(content)"))
	w.Settle()
	version, dead := failed()
	require.Equal(t, 2, version)
	require.Positive(t, dead)

	again := w.Deploy(dispatchertest.Letters)
	require.Equal(t, registry.Active, again.Version.Status)
	w.Settle()
	version, dead = failed()
	require.Zero(t, version)
	require.Zero(t, dead)
	require.Zero(t, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	w.Check()
}

// The dead tasks of a first version that failed are counted, though nothing serves.
func TestDeadTasksOfAFirstVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "SELECT upper(content)", "SELECT error(content)"))
	w.Settle()
	dags, err := w.D.Views.DAGs(t.Context(), w.Caller, "", 10)
	require.NoError(t, err)
	require.NotNil(t, dags[0].Failed)
	require.Positive(t, dags[0].Tasks.Dead)
}
