package pressure_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// When too much is queued, everything that adds work waits, says so, and continues by itself without losing anything.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01", "02", "03")
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	w.Serve(dispatchertest.Mail)
	first := time.Now()
	look := func(after time.Duration) pressure.Pressure {
		t.Helper()
		if after > time.Second { // on a slow machine a measurement is due later
			w.Exec(`UPDATE backpressure SET due_at = $1`, first.Add(after))
		}
		_, err := w.D.Pressure.Review(t.Context(), first.Add(after))
		require.NoError(t, err)
		p, err := w.D.Pressure.Pressure(t.Context(), authz.Caller{OrgID: w.Caller.OrgID, Role: authz.RoleReader})
		require.NoError(t, err)
		return p
	}
	deliver := func(id string) error {
		t.Helper()
		_, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", id, time.Now(), `{"order": 1}`),
			time.Now())
		return err
	}
	w.D = w.Dispatcher("one", func(c *service.Config) { c.Thresholds = pressure.Thresholds{MaxQueued: 4, RefuseAt: 8} })
	w.D.Stepped = true
	require.Nil(t, look(0).Since)
	to := dispatchertest.Payload(map[string]string{"to": "a"})
	for range 5 {
		w.Enqueue("send", dispatcher.EnqueueItem{Payload: to})
	}
	require.Nil(t, look(time.Millisecond).Since, "it is measured once a second")
	p := look(2 * time.Second)
	require.NotNil(t, p.Since)
	require.Equal(t, int64(5), p.Queued)

	// Sources, a backfill and a build wait.
	w.Probe.Put("raw", "2024-01-04", "04")
	w.Poll()
	b := w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-03", Existing: "all",
		Propagate: "none"})
	_, err := w.D.Control.AdvanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	changed := w.Deploy(dispatchertest.Edit(dispatchertest.January, "config: { tag: m }", "config: { tag: changed }"))
	w.Advance()
	require.Equal(t, 5, w.Count(`SELECT FROM ready`), "nothing was added")
	require.Contains(t, dispatchertest.CodesIn(w.WhyJob("letters", "raw").Reasons), "backpressure")
	require.Contains(t, dispatchertest.CodesIn(w.WhyNot("letters_made", "2024-01-04").Reasons),
		"waits_for_inputs/input_missing/backpressure")
	why, err := w.D.Why.DatasetWhy(t.Context(), w.Caller, "letters_made", time.Now())
	require.NoError(t, err)
	require.Contains(t, dispatchertest.CodesIn(why.Reasons), "gate/backpressure")
	require.Equal(t, 1.0, w.FiguresOf(w.D)["backpressure{}"])

	// Enqueues and deliveries are accepted while there is room, and then refused with the time of the next try.
	for i := range 3 {
		require.NoError(t, deliver(fmt.Sprint("m", i)))
	}
	look(4 * time.Second)
	refused := deliver("late")
	require.True(t, fault.Is(refused, fault.Unavailable), "%v", refused)
	require.Equal(t, "30", rest.ProblemOf(refused).GetHeaders().Get("Retry-After"))
	_, err = w.D.Enqueue(t.Context(), w.Caller, "mail", "send", []dispatcher.EnqueueItem{{Payload: to}})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)

	// It lasts until the queue has shrunk to half.
	one, err := w.D.Claim(t.Context(), w.D.InProcessRuntimes(), "one", 5, time.Now())
	require.NoError(t, err)
	require.Len(t, one, 5)
	for _, c := range one {
		dispatchertest.Execute(t.Context(), w.D, c)
	}
	require.NotNil(t, look(6*time.Second).Since, "three are left of the four that may be: more than half")
	w.Work()
	require.Nil(t, look(8*time.Second).Since)
	require.NotContains(t, dispatchertest.CodesIn(w.WhyJob("letters", "raw").Reasons), "backpressure")
	require.NoError(t, deliver("late"))
	w.Settle()
	w.Follow(b)
	status, reason := w.Status(changed.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Len(t, w.Read("letters_made"), 4, "the source was read once there was room")
}

// The next task of a runtime that nobody serves waits forever; that does not cause backpressure.
func TestTheAgeOfWhatIsNext(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	w.D = w.Dispatcher("one", func(c *service.Config) { c.Thresholds = pressure.Thresholds{MaxAge: time.Minute} })
	priority := 3
	w.Enqueue("send", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "a"}),
		Priority: &priority})
	age := func(after time.Duration) pressure.Pressure {
		t.Helper()
		w.Exec(`DELETE FROM backpressure`)
		_, err := w.D.Pressure.Review(t.Context(), dispatchertest.Later(after))
		require.NoError(t, err)
		p, err := w.D.Pressure.Pressure(t.Context(), w.Caller)
		require.NoError(t, err)
		return p
	}
	require.Nil(t, age(0).Since)
	w.Exec(`UPDATE workers SET last_heartbeat = now() + interval '1 hour'`)
	late := age(2 * time.Minute)
	require.NotNil(t, late.Since)
	require.InDelta(t, 120, late.Oldest, 10)
	require.True(t, w.D.Pressure.High())
	w.Exec(`UPDATE workers SET last_heartbeat = now() + interval '1 hour', runtimes = '{elsewhere}'`)
	require.Nil(t, age(2*time.Minute).Since)
	require.False(t, w.D.Pressure.High())
}

// What one org has queued for a runtime holds that org's DAGs back that use the runtime, and nobody else.
func TestBackpressureIsPerOrgAndRuntime(t *testing.T) {
	t.Parallel()
	const slow = `
name: slow
jobs:
  - { name: model, operator: handler, runtime: poll, source: { kind: manual }, config: { handler: train } }
  - { name: tick, operator: hook, source: { kind: cron, schedule: "@hourly" }, outputs: 0, config: {} }
  - { name: hooked, operator: hook, source: { kind: manual }, outputs: 0, config: {} }
`
	const quick = `
name: quick
jobs:
  - { name: tick, operator: hook, source: { kind: cron, schedule: "@hourly" }, outputs: 0, config: {} }
`
	w := dispatchertest.NewWorld(t)
	w.D = w.Dispatcher("one", func(c *service.Config) { c.Thresholds = pressure.Thresholds{MaxQueued: 2, RefuseAt: 4} })
	other := w.Org("other")
	for _, dag := range []string{slow, quick} {
		w.Serve(dag)
		other.Serve(dag)
	}
	w.Exec(`INSERT INTO workers (id, hostname, pool_size, runtimes, last_heartbeat)
		VALUES ('pollers', 'pollers', 1, '{poll}', now() + interval '1 hour')`)
	for range 4 {
		_, err := w.D.Enqueue(t.Context(), w.Caller, "slow", "model", []dispatcher.EnqueueItem{{}})
		require.NoError(t, err)
	}
	look := func(after time.Duration) {
		t.Helper()
		_, err := w.D.Pressure.Review(t.Context(), dispatchertest.Later(after))
		require.NoError(t, err)
	}
	look(0)

	w.Poll()
	require.Equal(t, []string{"acme/quick", "other/quick", "other/slow"}, dispatchertest.Texts(t, w.Pool, `
		SELECT org_slug(s.org_id) || '/' || s.dag_name FROM sources s
		WHERE s.job_name = 'tick' AND s.next_fire_at > now() ORDER BY 1`), "only one DAG of one org waits")
	require.Equal(t, 1, w.Count(`SELECT FROM sources WHERE held`))
	p, err := w.D.Pressure.Pressure(t.Context(), w.Caller)
	require.NoError(t, err)
	require.Equal(t, []any{1, "poll", int64(4)}, []any{len(p.Runtimes), p.Runtimes[0].Runtime, p.Queued})
	p, err = w.D.Pressure.Pressure(t.Context(), other.Caller)
	require.NoError(t, err)
	require.Equal(t, []any{0, int64(0)}, []any{len(p.Runtimes), p.Queued}, "others do not learn of it")
	require.Contains(t, dispatchertest.CodesIn(w.WhyJob("slow", "tick").Reasons), "backpressure")
	require.NotContains(t, dispatchertest.CodesIn(w.WhyJob("quick", "tick").Reasons), "backpressure")

	_, err = w.D.Enqueue(t.Context(), w.Caller, "slow", "model", []dispatcher.EnqueueItem{{}})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "4 tasks for runtime poll")
	_, err = w.D.Enqueue(t.Context(), w.Caller, "slow", "hooked", []dispatcher.EnqueueItem{{}})
	require.NoError(t, err, "its runtime has room")
	_, err = w.D.Enqueue(t.Context(), other.Caller, "slow", "model", []dispatcher.EnqueueItem{{}})
	require.NoError(t, err, "another org has room")

	w.Exec(`DELETE FROM ready WHERE runtime = 'poll'`)
	w.Exec(`DELETE FROM waiting`)
	look(time.Minute)
	require.Zero(t, w.Count(`SELECT FROM org_backpressure`))
	for more := true; more; {
		more, err = w.D.Sources.Fire(t.Context(), dispatchertest.Later(0))
		require.NoError(t, err)
	}
	require.Zero(t, w.Count(`SELECT FROM sources WHERE next_fire_at <= now() OR held`))
}

// What is queued for a runtime that nobody serves holds no producer of any org back; what a function serves does.
func TestWhatNobodyServesHoldsNobody(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	w.Enqueue("send", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "a"})},
		dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "b"})})
	w.Exec(`UPDATE ready SET runtime = 'elsewhere'`)
	for functions, queued := range map[string]int64{"another": 0, "elsewhere": 2} {
		w.Exec(`DELETE FROM backpressure`)
		gauge := pressure.New(pressure.Config{Pool: w.Pool, Requests: w.D.Requests, Wakeups: w.D.Wakeups,
			Thresholds: pressure.Thresholds{MaxQueued: 1}, Functions: []string{functions}, Log: w.D.Log})
		_, err := gauge.Review(t.Context(), dispatchertest.Later(0))
		require.NoError(t, err)
		p, err := gauge.Pressure(t.Context(), authz.Caller{OrgID: w.Caller.OrgID, Role: authz.RoleReader})
		require.NoError(t, err)
		require.Equal(t, queued, p.Queued, functions)
		require.Equal(t, queued > 1, gauge.High(), functions)
	}
}
