package why_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

const busy = `
name: busy
jobs:
  - name: NAME
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { list: NAME }
`

const asked = `
name: asked
jobs:
  - name: note
    operator: hook
    source: { kind: manual }
    outputs: 0
`

// busyWorld has tasks open in every state that there is.
func busyWorld(t *testing.T) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	w.Serve(dispatchertest.Edit(dispatchertest.Limited, "MAX", "1", "list: raw", "list: many"))
	w.Serve(dispatchertest.Checked)
	w.Serve(asked)
	for _, name := range []string{"failing", "doomed", "paused", "ending", "lost", "alone"} {
		w.Serve(dispatchertest.Edit(busy, "NAME", name, "name: busy", "name: "+name))
	}

	// held_back: a build that is almost done lets the live version's tasks wait.
	w.Change("b")
	w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: edited"))
	var builds []registry.Build
	require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		builds, err = deploy.Builds(ctx, tx)
		return err
	}))
	require.Len(t, builds, 1)
	require.NoError(t, w.D.Builds.HoldLive(t.Context(), builds[0], time.Now()))

	// checks: a held revision whose check is ready.
	for _, task := range w.Claim(w.D) {
		w.Unchecked(task)
	}

	// The remaining reasons, each from a unit of its own list.
	for _, name := range []string{"failing", "doomed", "paused", "ending", "lost"} {
		w.Probe.Put(name, "k", "a")
	}
	w.Exec(`UPDATE sources SET next_fire_at = now() WHERE dag_name IN ('failing', 'doomed', 'paused', 'ending', 'lost')`)
	w.Fire()
	w.Pause("paused", "")
	for _, task := range w.Claim(w.D) {
		switch task.Job.Name {
		case "failing":
			require.NoError(t, w.D.Fail(t.Context(), task, tasks.ReasonError, errors.New("unlucky"), true, time.Now()))
		case "doomed":
			require.NoError(t, w.D.Fail(t.Context(), task, tasks.ReasonError, errors.New("hopeless"), false,
				time.Now()))
		case "ending":
			_, err := w.D.Control.Cancel(t.Context(), w.Caller, task.TaskID)
			require.NoError(t, err)
		case "lost":
			w.Exec(`UPDATE leases SET expires_at = now() - interval '1 s' WHERE task_id = $1`, task.TaskID)
		}
	}

	// limit with its holders; running; sibling.
	for _, key := range []string{"a", "b", "c"} {
		w.Probe.Put("many", key, "a")
	}
	w.Probe.Put("alone", "k", "a")
	w.Exec(`UPDATE sources SET next_fire_at = now() WHERE dag_name IN ('limited', 'alone')`)
	w.Fire()
	for _, task := range w.Claim(w.D) {
		require.Contains(t, []string{"raw", "alone"}, task.Job.Name)
		// long enough for any machine
		w.Exec(`UPDATE leases SET expires_at = now() + interval '1 hour', heartbeat_at = now() + interval '1 hour'
			WHERE task_id = $1`, task.TaskID)
	}
	w.Probe.Put("alone", "k", "b")
	w.Exec(`UPDATE sources SET next_fire_at = now() WHERE dag_name = 'alone'`)
	w.Fire()

	// run_at, and queued.
	far := dispatchertest.Later(time.Hour)
	_, err := w.D.Enqueue(t.Context(), w.Caller, "asked", "note", []dispatcher.EnqueueItem{{RunAt: &far}, {}, {}})
	require.NoError(t, err)

	w.Check()
	return w
}

// Every open task has a reason, in every state and for every caller.
func TestEveryOpenTaskHasAReason(t *testing.T) {
	t.Parallel()
	w := busyWorld(t)
	w.Exec(`UPDATE workers SET last_heartbeat = now() + interval '1 h'`) // none is silent, however long this takes
	reader := w.Caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	open := dispatchertest.Texts(t, w.Pool, `SELECT task_id::text FROM ready UNION ALL SELECT task_id::text
		FROM waiting UNION ALL SELECT task_id::text FROM leases`)
	found := map[why.Code]int{}
	for _, caller := range []authz.Caller{w.Caller, reader} {
		clear(found)
		for _, id := range open {
			w_ := w.WhyTask(caller, uuid.MustParse(id))
			require.NotEmpty(t, w_.Reasons, "%s of %s/%s", id, w_.DAG, w_.Job)
			require.NotEmpty(t, w_.State)
			found[w_.Reasons[0].Code]++
			every(w_.Reasons, func(r why.Reason) {
				require.Contains(t, why.Codes, r.Code)
				require.NotEmpty(t, r.Text, r.Code)
				if r.Hidden {
					require.NotContains(t, r.Text, "hopeless")
				}
			})
		}
		codes := slices.Sorted(maps.Keys(found))
		require.Equal(t, []why.Code{why.WhyBackoff, why.WhyCanceling, why.WhyDead, why.WhyHeldBack, why.WhyLeaseLost,
			why.WhyLimit, why.WhyPaused, why.WhyQueued, why.WhyRunAt, why.WhyRunning, why.WhySibling}, codes)
	}
	// No worker serves the runtime of the ready tasks.
	w.Exec(`UPDATE workers SET last_heartbeat = now() - interval '1 h'`)
	for _, id := range dispatchertest.Texts(t, w.Pool, `SELECT task_id::text FROM ready`) {
		require.Equal(t, []string{"queued", "queued/no_worker"},
			dispatchertest.CodesIn(w.WhyTask(w.Caller, uuid.MustParse(id)).Reasons)[:2])
	}
}

// every visits each reason of a tree.
func every(reasons []why.Reason, f func(why.Reason)) {
	for _, r := range reasons {
		f(r)
		every(r.Because, f)
	}
}

func TestWhyATaskWaits(t *testing.T) {
	t.Parallel()
	w := busyWorld(t)
	of := func(waiting string) why.Why {
		t.Helper()
		var id uuid.UUID
		w.Row(`SELECT task_id FROM waiting WHERE reason = $1 ORDER BY task_id DESC LIMIT 1`, waiting)(&id)
		return w.WhyTask(w.Caller, id)
	}
	limit := of("limit").Reasons[0]
	require.Equal(t, "job:limited/raw", limit.Limit)
	require.Equal(t, 1, limit.Held)
	require.Equal(t, 1, limit.Max)
	require.Equal(t, 1, limit.Count, "one more waits before it")
	require.Equal(t, []string{"limit", "limit/running"}, dispatchertest.CodesIn([]why.Reason{limit}))
	require.Equal(t, "one", limit.Because[0].Worker)

	sibling := of("sibling").Reasons[0]
	require.Equal(t, []string{"sibling", "sibling/running"}, dispatchertest.CodesIn([]why.Reason{sibling}))
	require.NotNil(t, sibling.Because[0].Task)

	backoff := of("backoff").Reasons[0]
	require.True(t, backoff.Until.After(time.Now()))
	require.Equal(t, "unlucky", backoff.Error)

	dead := of("dead").Reasons[0]
	require.Equal(t, "doomed/doomed k: it failed 1 time and is out of attempts: retry or skip it: hopeless", dead.Text)

	paused := of("paused").Reasons[0]
	require.Equal(t, "dev", paused.Actor)
	require.Equal(t, "a reason", paused.Detail)
	require.Contains(t, paused.Text, "paused/paused k: it is paused by dev since ")

	// Ready tasks have an order.
	var first, second uuid.UUID
	w.Row(`SELECT min(r.task_id::text)::uuid, max(r.task_id::text)::uuid FROM ready r JOIN tasks t ON t.id = r.task_id
		AND t.kind = 'manual'`)(&first, &second)
	require.Equal(t, w.WhyTask(w.Caller, first).Reasons[0].Count+1, w.WhyTask(w.Caller, second).Reasons[0].Count)

	_, err := w.D.Why.TaskWhy(t.Context(), w.Caller, uuid.New(), time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.D.Why.TaskWhy(t.Context(), w.Org("other").Caller, first, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

const joined = `
name: joined
jobs:
  - name: left
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: left }
  - name: right
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: right }
  - name: both
    operator: hook
    inputs: [{ from: { job: left } }, { from: { job: right } }]
    execution_strategy: PerPartition
    config: { tag: b }
  - name: last
    operator: hook
    inputs: [{ from: { job: both } }]
    execution_strategy: PerPartition
    config: { tag: l }
publish:
  joined_last: { from: { job: last } }
  joined_left: { from: { job: left } }
`

// The tree goes upstream, from what is missing to the source that has not brought it.
func TestWhyNotFollowsMissingInputs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("left", dispatchertest.FirstDay, "a")
	w.Serve(joined)
	why := w.WhyNot("joined_last", dispatchertest.FirstDay)
	require.Equal(t, []string{
		"waits_for_inputs", "waits_for_inputs/input_missing", "waits_for_inputs/input_missing/waits_for_inputs",
		"waits_for_inputs/input_missing/waits_for_inputs/input_met",
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing",
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing/source_lacks",
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing/source_waits"},
		dispatchertest.CodesIn(why.Reasons))
	both := why.Reasons[0].Because[0].Because[0]
	require.Equal(t, "all", both.Trigger)
	require.Equal(t, "joined_left is there", both.Because[0].Text)
	require.Equal(t, "joined/right", both.Because[1].Job)
	require.Equal(t, dispatchertest.FirstDay, both.Because[1].Partition)
	require.Equal(t, "joined/right/0 lacks "+dispatchertest.FirstDay, both.Because[1].Text)
	require.NotNil(t, both.Because[1].Because[1].Until)
	job := w.WhyJob("joined", "last")
	require.Equal(t, []string{"no_input", "no_input/input_missing"}, dispatchertest.CodesIn(job.Reasons)[:2])
	require.Equal(t, dispatchertest.CodesIn(why.Reasons[0].Because[0].Because),
		dispatchertest.CodesIn(job.Reasons[0].Because[0].Because))

	// A reader sees only published datasets, so jobs upstream are shown without names.
	reader := w.Caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	seen, err := w.D.Why.PartitionWhyNot(t.Context(), reader, "joined_last", dispatchertest.FirstDay, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"waits_for_inputs", "waits_for_inputs/input_missing"},
		dispatchertest.CodesIn(seen.Reasons))
	require.Equal(t, "an input that you may not see has nothing that it needs", seen.Reasons[0].Because[0].Text)
	_, err = w.D.Why.PartitionWhyNot(t.Context(), reader, "joined/both/0", dispatchertest.FirstDay, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.D.Why.PartitionWhyNot(t.Context(), w.Caller, "joined_last", "not a day", time.Now())
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	// The data arrives, and each step on its way has an explanation.
	w.Probe.Put("right", dispatchertest.FirstDay, "b")
	w.Poll()
	require.Contains(t, dispatchertest.CodesIn(w.WhyNot("joined_last", dispatchertest.FirstDay).Reasons),
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing/queued")
	for _, task := range w.Claim(w.D) {
		dispatchertest.Execute(t.Context(), w.D, task)
	}
	why = w.WhyNot("joined_last", dispatchertest.FirstDay)
	require.Contains(t, dispatchertest.CodesIn(why.Reasons), "waits_for_inputs/input_missing/undecided",
		"it is not routed yet")
	w.Route()
	require.Contains(t, dispatchertest.CodesIn(w.WhyNot("joined_last", dispatchertest.FirstDay).Reasons),
		"waits_for_inputs/input_missing/queued")
	w.Settle()
	require.Equal(t, []string{"published", "up_to_date"},
		dispatchertest.CodesIn(w.WhyNot("joined_last", dispatchertest.FirstDay).Reasons))
	require.Equal(t, []string{"up_to_date"}, dispatchertest.CodesIn(w.WhyJob("joined", "last").Reasons))
	require.Equal(t, []string{"published", "source_waits"},
		dispatchertest.CodesIn(w.WhyNot("joined_left", dispatchertest.FirstDay).Reasons), "what a source has brought")
}

// Explanations agree with the verdict: for any inputs, a target is explained by the reason that the verdict gives.
func TestWhyNotOfPartitionsThatSomebodyDecidedOver(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "ab")
	w.Serve(dispatchertest.Checked)
	// Held, then rejected.
	w.Probe.Put("raw", dispatchertest.FirstDay, "toolong")
	w.Poll()
	for range 2 { // raw, good
		for _, task := range w.Claim(w.D) {
			w.Unchecked(task)
		}
		w.Route()
	}
	why := w.WhyNot("checked_good", dispatchertest.FirstDay)
	require.Equal(t, []string{"published", "checks_pending", "checks_pending/queued"},
		dispatchertest.CodesIn(why.Reasons))
	w.Settle()
	why = w.WhyNot("checked_good", dispatchertest.FirstDay)
	require.Equal(t, []string{"published", "rejected"}, dispatchertest.CodesIn(why.Reasons))
	require.Equal(t, "short: 1 row", why.Reasons[1].Error)
	all, err := w.D.Why.DatasetWhy(t.Context(), w.Caller, "checked_good", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"rejected"}, dispatchertest.CodesIn(all.Reasons))
	reader := w.Caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	all, err = w.D.Why.DatasetWhy(t.Context(), reader, "checked_good", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"rejected"}, dispatchertest.CodesIn(all.Reasons))
	require.Empty(t, all.Reasons[0].Error)

	// Skipped.
	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("hopeless"))
	})
	w.Probe.Put("raw", dispatchertest.FirstDay, "ab")
	deployed := w.Deploy(dispatchertest.Pair)
	w.Settle()
	status, _ := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	why = w.WhyJob("pair", "made")
	require.Equal(t, []string{"no_live_version", "no_live_version/build_failed", "dead"},
		dispatchertest.CodesIn(why.Reasons))
	require.Contains(t, why.Reasons[0].Because[0].Text, "v1 failed: task ")
	_, err = w.D.Control.Do(t.Context(), w.Caller, *why.Reasons[1].Task, control.Act{Verb: control.VerbSkip,
		Reason: "lost"}, "")
	require.NoError(t, err)
	skipped := w.WhyNot("pair/made/0", dispatchertest.FirstDay)
	require.Equal(t, []string{"no_live_version", "no_live_version/build_failed", "skipped"},
		dispatchertest.CodesIn(skipped.Reasons))
	require.Equal(t, "pair/made "+dispatchertest.FirstDay+": somebody skipped it: lost", skipped.Reasons[1].Text)
}

// During the first build, a dataset is known by the name that it is to have, to those who work on its DAG.
func TestWhyADatasetOfAFirstBuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Deploy(dispatchertest.Pair)
	found, err := w.D.Why.DatasetWhy(t.Context(), w.Caller, "pair_made", time.Now())
	require.NoError(t, err)
	require.Equal(t, "pair_made", found.Dataset)
	require.Equal(t, why.Code("no_live_version"), found.Reasons[0].Code)
	require.Equal(t, "pair_made", w.WhyNot("pair_made", dispatchertest.FirstDay).Dataset)

	reader := w.Caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	_, hidden := w.D.Why.DatasetWhy(t.Context(), reader, "pair_made", time.Now())
	require.True(t, fault.Is(hidden, fault.NotFound), "%v", hidden)
	_, missing := w.D.Why.DatasetWhy(t.Context(), w.Caller, "pair_none", time.Now())
	require.Equal(t, strings.ReplaceAll(missing.Error(), "pair_none", "pair_made"), hidden.Error())
	w.Settle()
}

func TestWhyADatasetIsLate(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("left", dispatchertest.FirstDay, "a")
	w.Probe.Put("right", dispatchertest.FirstDay, "b")
	w.Serve(dispatchertest.Edit(joined, "from: { job: last } }", "from: { job: last }, due: { within: 1s } }"))
	why, err := w.D.Why.DatasetWhy(t.Context(), w.Caller, "joined_last", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"late", "late/waits_for_inputs", "late/waits_for_inputs/input_missing"},
		dispatchertest.CodesIn(why.Reasons)[:3])
	require.Contains(t, dispatchertest.CodesIn(why.Reasons),
		"late/waits_for_inputs/input_missing/waits_for_inputs/input_missing/source_lacks")
	require.Equal(t, "up_to_date", string(why.Reasons[len(why.Reasons)-1].Code))
	require.NotEmpty(t, why.Reasons[0].Partition)
}

func TestWhyABuildDoesNotServe(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	stay := false
	w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: edited"),
		func(r *registry.DeployRequest) { r.Activate = &stay })
	require.Equal(t, []string{"gate", "gate/gate_stale", "up_to_date"},
		dispatchertest.CodesIn(w.WhyJob("pair", "made").Reasons))
	w.Advance()
	why := w.WhyJob("pair", "made")
	require.Equal(t, []string{"gate", "gate/gate_open", "gate/gate_open/queued", "up_to_date"},
		dispatchertest.CodesIn(why.Reasons))
	require.Equal(t, "v2 is not ready", why.Reasons[0].Text)
	w.Settle()
	require.Equal(t, []string{"awaiting_promotion", "up_to_date"},
		dispatchertest.CodesIn(w.WhyJob("pair", "made").Reasons))
	_, err := w.D.Why.JobWhy(t.Context(), w.Caller, "pair", "nothing", time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.D.Why.JobWhy(t.Context(), w.Caller, "nothing", "nothing", time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

// A job that acts outside says what it leaves out.
func TestWhatActsOutsideNamesWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(`
name: mail
jobs:
  - name: load
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: { tag: l }
  - name: sent
    operator: act
    inputs: [{ from: { job: load } }]
    execution_strategy: PerPartition
    outputs: 0
    config: { tag: s }
`)
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a"})
	w.Settle()
	why := w.WhyJob("mail", "sent")
	require.Equal(t, []string{"up_to_date"}, dispatchertest.CodesIn(why.Reasons))
	require.Equal(t, "dagctl invalidate DATASET --partition KEY", why.Reasons[0].Command)
	require.Contains(t, why.Reasons[0].Text, "on what they had before only when `dagctl invalidate")
}

// What is up to date with its inputs says so, and names the dead task that would have brought them more.
func TestUpToDateNamesDeadInputs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(`
name: mail
jobs:
  - name: load
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: { tag: l }
  - name: sorted
    operator: hook
    inputs: [{ from: { job: load } }]
    execution_strategy: PerPartition
    config: { tag: s }
publish:
  sorted: { from: { job: sorted } }
`)
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a"}, dispatcher.EnqueueItem{Partition: "b"})
	w.Settle()
	require.Equal(t, []string{"up_to_date"}, dispatchertest.CodesIn(w.WhyJob("mail", "sorted").Reasons))

	w.Probe.On("load", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("no letters"))
	})
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a"})
	w.Settle()
	dead := []string{"up_to_date", "up_to_date/dead"}
	require.Equal(t, dead, dispatchertest.CodesIn(w.WhyJob("mail", "sorted").Reasons))
	require.Equal(t, append([]string{"published"}, dead...), dispatchertest.CodesIn(w.WhyNot("sorted", "a").Reasons))
	require.Equal(t, []string{"published", "up_to_date"},
		dispatchertest.CodesIn(w.WhyNot("sorted", "b").Reasons), "of another partition")
}
