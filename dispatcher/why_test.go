package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// codesIn lists the codes of a tree, each as PARENT/CHILD.
func codesIn(reasons []Reason) (codes []string) {
	for _, r := range reasons {
		codes = append(codes, string(r.Code))
		for _, below := range codesIn(r.Because) {
			codes = append(codes, string(r.Code)+"/"+below)
		}
	}
	return codes
}

func (w *world) whyTask(caller authz.Caller, id uuid.UUID) Why {
	w.t.Helper()
	why, err := w.d.TaskWhy(w.t.Context(), caller, id, time.Now())
	require.NoError(w.t, err)
	return why
}

func (tn *tenant) whyNot(name, key string) Why {
	tn.w.t.Helper()
	why, err := tn.w.d.PartitionWhyNot(tn.w.t.Context(), tn.caller, name, key, time.Now())
	require.NoError(tn.w.t, err)
	return why
}

func (tn *tenant) whyJob(dag, job string) Why {
	tn.w.t.Helper()
	why, err := tn.w.d.JobWhy(tn.w.t.Context(), tn.caller, dag, job, time.Now())
	require.NoError(tn.w.t, err)
	return why
}

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
func busyWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(pair)
	w.serve(edit(limited, "MAX", "1", "list: raw", "list: many"))
	w.serve(checked)
	w.serve(asked)
	for _, name := range []string{"failing", "doomed", "paused", "ending", "lost", "alone"} {
		w.serve(edit(busy, "NAME", name, "name: busy", "name: "+name))
	}
	// held_back: a build that is close has what serves wait for it.
	w.change("b")
	w.deploy(edit(pair, "tag: m", "tag: edited"))
	var builds []registry.Build
	require.NoError(t, pg.InTx(t.Context(), w.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		builds, err = registry.Builds(ctx, tx)
		return err
	}))
	require.Len(t, builds, 1)
	require.NoError(t, w.d.holdLive(t.Context(), builds[0], time.Now()))
	// checks: a revision that is held, whose check is ready.
	for _, task := range w.claim(w.d) {
		w.d.execute(t.Context(), task)
	}
	// The others, each from a unit of its own list.
	for _, name := range []string{"failing", "doomed", "paused", "ending", "lost"} {
		w.probe.put(name, "k", "a")
	}
	w.exec(`UPDATE sources SET next_fire_at = now() WHERE dag_name IN ('failing', 'doomed', 'paused', 'ending', 'lost')`)
	w.fire()
	w.pause("paused", "")
	for _, task := range w.claim(w.d) {
		switch task.job.Name {
		case "failing":
			require.NoError(t, w.d.fail(t.Context(), task, reasonError, errors.New("unlucky"), true, time.Now()))
		case "doomed":
			require.NoError(t, w.d.fail(t.Context(), task, reasonError, errors.New("hopeless"), false, time.Now()))
		case "ending":
			_, err := w.d.Cancel(t.Context(), w.caller, task.TaskID)
			require.NoError(t, err)
		case "lost":
			w.exec(`UPDATE leases SET expires_at = now() - interval '1 s' WHERE task_id = $1`, task.TaskID)
		}
	}
	// limit, and what holds it; running and sibling.
	for _, key := range []string{"a", "b", "c"} {
		w.probe.put("many", key, "a")
	}
	w.probe.put("alone", "k", "a")
	w.exec(`UPDATE sources SET next_fire_at = now() WHERE dag_name IN ('limited', 'alone')`)
	w.fire()
	for _, task := range w.claim(w.d) {
		require.Contains(t, []string{"raw", "alone"}, task.job.Name)
		w.exec(`UPDATE leases SET expires_at = now() + interval '1 hour' WHERE task_id = $1`, task.TaskID) // however slow this machine
	}
	w.probe.put("alone", "k", "b")
	w.exec(`UPDATE sources SET next_fire_at = now() WHERE dag_name = 'alone'`)
	w.fire()
	// run_at, and queued.
	far := later(time.Hour)
	_, err := w.d.Enqueue(t.Context(), w.caller, "asked", "note", []EnqueueItem{{RunAt: &far}, {}, {}})
	require.NoError(t, err)
	w.check()
	return w
}

// Every open task has a reason, whatever state it is in and whoever asks.
func TestEveryOpenTaskHasAReason(t *testing.T) {
	t.Parallel()
	w := busyWorld(t)
	reader := w.caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	open := texts(t, w.pool, `SELECT task_id::text FROM ready UNION ALL SELECT task_id::text FROM waiting UNION ALL SELECT task_id::text FROM leases`)
	found := map[Code]int{}
	for _, caller := range []authz.Caller{w.caller, reader} {
		clear(found)
		for _, id := range open {
			why := w.whyTask(caller, uuid.MustParse(id))
			require.NotEmpty(t, why.Reasons, "%s of %s/%s", id, why.DAG, why.Job)
			require.NotEmpty(t, why.State)
			found[why.Reasons[0].Code]++
			every(why.Reasons, func(r Reason) {
				require.Contains(t, Codes, r.Code)
				require.NotEmpty(t, r.Text, r.Code)
				if r.Hidden {
					require.NotContains(t, r.Text, "hopeless")
				}
			})
		}
		codes := slices.Sorted(maps.Keys(found))
		require.Equal(t, []Code{whyBackoff, whyCanceling, whyDead, whyHeldBack, whyLeaseLost, whyLimit, whyPaused, whyQueued, whyRunAt, whyRunning, whySibling}, codes)
	}
	// Nobody is there to run what is ready.
	w.exec(`UPDATE workers SET last_heartbeat = now() - interval '1 h'`)
	for _, id := range texts(t, w.pool, `SELECT task_id::text FROM ready`) {
		require.Equal(t, []string{"queued", "queued/no_worker"}, codesIn(w.whyTask(w.caller, uuid.MustParse(id)).Reasons)[:2])
	}
}

// explained holds that every open task has a reason, and every partition of some datasets by key, whether it is there or not.
func (w *world) explained(datasets ...string) {
	w.t.Helper()
	for _, id := range texts(w.t, w.pool, `SELECT task_id::text FROM ready UNION ALL SELECT task_id::text FROM waiting UNION ALL SELECT task_id::text FROM leases`) {
		why := w.whyTask(w.caller, uuid.MustParse(id))
		require.NotEmpty(w.t, why.Reasons)
		require.NotContains(w.t, []Code{whyCompleted, whyFailed, whyCanceled, whySuperseded}, why.Reasons[0].Code)
	}
	for _, name := range datasets {
		for key := range keysOfHistory {
			require.NotEmpty(w.t, w.whyNot(name, fmt.Sprint("k", key)).Reasons)
		}
		_, err := w.d.DatasetWhy(w.t.Context(), w.caller, name, time.Now())
		require.NoError(w.t, err)
	}
}

// every visits each reason of a tree.
func every(reasons []Reason, f func(Reason)) {
	for _, r := range reasons {
		f(r)
		every(r.Because, f)
	}
}

func TestWhyATaskWaits(t *testing.T) {
	t.Parallel()
	w := busyWorld(t)
	of := func(waiting string) Why {
		t.Helper()
		var id uuid.UUID
		w.row(`SELECT task_id FROM waiting WHERE reason = $1 ORDER BY task_id DESC LIMIT 1`, waiting)(&id)
		return w.whyTask(w.caller, id)
	}
	limit := of("limit").Reasons[0]
	require.Equal(t, "job:limited/raw", limit.Limit)
	require.Equal(t, 1, limit.Held)
	require.Equal(t, 1, limit.Max)
	require.Equal(t, 1, limit.Count, "one more waits before it")
	require.Equal(t, []string{"limit", "limit/running"}, codesIn([]Reason{limit}))
	require.Equal(t, "one", limit.Because[0].Worker)

	sibling := of("sibling").Reasons[0]
	require.Equal(t, []string{"sibling", "sibling/running"}, codesIn([]Reason{sibling}))
	require.NotNil(t, sibling.Because[0].Task)

	backoff := of("backoff").Reasons[0]
	require.True(t, backoff.Until.After(time.Now()))
	require.Equal(t, "unlucky", backoff.Error)

	dead := of("dead").Reasons[0]
	require.Equal(t, "doomed/doomed k: it failed 1 time and is out of attempts: retry or skip it: hopeless", dead.Text)

	paused := of("paused").Reasons[0]
	require.Equal(t, "user:acme", paused.Actor)
	require.Equal(t, "a reason", paused.Detail)
	require.Contains(t, paused.Text, "paused/paused k: it is paused by user:acme since ")

	// Those that are ready have an order.
	var first, second uuid.UUID
	w.row(`SELECT min(r.task_id::text)::uuid, max(r.task_id::text)::uuid FROM ready r JOIN tasks t ON t.id = r.task_id AND t.kind = 'manual'`)(&first, &second)
	require.Equal(t, w.whyTask(w.caller, first).Reasons[0].Count+1, w.whyTask(w.caller, second).Reasons[0].Count)

	_, err := w.d.TaskWhy(t.Context(), w.caller, uuid.New(), time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.d.TaskWhy(t.Context(), w.org("other").caller, first, time.Now())
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
	w := newWorld(t)
	w.probe.put("left", firstDay, "a")
	w.serve(joined)
	why := w.whyNot("joined_last", firstDay)
	require.Equal(t, []string{
		"waits_for_inputs", "waits_for_inputs/input_missing", "waits_for_inputs/input_missing/waits_for_inputs",
		"waits_for_inputs/input_missing/waits_for_inputs/input_met",
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing",
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing/source_lacks",
		"waits_for_inputs/input_missing/waits_for_inputs/input_missing/source_waits"}, codesIn(why.Reasons))
	both := why.Reasons[0].Because[0].Because[0]
	require.Equal(t, "all", both.Trigger)
	require.Equal(t, "joined_left is there", both.Because[0].Text)
	require.Equal(t, "joined/right", both.Because[1].Job)
	require.Equal(t, firstDay, both.Because[1].Partition)
	require.Equal(t, "joined/right/0 lacks "+firstDay, both.Because[1].Text)
	require.NotNil(t, both.Because[1].Because[1].Until)
	job := w.whyJob("joined", "last")
	require.Equal(t, []string{"no_input", "no_input/input_missing"}, codesIn(job.Reasons)[:2])
	require.Equal(t, codesIn(why.Reasons[0].Because[0].Because), codesIn(job.Reasons[0].Because[0].Because))

	// For a reader, who sees what is published only, the way upstream has no names.
	reader := w.caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	seen, err := w.d.PartitionWhyNot(t.Context(), reader, "joined_last", firstDay, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"waits_for_inputs", "waits_for_inputs/input_missing"}, codesIn(seen.Reasons))
	require.Equal(t, "an input that you may not see has nothing that it needs", seen.Reasons[0].Because[0].Text)
	_, err = w.d.PartitionWhyNot(t.Context(), reader, "joined/both/0", firstDay, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.d.PartitionWhyNot(t.Context(), w.caller, "joined_last", "not a day", time.Now())
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	// It comes, and each step on its way is said.
	w.probe.put("right", firstDay, "b")
	w.poll()
	require.Contains(t, codesIn(w.whyNot("joined_last", firstDay).Reasons), "waits_for_inputs/input_missing/waits_for_inputs/input_missing/queued")
	for _, task := range w.claim(w.d) {
		w.d.execute(t.Context(), task)
	}
	why = w.whyNot("joined_last", firstDay)
	require.Contains(t, codesIn(why.Reasons), "waits_for_inputs/input_missing/undecided", "it is not routed yet")
	w.route()
	require.Contains(t, codesIn(w.whyNot("joined_last", firstDay).Reasons), "waits_for_inputs/input_missing/queued")
	w.settle()
	require.Equal(t, []string{"published", "up_to_date"}, codesIn(w.whyNot("joined_last", firstDay).Reasons))
	require.Equal(t, []string{"up_to_date"}, codesIn(w.whyJob("joined", "last").Reasons))
}

// What decide says and what an explanation says are one: whatever inputs there are, a target is explained by its verdict.
func TestWhyNotOfPartitionsThatSomebodyDecidedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "ab")
	w.serve(checked)
	// Held, then rejected.
	w.probe.put("raw", firstDay, "toolong")
	w.poll()
	for range 2 { // raw, good
		for _, task := range w.claim(w.d) {
			w.d.execute(t.Context(), task)
		}
		w.route()
	}
	why := w.whyNot("checked_good", firstDay)
	require.Equal(t, []string{"published", "checks_pending", "checks_pending/queued"}, codesIn(why.Reasons))
	w.settle()
	why = w.whyNot("checked_good", firstDay)
	require.Equal(t, []string{"published", "rejected"}, codesIn(why.Reasons))
	require.Equal(t, "short: 1 rows", why.Reasons[1].Error)
	all, err := w.d.DatasetWhy(t.Context(), w.caller, "checked_good", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"rejected"}, codesIn(all.Reasons))
	reader := w.caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	all, err = w.d.DatasetWhy(t.Context(), reader, "checked_good", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"rejected"}, codesIn(all.Reasons))
	require.Empty(t, all.Reasons[0].Error)

	// Skipped.
	w.probe.on("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("hopeless"))
	})
	w.probe.put("raw", firstDay, "ab")
	deployed := w.deploy(pair)
	w.settle()
	status, _ := w.status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	why = w.whyJob("pair", "made")
	require.Equal(t, []string{"no_live_version", "no_live_version/build_failed", "dead"}, codesIn(why.Reasons))
	require.Contains(t, why.Reasons[0].Because[0].Text, "v1 failed: task ")
	_, err = w.d.do(t.Context(), w.caller, *why.Reasons[1].Task, act{verb: verbSkip, reason: "lost"}, "")
	require.NoError(t, err)
	skipped := w.whyNot("pair/made/0", firstDay)
	require.Equal(t, []string{"no_live_version", "no_live_version/build_failed", "skipped"}, codesIn(skipped.Reasons))
	require.Equal(t, "pair/made "+firstDay+": somebody gave it up: lost", skipped.Reasons[1].Text)
}

func TestWhyADatasetIsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("left", firstDay, "a")
	w.probe.put("right", firstDay, "b")
	w.serve(edit(joined, "from: { job: last } }", "from: { job: last }, due: { within: 1s } }"))
	why, err := w.d.DatasetWhy(t.Context(), w.caller, "joined_last", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"late", "late/waits_for_inputs", "late/waits_for_inputs/input_missing"}, codesIn(why.Reasons)[:3])
	require.Contains(t, codesIn(why.Reasons), "late/waits_for_inputs/input_missing/waits_for_inputs/input_missing/source_lacks")
	require.Equal(t, "up_to_date", string(why.Reasons[len(why.Reasons)-1].Code))
	require.NotEmpty(t, why.Reasons[0].Partition)
}

// A gate has reasons if and only if it does not open.
func TestGateReasons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p     progress
		codes []string
	}{
		"ready":       {progress{}, nil},
		"open":        {progress{open: true}, []string{"gate_open"}},
		"caught up":   {progress{open: true, caughtUp: true}, nil},
		"dead":        {progress{dead: []string{"a", "b"}, open: true}, []string{"gate_dead", "gate_open"}},
		"rejected":    {progress{rejected: []string{"a"}}, []string{"gate_rejected"}},
		"unread":      {progress{unread: []string{"d/raw"}, open: true, caughtUp: true}, []string{"gate_unread"}},
		"stale, held": {progress{stale: 3, held: 2}, []string{"gate_stale", "gate_held"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready, _ := gate(c.p)
			reasons := gateReasons(c.p, 4)
			require.Equal(t, c.codes, codesIn(reasons))
			require.Equal(t, ready, len(reasons) == 0)
		})
	}
}

func TestWhyABuildDoesNotServe(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	stay := false
	w.deploy(edit(pair, "tag: m", "tag: edited"), func(r *registry.DeployRequest) { r.Activate = &stay })
	require.Equal(t, []string{"gate", "gate/gate_stale", "up_to_date"}, codesIn(w.whyJob("pair", "made").Reasons))
	w.advance()
	why := w.whyJob("pair", "made")
	require.Equal(t, []string{"gate", "gate/gate_open", "gate/gate_open/queued", "up_to_date"}, codesIn(why.Reasons))
	require.Equal(t, "v2 is not ready", why.Reasons[0].Text)
	w.settle()
	require.Equal(t, []string{"awaiting_promotion", "up_to_date"}, codesIn(w.whyJob("pair", "made").Reasons))
	_, err := w.d.JobWhy(t.Context(), w.caller, "pair", "nothing", time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.d.JobWhy(t.Context(), w.caller, "nothing", "nothing", time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

func TestSourceReasons(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		f      firing
		wanted bool
		texts  []string
	}{
		"waits":      {firing{kind: "poll", registered: true, next: &at}, false, []string{"the source fires next at 2026-01-02T03:04:05Z"}},
		"failed":     {firing{kind: "cron", registered: true, next: &at, failed: "no route"}, false, []string{"the source could not be read: no route", "the source fires next at 2026-01-02T03:04:05Z"}},
		"lacks":      {firing{kind: "poll", registered: true, next: &at, read: &at, units: 3}, true, []string{"the source was read at 2026-01-02T03:04:05Z, and what is wanted was not among its 3 partitions", "the source fires next at 2026-01-02T03:04:05Z"}},
		"manual":     {firing{kind: "manual"}, true, []string{"the source runs when somebody asks for it"}},
		"not served": {firing{kind: "poll"}, true, []string{"the source has not been read yet"}},
		"webhook":    {firing{kind: "webhook", registered: true}, true, []string{"the source brings a partition when its webhook does"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reasons := sourceReasons(c.f, c.wanted)
			tell(reasons)
			var said []string
			for _, r := range reasons {
				said = append(said, r.Text)
			}
			require.Equal(t, c.texts, said)
		})
	}
}

// Each code has words of its own, and a line in the documentation.
func TestCodesAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	said := map[string]Code{}
	for _, code := range Codes {
		text := sentence(Reason{Code: code, Count: 2, Max: 1})
		require.NotEmpty(t, text)
		require.NotContains(t, said, text, code)
		said[text] = code
		require.Contains(t, string(page), "| `"+string(code)+"` |")
	}
	_, err = json.Marshal(Why{})
	require.NoError(t, err)
}
