package control_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// failsFor makes a job fail for good for one partition.
func failsFor(w *dispatchertest.World, job, partition string) {
	w.Probe.On(job, func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		if t.Partition.Key == partition {
			return operators.Result{}, operators.Permanent(errors.New("a row that cannot be"))
		}
		return operators.Result{}, w.Probe.Write(ctx, t, "made of "+t.Partition.Key)
	})
}

func TestABuildGoesOnWithoutASkippedPartition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	failsFor(w, "made", "2024-01-02")
	deployed := w.Deploy(dispatchertest.Upkept)
	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "a row that cannot be")

	done, dead := w.TaskOf("made", "2024-01-01"), w.TaskOf("made", "2024-01-02")
	_, err := w.D.Control.Skip(t.Context(), w.Caller, done, "no")
	require.ErrorContains(t, err, "is Completed: only a failed task can be skipped")
	task, err := w.D.Control.Skip(t.Context(), w.Caller, dead, "the file is lost")
	require.NoError(t, err)
	require.Equal(t, []string{"Canceled", "skipped", "skipped: the file is lost"}, []string{task.Status, task.Reason,
		task.Error})
	_, err = w.D.Control.Skip(t.Context(), w.Caller, dead, "again")
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	w.Check()

	plan, err := w.D.Views.Plan(t.Context(), w.Caller, "letters", registry.DeployRequest{YAML: dispatchertest.Upkept})
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, []int64{plan.Changes[0].Skipped, plan.Changes[1].Skipped})
	runs := w.Attempts("made")
	again := w.Serve(dispatchertest.Upkept)
	require.Equal(t, deployed.Version.ID, again.Version.ID)
	require.Equal(t, map[string][]string{"2024-01-01": {"made of 2024-01-01"}}, w.Read("letters_made"))
	require.Equal(t, runs, w.Attempts("made"), "what was skipped is not tried again")
	require.Equal(t, 1, w.Count(`SELECT FROM audit_log WHERE action = 'task.skip'
		AND detail ->> 'reason' = 'the file is lost'`))

	// The sweep does not create its task again; new input does.
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, runs, w.Attempts("made"))
	failsFor(w, "made", "none")
	w.Probe.Put("raw", "2024-01-02", "c")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"made of 2024-01-02"}, w.Read("letters_made")["2024-01-02"])
}

// Skipping a task of a build lets the build become Ready without another deploy.
func TestSkipDuringABuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	failsFor(w, "made", "2024-01-02")
	deployed := w.Deploy(dispatchertest.Upkept)
	for range 4 { // until its task is dead; the build has not noticed yet
		w.Route()
		if w.Count(`SELECT FROM waiting WHERE reason = 'dead'`) > 0 {
			break
		}
		w.Advance()
		w.Work()
	}
	_, err := w.D.Control.Skip(t.Context(), w.Caller, w.TaskOf("made", "2024-01-02"), "lost")
	require.NoError(t, err)
	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	detail, err := w.D.Views.DAG(t.Context(), w.Caller, "letters")
	require.NoError(t, err)
	require.Equal(t, int64(1), detail.Tasks.Skipped)
}

func TestAPersonAcceptsWhatChecksRejected(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"parquet": dispatchertest.Checked,
		"postgres": dispatchertest.Edit(dispatchertest.Checked, "    checks:\n",
			"    storage: { postgres: {} }\n    checks:\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "ab")
			w.Serve(yaml)
			w.Probe.Put("raw", "2024-01-01", "toolong")
			w.Poll()
			w.Settle()
			require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"))
			dataset, err := w.D.Registry.Dataset(t.Context(), w.Caller, "checked_good")
			require.NoError(t, err)
			require.Len(t, dataset.Withheld, 1)
			require.Equal(t, []any{"2024-01-01", int64(2), "Rejected", false, "short: 1 row"},
				[]any{dataset.Withheld[0].Partition,
					dataset.Withheld[0].Revision, dataset.Withheld[0].State, dataset.Withheld[0].Candidate,
					dataset.Withheld[0].Why})

			ask := control.DecideRequest{Partition: "2024-01-01", Reason: "looked at it"}
			_, err = w.D.Control.Accept(t.Context(), w.Caller, "checked_count", ask)
			require.True(t, fault.Is(err, fault.NotFound), "%v", err)
			_, err = w.D.Control.Accept(t.Context(), w.Caller, "checked_count", control.DecideRequest{Partition: "all",
				Reason: "why not"})
			require.ErrorContains(t, err, "is Published: only a held or rejected revision can be accepted or rejected")
			_, err = w.D.Control.Reject(t.Context(), w.Caller, "checked_good", ask)
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
			decided, err := w.D.Control.Accept(t.Context(), w.Caller, "checked_good", ask)
			require.NoError(t, err)
			require.Equal(t, []any{"Published", int64(2), "short: 1 row"}, []any{decided.State, decided.Revision,
				decided.Why})
			w.Settle()
			require.Equal(t, map[string][]string{"2024-01-01": {"toolong,7"}}, w.Read("checked_good"))
			require.Equal(t, map[string][]string{"all": {"7"}}, w.Read("checked_count"), "consumers are told")
			require.Equal(t, 1, w.Count(`SELECT FROM audit_log WHERE action = 'dataset.accept'
				AND object = 'checked_good 2024-01-01'
				AND detail ->> 'reason' = 'looked at it' AND detail ->> 'failed_checks' = 'short: 1 row'`))
			_, err = w.D.Control.Accept(t.Context(), w.Caller, "checked_good", ask)
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		})
	}
}

// A person can also accept what a build's checks rejected; the version then becomes Ready without computing anything.
func TestAPersonAcceptsWhatFailedABuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	failed := w.Deploy(dispatchertest.Checked)
	w.Settle()
	status, _ := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	_, err := w.D.Control.Accept(t.Context(), w.Caller, "checked_good", control.DecideRequest{Partition: "2024-01-01",
		Reason: "fine", Version: registry.Live})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.D.Control.Accept(t.Context(), w.Caller, "checked_good", control.DecideRequest{Partition: "2024-01-01",
		Reason: "fine", Version: registry.Candidate})
	require.NoError(t, err)
	runs := w.Attempts("good")
	again := w.Serve(dispatchertest.Checked)
	require.Equal(t, failed.Version.ID, again.Version.ID)
	require.Equal(t, runs, w.Attempts("good"))
	require.Equal(t, map[string][]string{"all": {"7"}}, w.Read("checked_count"))
}

// A person decides on a revision whose check never ended; the check is given up with that.
func TestAPersonDecidesOverAHeldRevision(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"accept", "reject"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "ab")
			w.Serve(dispatchertest.Checked)
			w.Probe.Put("raw", "2024-01-01", "abc")
			w.Poll()
			dispatchertest.Execute(t.Context(), w.D, w.One(w.D)) // raw
			w.Route()
			w.Unchecked(w.One(w.D)) // good; its check is queued
			ask := control.DecideRequest{Partition: "2024-01-01", Reason: "in a hurry"}
			act, want := w.D.Control.Accept, []string{"abc,3"}
			if verb == "reject" {
				act, want = w.D.Control.Reject, []string{"ab,2"}
			}
			_, err := act(t.Context(), w.Caller, "checked_good", ask)
			require.NoError(t, err)
			w.Check()
			require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE kind = 'check' AND status = 'Canceled'
				AND reason = 'skipped'`))
			w.Settle()
			require.Equal(t, want, w.Read("checked_good")["2024-01-01"])
		})
	}
}

// A revision that was removed or is about to be removed cannot be accepted: it would replace the data that readers
// see.
func TestWhatIsPurgedIsNotAccepted(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Checked)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Poll()
	w.Settle()
	w.Exec(`UPDATE partition_versions SET purged_at = now() WHERE state = 'Rejected'`)
	_, err := w.D.Control.Accept(t.Context(), w.Caller, "checked_good", control.DecideRequest{Partition: "2024-01-01",
		Reason: "looked at it"})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"))
}
