package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

func (tn *tenant) pause(dag, job string) {
	tn.w.t.Helper()
	_, err := tn.w.d.Pause(tn.w.t.Context(), tn.caller, dag, job, "a reason", time.Now())
	require.NoError(tn.w.t, err)
	tn.w.check()
}

func (tn *tenant) resume(dag, job string) {
	tn.w.t.Helper()
	require.NoError(tn.w.t, tn.w.d.Resume(tn.w.t.Context(), tn.caller, dag, job, time.Now()))
	tn.w.check()
}

func TestPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ dag, job string }{"job": {"pair", "made"}, "DAG": {"pair", ""}, "org": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			other := w.org("other")
			w.change("b") // queued before
			w.pause(c.dag, c.job)
			require.Empty(t, w.claim(w.d))
			id := w.taskOf("made", firstDay)
			require.Equal(t, "Queued waiting:paused", w.task(id))
			task, err := w.d.TaskByID(t.Context(), w.caller, id)
			require.NoError(t, err)
			require.Equal(t, "paused", task.Waiting)

			// Shown, and nobody else's.
			dag, err := w.d.DAG(t.Context(), w.caller, "pair")
			require.NoError(t, err)
			require.Equal(t, "a reason", dag.Jobs[1].Paused.Reason)
			require.Equal(t, c.job == "", dag.Paused != nil)
			require.Equal(t, c.job == "", dag.Jobs[0].Paused != nil)
			none, err := w.d.Pauses(t.Context(), other.caller)
			require.NoError(t, err)
			require.Empty(t, none)

			// What comes meanwhile is decided, and waits too; a deploy changes nothing about it.
			w.probe.put("raw", firstDay, "c")
			if c.job == "" {
				w.exec(`UPDATE sources SET next_fire_at = now()`)
				w.fire()
				require.Equal(t, 1, w.count(`SELECT FROM sources WHERE next_fire_at <= now()`), "a paused source does not fire")
			} else {
				w.poll()
				w.route()
				w.work()
				w.route()
			}
			require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
			deployed := w.deploy(edit(pair, "config: { tag: m }", "config: { tag: edited }"))
			for range 3 {
				w.route()
				w.advance()
			}
			require.Empty(t, w.claim(w.d), "the build waits")
			require.Equal(t, []string{"m(a)"}, w.read("pair_made")[firstDay])
			w.check()
			settled, err := w.d.Settled(t.Context(), w.caller.OrgID)
			require.NoError(t, err)
			_ = settled

			w.resume(c.dag, c.job)
			w.settle()
			status, reason := w.status(deployed.Version.ID)
			require.Equal(t, "Active", string(status), reason)
			require.Equal(t, []string{"edited(c)"}, w.read("pair_made")[firstDay])
			err = w.d.Resume(t.Context(), w.caller, c.dag, c.job, time.Now())
			require.True(t, fault.Is(err, fault.NotFound), "%v", err)
			require.Equal(t, 2, w.count(`SELECT FROM audit_log WHERE action LIKE 'pause.%'`))
		})
	}
}

func TestPausesUnderPauses(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.pause("pair", "made")
	w.pause("pair", "")
	w.change("b") // raw does not even fire
	id := w.taskOf("made", firstDay)
	w.resume("pair", "")
	w.settle()
	require.NotEqual(t, id, w.taskOf("made", firstDay))
	id = w.taskOf("made", firstDay)
	require.Equal(t, "Queued waiting:paused", w.task(id))
	w.resume("pair", "made")
	w.settle()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
	for _, wrong := range [][2]string{{"nothing", ""}, {"pair", "nothing"}} {
		_, err := w.d.Pause(t.Context(), w.caller, wrong[0], wrong[1], "", time.Now())
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	}
}

// A paused task holds no limit, so that nothing else waits for it.
func TestPausedTasksHoldNoLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(edit(mail, "  - name: send\n", "  - name: send\n    scaling: { max_concurrency: 1 }\n    concurrency_key: one\n", "  - name: once\n", "  - name: once\n    concurrency_key: one\n"))
	to := payload(map[string]any{"to": "a"})
	w.enqueue("send", EnqueueItem{Payload: to}, EnqueueItem{Payload: to})
	w.enqueue("once", EnqueueItem{Payload: to})
	w.pause("mail", "send")
	require.Len(t, w.claim(w.d), 1, "once goes on")
	w.exec(`UPDATE leases SET expires_at = now() - interval '1 hour'`)
	w.enqueue("send", EnqueueItem{Payload: to}) // placed while it is paused
	w.check()
	require.Equal(t, 0, w.count(`SELECT FROM ready r JOIN jobs j ON j.id = r.job_id WHERE j.name = 'send'`))
	w.resume("mail", "send")
	w.reap(later(0))
	w.promote(later(time.Hour))
	w.settle()
	require.Equal(t, 4, w.count(`SELECT FROM tasks WHERE status = 'Completed'`))
}

// What was placed at the very moment of the pause is found by the sweep.
func TestAPauseIsReviewed(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	w.exec(`INSERT INTO pauses (org_id, dag_name, job_name, actor) VALUES ($1, 'pair', 'made', 'x')`, w.caller.OrgID)
	_, err := w.d.reviewPauses(t.Context(), time.Now())
	require.NoError(t, err)
	require.Empty(t, w.claim(w.d))
	w.check()
	w.resume("pair", "made")
	w.settle()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
}

func TestAScheduleAfterAPause(t *testing.T) {
	t.Parallel()
	for catchup, want := range map[string]int{"false": 1, "true": 4} {
		t.Run(catchup, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(`
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
			w.pause("clock", "tick")
			missed := time.Now().UTC().Truncate(time.Hour).Add(-3 * time.Hour)
			w.exec(`UPDATE sources SET next_fire_at = $1`, missed)
			w.fire()
			require.Zero(t, w.count(`SELECT FROM tasks`))
			w.resume("clock", "tick")
			w.settle()
			require.Equal(t, want, w.count(`SELECT FROM tasks`))
		})
	}
}

func TestPausesAreOfTheirRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rules := map[string]authz.Rule{}
	api, err := authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(w.pool)}})
	require.NoError(t, err)
	w.d.AddRoutes(api)
	for _, r := range api.Routes() {
		rules[r.Method+" "+r.Path] = r.Rule
	}
	require.Equal(t, authz.Writer, rules["POST /v1/dags/{dag}/pause"])
	require.Equal(t, authz.Writer, rules["DELETE /v1/jobs/{dag}/{job}/pause"])
	require.Equal(t, authz.Admin, rules["POST /v1/org/pause"])
	require.Equal(t, authz.Admin, rules["DELETE /v1/org/pause"])
}
