package dispatcher

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
)

const hookDAG = `name: shop
jobs:
  - name: orders
    operator: hook
    source: { kind: webhook, path: shop/orders, secret: ORDERS }
  - name: open
    operator: hook
    source: { kind: webhook, path: shop/5f2a8c0e4b7d41f69a3c2e1d0b9f8a76 }
    outputs: 0
`

// secret sets a secret of the tenant and binds it.
func (tn *tenant) secret(name, value string, b authz.Binding) {
	tn.w.t.Helper()
	_, err := tn.w.vault.SetSecret(tn.w.t.Context(), tn.caller, name, value)
	require.NoError(tn.w.t, err)
	_, err = tn.w.vault.BindSecret(tn.w.t.Context(), tn.caller, name, b)
	require.NoError(tn.w.t, err)
}

func boundTo(jobs ...string) authz.Binding { return authz.Binding{AddJobs: jobs} }

// signed is a delivery to shop/orders.
func signed(key, id string, at time.Time, body string) Delivery {
	stamp := strconv.FormatInt(at.Unix(), 10)
	return Delivery{Org: "acme", Path: "shop/orders", ID: id, Timestamp: stamp, Signature: sign(key, id, stamp, []byte(body)), Body: []byte(body)}
}

func TestADeliveryIsATaskOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	w.serve(hookDAG)
	var mu sync.Mutex
	var seen []string
	w.probe.on("orders", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, string(task.Payload))
		return operators.Result{}, w.probe.write(ctx, task, string(task.Payload))
	})
	now := time.Now()
	first, err := w.d.AcceptHook(t.Context(), signed("hunter22", "msg-1", now, `{"order": 1}`), now)
	require.NoError(t, err)
	require.False(t, first.Duplicate)
	// It is stored: another dispatcher finds it, whatever becomes of this one.
	require.Equal(t, "Queued ready", w.task(*first.TaskID))

	// The same delivery, again and signed anew, changes nothing.
	for _, at := range []time.Time{now, now.Add(time.Minute)} {
		again, err := w.d.AcceptHook(t.Context(), signed("hunter22", "msg-1", at, `{"order": 1}`), at)
		require.NoError(t, err)
		require.True(t, again.Duplicate)
		require.Equal(t, first.TaskID, again.TaskID)
	}
	// Others are tasks of their own, though all are for one output.
	for n := 2; n <= 3; n++ {
		_, err := w.d.AcceptHook(t.Context(), signed("hunter22", fmt.Sprint("msg-", n), now, fmt.Sprintf(`{"order": %d}`, n)), now)
		require.NoError(t, err)
	}
	w.settle()
	require.Equal(t, []string{`{"order": 1}`, `{"order": 2}`, `{"order": 3}`}, seen)
	require.Equal(t, 3, w.count(`SELECT FROM tasks WHERE kind = 'source' AND status = 'Completed'`))
	again, err := w.d.AcceptHook(t.Context(), signed("hunter22", "msg-2", now, `{"order": 2}`), now)
	require.NoError(t, err)
	require.True(t, again.Duplicate, "also when it is done")
}

func TestManyAcceptOneDelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	w.serve(hookDAG)
	now := time.Now()
	var sent sync.WaitGroup
	for range 8 {
		sent.Go(func() {
			_, err := w.d.AcceptHook(context.WithoutCancel(t.Context()), signed("hunter22", "msg-1", now, `{}`), now)
			if err != nil {
				t.Error(err)
			}
		})
	}
	sent.Wait()
	require.Equal(t, 1, w.count(`SELECT FROM tasks`))
	w.check()
}

func TestAStrangerLearnsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	w.serve(hookDAG)
	w.org("other")
	now := time.Now()
	good := signed("hunter22", "msg-1", now, `{"order": 1}`)
	change := func(f func(*Delivery)) Delivery { d := good; f(&d); return d }
	var answers []string
	for name, in := range map[string]Delivery{
		"unknown org":          change(func(d *Delivery) { d.Org = "nobody" }),
		"another org":          change(func(d *Delivery) { d.Org = "other" }),
		"unknown path":         change(func(d *Delivery) { d.Path = "shop/ordersx" }),
		"no path":              change(func(d *Delivery) { d.Path = "" }),
		"another key":          signed("hunter23", "msg-1", now, `{"order": 1}`),
		"another body":         change(func(d *Delivery) { d.Body = []byte(`{"order": 2}`) }),
		"another id":           change(func(d *Delivery) { d.ID = "msg-2" }),
		"another time":         change(func(d *Delivery) { d.Timestamp = strconv.FormatInt(now.Unix()+1, 10) }),
		"no signature":         change(func(d *Delivery) { d.Signature = "" }),
		"signature of nothing": change(func(d *Delivery) { d.Signature = "v1," }),
		"no id":                signed("hunter22", "", now, `{"order": 1}`),
		"no time":              change(func(d *Delivery) { d.Timestamp = "" }),
		"odd time":             change(func(d *Delivery) { d.Timestamp = "now" }),
		"replayed later":       signed("hunter22", "msg-1", now.Add(-replayWindow-time.Minute), `{"order": 1}`),
		"from the future":      signed("hunter22", "msg-1", now.Add(replayWindow+time.Minute), `{"order": 1}`),
		"not JSON, not signed": change(func(d *Delivery) { d.Body = []byte(`{`) }),
	} {
		_, err := w.d.AcceptHook(t.Context(), in, now)
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", name, err)
		answers = append(answers, err.Error())
	}
	for _, answer := range answers {
		require.Equal(t, answers[0], answer, "all are answered alike")
	}
	require.Zero(t, w.count(`SELECT FROM tasks`))

	// Signed, and still not right: now it may be told what is wrong.
	for name, body := range map[string]string{"no JSON": `{`, "NUL": `{"a": "\u0000"}`, "no UTF-8": "\"\xff\""} {
		_, err := w.d.AcceptHook(t.Context(), signed("hunter22", "msg-9", now, body), now)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	require.Zero(t, w.count(`SELECT FROM tasks`))

	// A binding taken back closes the door at once.
	_, err := w.vault.BindSecret(t.Context(), w.caller, "ORDERS", authz.Binding{RemoveJobs: []string{"shop/orders"}})
	require.NoError(t, err)
	_, err = w.d.AcceptHook(t.Context(), good, now)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.Equal(t, answers[0], err.Error())
}

func TestSeveralSignaturesAndEncodedKeys(t *testing.T) {
	t.Parallel()
	// The example of the Standard Webhooks specification's reference libraries.
	const key, id, stamp, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", sign(key, id, stamp, []byte(body)))
	at := time.Unix(1614265330, 0)
	raw, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	in := Delivery{ID: id, Timestamp: stamp, Body: []byte(body), Signature: "v1,AAAA v1a,xyz " + sign(string(raw), id, stamp, []byte(body))}
	require.Empty(t, checkSignature(key, in, at))
	require.NotEmpty(t, checkSignature(key+"x", in, at))
}

func TestAPathThatCannotBeGuessed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	w.serve(hookDAG)
	in := Delivery{Org: "acme", Path: "shop/5f2a8c0e4b7d41f69a3c2e1d0b9f8a76", Body: []byte(`{"a": 1}`)}
	first, err := w.d.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	second, err := w.d.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	require.NotEqual(t, first.TaskID, second.TaskID, "without an id every delivery counts")
	in.ID = "x"
	first, err = w.d.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	second, err = w.d.AcceptHook(t.Context(), in, time.Now())
	require.NoError(t, err)
	require.Equal(t, first.TaskID, second.TaskID)
	require.True(t, second.Duplicate)
}

func TestDeliveriesHaveARate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	limiter, err := rest.NewLimiter(1, 2)
	require.NoError(t, err)
	d := w.dispatcher("two", func(c *Config) { c.HookLimiter = limiter })
	w.serve(hookDAG)
	now := time.Now()
	for n := range 3 {
		_, err = d.AcceptHook(t.Context(), signed("hunter22", fmt.Sprint(n), now, `{}`), now)
	}
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
}

func TestAWebhookMakesAListLookAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("POKE", "hunter22", boundTo("lists/raw"))
	w.serve(`name: lists
jobs:
  - name: raw
    operator: listed
    source: { kind: webhook, path: shop/orders, secret: POKE }
    partition_by: { time: day }
    config: { list: raw }
publish: { raw: { from: { job: raw } } }
`)
	w.probe.put("raw", "2024-01-01", "a")
	w.settle()
	require.Empty(t, w.published("raw"), "no clock makes it look")
	now := time.Now()
	accepted, err := w.d.AcceptHook(t.Context(), signed("hunter22", "msg-1", now, `{"anything": true}`), now)
	require.NoError(t, err)
	require.Nil(t, accepted.TaskID)
	w.settle()
	require.Equal(t, map[string]int64{"2024-01-01": 1}, w.published("raw"))
}

func TestPathsOfAnOrgDiffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret("ORDERS", "hunter22", authz.Binding{AddJobs: []string{"shop/orders", "second/orders", "twice/a", "twice/b"}})
	w.serve(hookDAG)
	_, err := w.tryDeploy("name: second\njobs:\n  - { name: orders, operator: hook, source: { kind: webhook, path: shop/orders, secret: ORDERS } }\n")
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, "shop/orders")
	_, err = w.tryDeploy(`name: twice
jobs:
  - { name: a, operator: hook, source: { kind: webhook, path: x/y, secret: ORDERS } }
  - { name: b, operator: hook, source: { kind: webhook, path: x/y, secret: ORDERS } }
`)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	// Another org may have it.
	other := w.org("other")
	other.secret("ORDERS", "key of theirs", boundTo("shop/orders"))
	other.serve(hookDAG)
	now := time.Now()
	_, err = w.d.AcceptHook(t.Context(), signed("hunter22", "msg-1", now, `{}`), now)
	require.NoError(t, err)
	require.Zero(t, w.count(`SELECT FROM tasks WHERE org_id = $1`, other.caller.OrgID))

	// Two jobs of one DAG may swap theirs, and a DAG that goes gives its paths back.
	const pair = "name: pair\njobs:\n  - { name: a, operator: hook, source: { kind: webhook, path: %s, secret: K } }\n  - { name: b, operator: hook, source: { kind: webhook, path: %s, secret: K } }\n"
	w.secret("K", "hunter22", boundTo("pair/a", "pair/b"))
	w.serve(fmt.Sprintf(pair, "one", "two"))
	w.serve(fmt.Sprintf(pair, "two", "one"))
	require.Equal(t, []string{"a two", "b one"}, texts(t, w.pool, `SELECT job_name || ' ' || hook_path FROM sources WHERE dag_name = 'pair' ORDER BY 1`))
}

func TestADeployNamesOnlyBoundSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.tryDeploy(hookDAG)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, "is not there, or is not bound to shop/orders")
	absent := err.Error()
	w.secret("ORDERS", "hunter22", boundTo("shop/other"))
	_, err = w.tryDeploy(hookDAG)
	require.EqualError(t, err, absent, "a name is not to be found out")
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	w.serve(hookDAG)
}
