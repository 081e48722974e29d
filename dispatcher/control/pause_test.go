package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
)

func resume(tn *dispatchertest.Tenant, dag, job string) {
	tn.W.T.Helper()
	require.NoError(tn.W.T, tn.W.D.Control.Resume(tn.W.T.Context(), tn.Caller, dag, job, time.Now()))
	tn.W.Check()
}

func TestPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ dag, job string }{"job": {"pair", "made"}, "DAG": {"pair", ""},
		"org": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			other := w.Org("other")
			w.Change("b") // queued before the pause
			w.Pause(c.dag, c.job)
			require.Empty(t, w.Claim(w.D))
			id := w.TaskOf("made", dispatchertest.FirstDay)
			require.Equal(t, "Queued waiting:paused", w.Task(id))
			task, err := w.D.Views.TaskByID(t.Context(), w.Caller, id)
			require.NoError(t, err)
			require.Equal(t, "paused", task.Waiting)

			// The pause is listed, and only to its org.
			dag, err := w.D.Views.DAG(t.Context(), w.Caller, "pair")
			require.NoError(t, err)
			require.Equal(t, "a reason", dag.Jobs[1].Paused.Reason)
			require.Equal(t, c.job == "", dag.Paused != nil)
			require.Equal(t, c.job == "", dag.Jobs[0].Paused != nil)
			none, err := w.D.Control.Pauses(t.Context(), other.Caller)
			require.NoError(t, err)
			require.Empty(t, none)

			// Tasks for new data are created, and wait too; a deploy does not end the pause.
			w.Probe.Put("raw", dispatchertest.FirstDay, "c")
			if c.job == "" {
				w.Exec(`UPDATE sources SET next_fire_at = now()`)
				w.Fire()
				require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE next_fire_at <= now()`),
					"a paused source does not fire")
			} else {
				w.Poll()
				w.Route()
				w.Work()
				w.Route()
			}
			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
			deployed := w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "config: { tag: m }",
				"config: { tag: edited }"))
			for range 3 {
				w.Route()
				w.Advance()
			}
			require.Empty(t, w.Claim(w.D), "the build waits")
			require.Equal(t, []string{"m(a)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			w.Check()
			settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
			require.NoError(t, err)
			_ = settled

			resume(w.Tenant, c.dag, c.job)
			w.Settle()
			status, reason := w.Status(deployed.Version.ID)
			require.Equal(t, "Active", string(status), reason)
			require.Equal(t, []string{"edited(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			err = w.D.Control.Resume(t.Context(), w.Caller, c.dag, c.job, time.Now())
			require.True(t, fault.Is(err, fault.NotFound), "%v", err)
			require.Equal(t, 2, w.Count(`SELECT FROM audit_log WHERE action LIKE 'pause.%'`))
		})
	}
}

func TestPausesUnderPauses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Pause("pair", "made")
	w.Pause("pair", "")
	w.Change("b") // raw does not fire
	id := w.TaskOf("made", dispatchertest.FirstDay)
	resume(w.Tenant, "pair", "")
	w.Settle()
	require.NotEqual(t, id, w.TaskOf("made", dispatchertest.FirstDay))
	id = w.TaskOf("made", dispatchertest.FirstDay)
	require.Equal(t, "Queued waiting:paused", w.Task(id))
	resume(w.Tenant, "pair", "made")
	w.Settle()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	for _, wrong := range [][2]string{{"nothing", ""}, {"pair", "nothing"}} {
		_, err := w.D.Control.Pause(t.Context(), w.Caller, wrong[0], wrong[1], "", time.Now())
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	}
}

// A paused task holds no slot of a limit, so nothing else waits for it.
func TestPausedTasksHoldNoLimits(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(dispatchertest.Mail, "  - name: send\n",
		"  - name: send\n    scaling: { max_concurrency: 1 }\n    concurrency_key: one\n", "  - name: once\n",
		"  - name: once\n    concurrency_key: one\n"))
	to := dispatchertest.Payload(map[string]any{"to": "a"})
	w.Enqueue("send", dispatcher.EnqueueItem{Payload: to}, dispatcher.EnqueueItem{Payload: to})
	w.Enqueue("once", dispatcher.EnqueueItem{Payload: to})
	w.Pause("mail", "send")
	require.Len(t, w.Claim(w.D), 1, "once goes on")
	w.Exec(`UPDATE leases SET expires_at = now() - interval '1 hour'`)
	w.Enqueue("send", dispatcher.EnqueueItem{Payload: to}) // placed while it is paused
	w.Check()
	require.Equal(t, 0, w.Count(`SELECT FROM ready r JOIN jobs j ON j.id = r.origin_job_id WHERE j.name = 'send'`))
	resume(w.Tenant, "mail", "send")
	w.Reap(dispatchertest.Later(0))
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.Equal(t, 4, w.Count(`SELECT FROM tasks WHERE status = 'Completed'`))
}

// The sweep finds a task that was placed at the very moment of the pause.
func TestAPauseIsReviewed(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	w.Exec(`INSERT INTO pauses (org_id, dag_name, job_name, actor) VALUES ($1, 'pair', 'made', 'x')`, w.Caller.OrgID)
	_, err := w.D.Control.ReviewPauses(t.Context(), time.Now())
	require.NoError(t, err)
	require.Empty(t, w.Claim(w.D))
	w.Check()
	resume(w.Tenant, "pair", "made")
	w.Settle()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

func TestAScheduleAfterAPause(t *testing.T) {
	t.Parallel()
	for catchup, want := range map[string]int{"false": 1, "true": 4} {
		t.Run(catchup, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(`
name: clock
jobs:
  - name: tick
    operator: hook
    source: { kind: cron, schedule: "0 * * * *", timezone: UTC, catchup: ` + catchup + `, on_deploy: false }
    partition_by: { time: hour }
    config: { tag: t }
publish:
  ticks: { from: { job: tick } }
`)
			w.Pause("clock", "tick")
			missed := time.Now().UTC().Truncate(time.Hour).Add(-3 * time.Hour)
			w.Exec(`UPDATE sources SET next_fire_at = $1`, missed)
			w.Fire()
			require.Zero(t, w.Count(`SELECT FROM tasks`))
			resume(w.Tenant, "clock", "tick")
			w.Settle()
			require.Equal(t, want, w.Count(`SELECT FROM tasks`))
		})
	}
}

func TestPausesAreOfTheirRoles(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	rules := map[string]authz.Rule{}
	api, err := authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(w.Pool)}})
	require.NoError(t, err)
	w.D.API.AddRoutes(api)
	for _, r := range api.Routes() {
		rules[r.Method+" "+r.Path] = r.Rule
	}
	require.Equal(t, authz.To(authz.Operate, authz.TheDAG), rules["POST /v1/dags/{dag}/pause"])
	require.Equal(t, authz.To(authz.Operate, authz.TheJobs), rules["DELETE /v1/jobs/{dag}/{job}/pause"])
	require.Equal(t, authz.Admin, rules["POST /v1/org/pause"])
	require.Equal(t, authz.Admin, rules["DELETE /v1/org/pause"])
}
