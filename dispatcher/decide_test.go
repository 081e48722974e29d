package dispatcher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

const hooks = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: m }
publish:
  letters_made: { from: { job: made } }
`

// failsFor makes the runs of a job fail for good for one partition.
func (w *world) failsFor(job, partition string) {
	w.probe.on(job, func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		if t.Partition.Key == partition {
			return operators.Result{}, operators.Permanent(errors.New("a row that cannot be"))
		}
		return operators.Result{}, w.probe.write(ctx, t, "made of "+t.Partition.Key)
	})
}

func (w *world) taskOf(job, partition string) (id uuid.UUID) {
	w.t.Helper()
	w.row(`SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.partitions[1] = $2 AND t.kind <> 'check' ORDER BY t.id DESC LIMIT 1`, job, partition)(&id)
	return id
}

func TestABuildGoesOnWithoutASkippedPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.failsFor("made", "2024-01-02")
	deployed := w.deploy(hooks)
	w.settle()
	status, reason := w.status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "a row that cannot be")

	done, dead := w.taskOf("made", "2024-01-01"), w.taskOf("made", "2024-01-02")
	_, err := w.d.Skip(t.Context(), w.caller, done, "no")
	require.ErrorContains(t, err, "is Completed: only a failed task can be skipped")
	task, err := w.d.Skip(t.Context(), w.caller, dead, "the file is lost")
	require.NoError(t, err)
	require.Equal(t, []string{"Canceled", "skipped", "skipped: the file is lost"}, []string{task.Status, task.Reason, task.Error})
	_, err = w.d.Skip(t.Context(), w.caller, dead, "again")
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	w.check()

	plan, err := w.d.Plan(t.Context(), w.caller, "letters", registry.DeployRequest{YAML: hooks})
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, []int64{plan.Changes[0].Skipped, plan.Changes[1].Skipped})
	runs := w.attempts("made")
	again := w.serve(hooks)
	require.Equal(t, deployed.Version.ID, again.Version.ID)
	require.Equal(t, map[string][]string{"2024-01-01": {"made of 2024-01-01"}}, w.read("letters_made"))
	require.Equal(t, runs, w.attempts("made"), "what was skipped is not tried again")
	require.Equal(t, 1, w.count(`SELECT FROM audit_log WHERE action = 'task.skip' AND detail ->> 'reason' = 'the file is lost'`))

	// Neither does the sweep want it again; new input does.
	require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
	w.settle()
	require.Equal(t, runs, w.attempts("made"))
	w.failsFor("made", "none")
	w.probe.put("raw", "2024-01-02", "c")
	w.poll()
	w.settle()
	require.Equal(t, []string{"made of 2024-01-02"}, w.read("letters_made")["2024-01-02"])
}

// A skip in the middle of a build lets it become Ready without being deployed again.
func TestSkipDuringABuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.failsFor("made", "2024-01-02")
	deployed := w.deploy(hooks)
	for range 4 { // up to where its task is dead, and the build not looked at
		w.route()
		if w.count(`SELECT FROM waiting WHERE reason = 'dead'`) > 0 {
			break
		}
		w.advance()
		w.work()
	}
	_, err := w.d.Skip(t.Context(), w.caller, w.taskOf("made", "2024-01-02"), "lost")
	require.NoError(t, err)
	w.settle()
	status, reason := w.status(deployed.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	detail, err := w.d.DAG(t.Context(), w.caller, "letters")
	require.NoError(t, err)
	require.Equal(t, int64(1), detail.Tasks.Skipped)
}

func TestAPersonAcceptsWhatChecksRejected(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"parquet":  checked,
		"postgres": edit(checked, "    checks:\n", "    storage: { postgres: {} }\n    checks:\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", "2024-01-01", "ab")
			w.serve(yaml)
			w.probe.put("raw", "2024-01-01", "toolong")
			w.poll()
			w.settle()
			require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.read("checked_good"))
			dataset, err := w.d.Registry.Dataset(t.Context(), w.caller, "checked_good")
			require.NoError(t, err)
			require.Len(t, dataset.Withheld, 1)
			require.Equal(t, []any{"2024-01-01", int64(2), "Rejected", false, "short: 1 rows"}, []any{dataset.Withheld[0].Partition,
				dataset.Withheld[0].Revision, dataset.Withheld[0].State, dataset.Withheld[0].Candidate, dataset.Withheld[0].Why})

			ask := DecideRequest{Partition: "2024-01-01", Reason: "looked at it"}
			_, err = w.d.Accept(t.Context(), w.caller, "checked_count", ask)
			require.True(t, fault.Is(err, fault.NotFound), "%v", err)
			_, err = w.d.Accept(t.Context(), w.caller, "checked_count", DecideRequest{Partition: "all", Reason: "why not"})
			require.ErrorContains(t, err, "is Published: only a held or rejected one can be decided over")
			_, err = w.d.Reject(t.Context(), w.caller, "checked_good", ask)
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
			decided, err := w.d.Accept(t.Context(), w.caller, "checked_good", ask)
			require.NoError(t, err)
			require.Equal(t, []any{"Published", int64(2), "short: 1 rows"}, []any{decided.State, decided.Revision, decided.Why})
			w.settle()
			require.Equal(t, map[string][]string{"2024-01-01": {"toolong,7"}}, w.read("checked_good"))
			require.Equal(t, map[string][]string{"all": {"7"}}, w.read("checked_count"), "consumers are told")
			require.Equal(t, 1, w.count(`SELECT FROM audit_log WHERE action = 'dataset.accept' AND object = 'checked_good 2024-01-01'
				AND detail ->> 'reason' = 'looked at it' AND detail ->> 'failed_checks' = 'short: 1 rows'`))
			_, err = w.d.Accept(t.Context(), w.caller, "checked_good", ask)
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		})
	}
}

// What a build's checks rejected can be accepted too; the version is then Ready without computing anything.
func TestAPersonAcceptsWhatFailedABuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "toolong")
	failed := w.deploy(checked)
	w.settle()
	status, _ := w.status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	_, err := w.d.Accept(t.Context(), w.caller, "checked_good", DecideRequest{Partition: "2024-01-01", Reason: "fine", Version: registry.Live})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.d.Accept(t.Context(), w.caller, "checked_good", DecideRequest{Partition: "2024-01-01", Reason: "fine", Version: registry.Candidate})
	require.NoError(t, err)
	runs := w.attempts("good")
	again := w.serve(checked)
	require.Equal(t, failed.Version.ID, again.Version.ID)
	require.Equal(t, runs, w.attempts("good"))
	require.Equal(t, map[string][]string{"all": {"7"}}, w.read("checked_count"))
}

// A revision whose check never ended is decided by a person: the check is given up with it.
func TestAPersonDecidesOverAHeldRevision(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"accept", "reject"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", "2024-01-01", "ab")
			w.serve(checked)
			w.probe.put("raw", "2024-01-01", "abc")
			w.poll()
			w.d.execute(t.Context(), w.one(w.d)) // raw
			w.route()
			w.d.execute(t.Context(), w.one(w.d)) // good; its check is queued
			ask := DecideRequest{Partition: "2024-01-01", Reason: "in a hurry"}
			act, want := w.d.Accept, []string{"abc,3"}
			if verb == "reject" {
				act, want = w.d.Reject, []string{"ab,2"}
			}
			_, err := act(t.Context(), w.caller, "checked_good", ask)
			require.NoError(t, err)
			w.check()
			require.Equal(t, 1, w.count(`SELECT FROM tasks WHERE kind = 'check' AND status = 'Canceled' AND reason = 'skipped'`))
			w.settle()
			require.Equal(t, want, w.read("checked_good")["2024-01-01"])
		})
	}
}

// What has been removed, or is about to be, cannot be let through: it would take the place of what readers have.
func TestWhatIsPurgedIsNotAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "ab")
	w.serve(checked)
	w.probe.put("raw", "2024-01-01", "toolong")
	w.poll()
	w.settle()
	w.exec(`UPDATE partition_versions SET purged_at = now() WHERE state = 'Rejected'`)
	_, err := w.d.Accept(t.Context(), w.caller, "checked_good", DecideRequest{Partition: "2024-01-01", Reason: "looked at it"})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.read("checked_good"))
}
