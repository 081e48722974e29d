package sources_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
)

func TestADeliveryIsATaskOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	var mu sync.Mutex
	var seen []string
	w.Probe.On("orders", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, string(task.Payload))
		return operators.Result{}, w.Probe.Write(ctx, task, string(task.Payload))
	})
	now := time.Now()
	first, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "msg-1", now, `{"order": 1}`),
		now)
	require.NoError(t, err)
	require.False(t, first.Duplicate)
	// The delivery is stored: another dispatcher finds it, even if this one ends.
	require.Equal(t, "Queued ready", w.Task(*first.TaskID))

	// The same delivery, signed again, changes nothing.
	for _, at := range []time.Time{now, now.Add(time.Minute)} {
		again, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "msg-1", at,
			`{"order": 1}`), at)
		require.NoError(t, err)
		require.True(t, again.Duplicate)
		require.Equal(t, first.TaskID, again.TaskID)
	}
	// Other deliveries are tasks of their own, although all are for one output.
	for n := 2; n <= 3; n++ {
		_, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", fmt.Sprint("msg-", n), now,
			fmt.Sprintf(`{"order": %d}`, n)), now)
		require.NoError(t, err)
	}
	w.Settle()
	require.Equal(t, []string{`{"order": 1}`, `{"order": 2}`, `{"order": 3}`}, seen)
	require.Equal(t, 3, w.Count(`SELECT FROM tasks WHERE kind = 'source' AND status = 'Completed'`))
	again, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "msg-2", now, `{"order": 2}`),
		now)
	require.NoError(t, err)
	require.True(t, again.Duplicate, "also when it is done")
}

func TestManyAcceptOneDelivery(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	now := time.Now()
	var sent sync.WaitGroup
	for range 8 {
		sent.Go(func() {
			_, err := w.D.Sources.AcceptHook(context.WithoutCancel(t.Context()), dispatchertest.Signed("hunter22",
				"msg-1", now, `{}`), now)
			if err != nil {
				t.Error(err)
			}
		})
	}
	sent.Wait()
	require.Equal(t, 1, w.Count(`SELECT FROM tasks`))
	w.Check()
}

func TestAStrangerLearnsNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	w.Org("other")
	now := time.Now()
	good := dispatchertest.Signed("hunter22", "msg-1", now, `{"order": 1}`)
	change := func(f func(*sources.Delivery)) sources.Delivery { d := good; f(&d); return d }
	var answers []string
	for name, in := range map[string]sources.Delivery{
		"unknown org":          change(func(d *sources.Delivery) { d.Org = "nobody" }),
		"another org":          change(func(d *sources.Delivery) { d.Org = "other" }),
		"unknown path":         change(func(d *sources.Delivery) { d.Path = "shop/ordersx" }),
		"no path":              change(func(d *sources.Delivery) { d.Path = "" }),
		"another key":          dispatchertest.Signed("hunter23", "msg-1", now, `{"order": 1}`),
		"another body":         change(func(d *sources.Delivery) { d.Body = []byte(`{"order": 2}`) }),
		"another id":           change(func(d *sources.Delivery) { d.ID = "msg-2" }),
		"another time":         change(func(d *sources.Delivery) { d.Timestamp = strconv.FormatInt(now.Unix()+1, 10) }),
		"no signature":         change(func(d *sources.Delivery) { d.Signature = "" }),
		"signature of nothing": change(func(d *sources.Delivery) { d.Signature = "v1," }),
		"no id":                dispatchertest.Signed("hunter22", "", now, `{"order": 1}`),
		"no time":              change(func(d *sources.Delivery) { d.Timestamp = "" }),
		"odd time":             change(func(d *sources.Delivery) { d.Timestamp = "now" }),
		"replayed later": dispatchertest.Signed("hunter22", "msg-1", now.Add(-sources.ReplayWindow-time.Minute),
			`{"order": 1}`),
		"from the future": dispatchertest.Signed("hunter22", "msg-1", now.Add(sources.ReplayWindow+time.Minute),
			`{"order": 1}`),
		"not JSON, not signed": change(func(d *sources.Delivery) { d.Body = []byte(`{`) }),
	} {
		_, err := w.D.Sources.AcceptHook(t.Context(), in, now)
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", name, err)
		answers = append(answers, err.Error())
	}
	for _, answer := range answers {
		require.Equal(t, answers[0], answer, "all are answered alike")
	}
	require.Zero(t, w.Count(`SELECT FROM tasks`))

	// The signature is right but the delivery is not: now the answer may give the reason.
	for name, body := range map[string]string{"no JSON": `{`, "NUL": `{"a": "\u0000"}`, "no UTF-8": "\"\xff\""} {
		_, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "msg-9", now, body), now)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	require.Zero(t, w.Count(`SELECT FROM tasks`))

	// Removing a binding takes effect at once.
	_, err := w.Vault.BindSecret(t.Context(), w.Caller, "ORDERS", authz.Binding{RemoveJobs: []string{"shop/orders"}})
	require.NoError(t, err)
	_, err = w.D.Sources.AcceptHook(t.Context(), good, now)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.Equal(t, answers[0], err.Error())
}

// While two values of a secret overlap, senders that have not changed yet are let in.
func TestSignaturesByTheValueBefore(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	n, now := 0, time.Now()
	deliver := func(key string) error {
		n++
		_, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed(key, fmt.Sprint("msg-", n), now, `{}`), now)
		return err
	}
	replace := func(value string, overlap time.Duration) {
		_, err := w.Vault.ReplaceSecret(t.Context(), w.Caller, "ORDERS", value, overlap)
		require.NoError(t, err)
	}

	replace("hunter33", time.Hour)
	require.NoError(t, deliver("hunter22"))
	require.NoError(t, deliver("hunter33"))
	require.True(t, fault.Is(deliver("hunter44"), fault.NotFound))
	replace("hunter44", time.Hour)
	require.NoError(t, deliver("hunter33"))
	require.True(t, fault.Is(deliver("hunter22"), fault.NotFound), "only the latest one before counts")
	w.Exec(`UPDATE secrets SET previous_until = now() - interval '1 second'`)
	require.True(t, fault.Is(deliver("hunter33"), fault.NotFound), "the overlap is over")
	replace("hunter55", 0)
	require.NoError(t, deliver("hunter55"))
	require.True(t, fault.Is(deliver("hunter44"), fault.NotFound), "it ended at once")
}

func TestASecretInUseIsNotDeleted(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)

	err := w.Vault.DeleteSecret(t.Context(), w.Caller, "ORDERS", false)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "secret ORDERS is used by shop/orders")
	_, err = w.Vault.ReplaceSecret(t.Context(), w.Caller, "ORDERS", "hunter33", time.Hour)
	require.NoError(t, err)
	err = w.Vault.DeleteSecret(t.Context(), w.Caller, "ORDERS", false)
	require.True(t, fault.Is(err, fault.Conflict), "nor while a value before counts: %v", err)
	_, err = w.D.Sources.AcceptHook(t.Context(),
		dispatchertest.Signed("hunter22", "msg-1", time.Now(), `{"a": 1}`), time.Now())
	require.NoError(t, err)

	// What the secret is not bound to any more does not get it in any case.
	_, err = w.Vault.BindSecret(t.Context(), w.Caller, "ORDERS", authz.Binding{RemoveJobs: []string{"shop/orders"}})
	require.NoError(t, err)
	require.NoError(t, w.Vault.DeleteSecret(t.Context(), w.Caller, "ORDERS", false))
}

func TestAPathThatCannotBeGuessed(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	in := sources.Delivery{Org: "acme", Path: "shop/5f2a8c0e4b7d41f69a3c2e1d0b9f8a76", Body: []byte(`{"a": 1}`)}
	first, err := w.D.Sources.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	second, err := w.D.Sources.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	require.NotEqual(t, first.TaskID, second.TaskID, "without an id every delivery counts")
	in.ID = "x"
	first, err = w.D.Sources.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	second, err = w.D.Sources.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	require.Equal(t, first.TaskID, second.TaskID)
	require.True(t, second.Duplicate)
}

func TestDeliveriesHaveARate(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	limiter, err := rest.NewLimiter(1, 2)
	require.NoError(t, err)
	d := w.Dispatcher("two", func(c *service.Config) { c.HookLimiter = limiter })
	w.Serve(dispatchertest.HookDAG)
	now := time.Now()
	for n := range 3 {
		_, err = d.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", fmt.Sprint(n), now, `{}`), now)
	}
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
}

// A flood of deliveries that nobody signed neither uses up the budget of signed ones nor tells which paths exist.
func TestUnsignedDeliveriesCountForNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	limiter, err := rest.NewLimiter(0.001, 2)
	require.NoError(t, err)
	d := w.Dispatcher("two", func(c *service.Config) { c.HookLimiter = limiter })
	w.Serve(dispatchertest.HookDAG)
	now := time.Now()
	flood := func() {
		t.Helper()
		var answers []string
		for n := range 5 {
			for _, path := range []string{"shop/orders", "shop/none"} {
				in := dispatchertest.Signed("guessed", fmt.Sprint(n), now, `{}`)
				in.Path = path
				_, err := d.Sources.AcceptHook(t.Context(), in, now)
				require.True(t, fault.Is(err, fault.NotFound), "%v", err)
				answers = append(answers, err.Error())
				require.Equal(t, answers[0], err.Error())
			}
		}
	}

	flood()
	for n := range 2 {
		_, err = d.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", fmt.Sprint(n), now, `{}`), now)
		require.NoError(t, err)
	}
	_, err = d.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "3", now, `{}`), now)
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
	flood() // also when the budget is used up
}

func TestAWebhookMakesAListLookAtOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("POKE", "hunter22", dispatchertest.BoundTo("lists/raw"))
	w.Serve(`name: lists
jobs:
  - name: raw
    operator: listed
    source: { kind: webhook, path: shop/orders, secret: POKE }
    partition_by: { time: day }
    config: { list: raw }
publish: { raw: { from: { job: raw } } }
`)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Settle()
	require.Empty(t, w.Published("raw"), "no clock makes it look")
	now := time.Now()
	accepted, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "msg-1", now,
		`{"anything": true}`), now)
	require.NoError(t, err)
	require.Nil(t, accepted.TaskID)
	w.Settle()
	require.Equal(t, map[string]int64{"2024-01-01": 1}, w.Published("raw"))
}

func TestPathsOfAnOrgDiffer(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("ORDERS", "hunter22", authz.Binding{AddJobs: []string{"shop/orders", "second/orders", "twice/a",
		"twice/b"}})
	w.Serve(dispatchertest.HookDAG)
	_, err := w.TryDeploy("name: second\njobs:\n" +
		"  - { name: orders, operator: hook, source: { kind: webhook, path: shop/orders, secret: ORDERS } }\n")
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, "shop/orders")
	_, err = w.TryDeploy(`name: twice
jobs:
  - { name: a, operator: hook, source: { kind: webhook, path: x/y, secret: ORDERS } }
  - { name: b, operator: hook, source: { kind: webhook, path: x/y, secret: ORDERS } }
`)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	// Another org may use the same path.
	other := w.Org("other")
	other.Secret("ORDERS", "key of theirs", dispatchertest.BoundTo("shop/orders"))
	other.Serve(dispatchertest.HookDAG)
	now := time.Now()
	_, err = w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", "msg-1", now, `{}`), now)
	require.NoError(t, err)
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE org_id = $1`, other.Caller.OrgID))

	// Two jobs of one DAG may swap their paths, and deleting a DAG frees its paths.
	const pair = "name: pair\njobs:\n" +
		"  - { name: a, operator: hook, source: { kind: webhook, path: %s, secret: K } }\n" +
		"  - { name: b, operator: hook, source: { kind: webhook, path: %s, secret: K } }\n"
	w.Secret("K", "hunter22", dispatchertest.BoundTo("pair/a", "pair/b"))
	w.Serve(fmt.Sprintf(pair, "one", "two"))
	w.Serve(fmt.Sprintf(pair, "two", "one"))
	require.Equal(t, []string{"a two", "b one"}, dispatchertest.Texts(t, w.Pool, `SELECT job_name || ' ' || hook_path
		FROM sources WHERE dag_name = 'pair' ORDER BY 1`))
}

func TestADeployNamesOnlyBoundSecrets(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	_, err := w.TryDeploy(dispatchertest.HookDAG)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, "is not there, or is not bound to shop/orders")
	absent := err.Error()
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/other"))
	_, err = w.TryDeploy(dispatchertest.HookDAG)
	require.EqualError(t, err, absent, "a name is not to be found out")
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
}
