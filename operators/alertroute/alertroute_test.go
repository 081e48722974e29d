package alertroute_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alertroute"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func TestMain(m *testing.M) { dispatchertest.Main(m) }

func operator(t *testing.T, allowed ...string) operators.Operator {
	t.Helper()
	op, err := alertroute.New(operators.Options{AllowedAddresses: allowed})
	require.NoError(t, err)
	return op
}

// running returns what a task that runs until the end of the test remembers of its deliveries.
func running(t *testing.T) operators.Deliveries {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	ledgers := make(chan operators.Deliveries, 1)
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		ledgers <- task.Deliveries
		<-ctx.Done()
		return operators.Result{}, context.Cause(ctx)
	})
	w.D.Stepped = false
	w.Start(w.D)
	w.Deploy(`
name: d
jobs:
  - { name: raw, operator: listed, source: { kind: poll, every: 1h }, partition_by: key, config: { list: raw } }
  - { name: made, operator: hook, inputs: [{ from: { job: raw } }], execution_strategy: PerPartition }
`)
	w.Probe.Put("raw", "k", "a")
	w.Exec(`UPDATE sources SET next_fire_at = now()`)
	return <-ledgers
}

// one is the SELECT of one alert, of a name.
func one(name string) string {
	return `SELECT '` + name + `' AS alert, 'k' AS key, 'error' AS severity, 'firing' AS status,
		TIMESTAMP '2026-01-31 00:00:00' AS started_at, DATE '2026-01-31' AS evaluated_at`
}

func TestConforms(t *testing.T) {
	t.Parallel()
	ledger := running(t)
	var mu sync.Mutex
	got := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got[r.Method+" "+r.URL.String()+" "+r.Header.Get("X-Token")+" "+string(body)]++
		mu.Unlock()
		switch r.URL.Path {
		case "/none":
			w.WriteHeader(http.StatusNotFound)
		case "/hangs":
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		all := ""
		for request, times := range got {
			all += request + "\n"
			if !strings.Contains(request, "/hangs") && !strings.Contains(request, "/none") {
				require.Equal(t, 1, times, "%s: run twice, told once", request)
			}
		}
		require.Contains(t, all, `POST /sent?t=1 token-of-it {"id":`)
	})

	sends := func(name, path, query, result string) operatortest.Case {
		c := operatortest.Case{Name: name, Deliveries: ledger, Outputs: []string{},
			Inputs: []operatortest.Input{{As: "alerts", Query: query}},
			Secrets: map[string]secret.Value{"TOKEN": secret.New("TOKEN", "token-of-it", []string{"http://*"}),
				"URL": secret.New("URL", server.URL+path+"#sixteen-characters", []string{"http://*"}),
				"BAD": secret.New("BAD", "no url at all", []string{"http://*"})},
			Config: map[string]any{"routes": []any{map[string]any{"to": []any{"r"}}}, "receivers": map[string]any{
				"r": map[string]any{"url": map[string]any{"secret": "URL"},
					"headers": map[string]any{"X-Token": map[string]any{"secret": "TOKEN"}}}}},
			Check: func(t *testing.T, r operators.Result) { require.JSONEq(t, result, string(r.Result)) }}
		return c
	}
	// The second run of a case tells nobody again, so the first one's result is that of the Check.
	fails := func(c operatortest.Case, message string) operatortest.Case {
		c.Fails, c.Permanent, c.Check = message, true, nil
		return c
	}
	refused := func(message string, change func(receiver, route, config map[string]any)) operatortest.Case {
		c := sends(message, "/", one("x"), "{}")
		c.Refused = message
		change(c.Config["receivers"].(map[string]any)["r"].(map[string]any),
			c.Config["routes"].([]any)[0].(map[string]any), c.Config)
		return c
	}
	broken := sends("a secret that is no URL", "/", one("b"), "{}")
	broken.Config["receivers"].(map[string]any)["r"].(map[string]any)["url"] = map[string]any{"secret": "BAD"}
	empty := sends("no rows", "/", one("e"), `{"alerts": 0, "messages": 0, "told": 0, "delivered": 0}`)
	empty.Inputs[0].Empty = true
	hangs := sends("it is canceled", "/hangs", one("h"), "{}")
	hangs.Endless = true
	elsewhere := sends("elsewhere", "/", one("w"), "{}")
	elsewhere.Deliveries = nil

	operatortest.Run(t, operator(t, "127.0.0.0/8"),
		sends("an alert", "/sent?t=1", one("a"), `{"alerts": 1, "messages": 1, "told": 1, "delivered": 1}`),
		sends("the newest row of each", "/sent?t=2", one("n")+" UNION ALL SELECT 'n', 'k', 'info', 'resolved', "+
			"'2026-01-31', '2026-02-01'", `{"alerts": 1, "messages": 0, "told": 0, "delivered": 0}`),
		sends("what is late", "/sent?t=3", "SELECT *, true AS late FROM ("+one("l")+")",
			`{"alerts": 0, "messages": 0, "told": 0, "delivered": 0}`),
		sends("values and labels", "/sent?t=4", "SELECT *, 'nan'::FLOAT AS value, "+
			"'{\"a\": 1, \"b\": null}' AS labels, NULL AS summary FROM ("+one("v")+")", `{"alerts": 1, "messages": 1, "told": 1, "delivered": 1}`),
		empty, hangs,
		fails(sends("it is refused for good", "/none", one("r"), "{}"), "1 of 1 messages were refused for good"),
		fails(broken, "secret BAD is not a URL to send to"),
		fails(elsewhere, "in the server's own processes only"),
		fails(sends("no such columns", "/", "SELECT 1 AS alert", "{}"), "has no column key, severity, status"),
		fails(sends("a severity", "/", strings.Replace(one("s"), "'error'", "'bad'", 1), "{}"),
			`severity "bad" is none of`),
		fails(sends("a status", "/", strings.Replace(one("s"), "'firing'", "NULL", 1), "{}"),
			"neither firing nor resolved"),
		fails(sends("no time", "/", strings.Replace(one("s"), "DATE '2026-01-31'", "NULL::DATE", 1), "{}"),
			"evaluated_at is no time"),
		fails(sends("labels", "/", "SELECT *, '[1]' AS labels FROM ("+one("s")+")", "{}"), "labels are no JSON object"),
		fails(sends("labels of another type", "/", "SELECT *, 1 AS labels FROM ("+one("s")+")", "{}"),
			"column labels of the input"),

		refused("there is no receiver", func(_, route, _ map[string]any) { route["to"] = []any{"q"} }),
		refused("no duration", func(_, route, _ map[string]any) { route["repeat_every"] = "0s" }),
		refused("leave `sign` out", func(r, _, _ map[string]any) { r["sign"] = map[string]any{"secret": "TOKEN"} }),
		refused("the key is written out", func(r, _, _ map[string]any) {
			r["url"], r["sign"] = "https://e.org", "key"
		}),
		refused("without a password", func(r, _, _ map[string]any) { r["url"] = "https://me:pw@e.org" }),
		refused("is set by the operator", func(r, _, _ map[string]any) { r["headers"] = map[string]any{"Host": "x"} }),
		refused("the value of X-A", func(r, _, _ map[string]any) { r["headers"] = map[string]any{"X-A": "a\nb"} }),
		refused("is no time such as", func(_, _, c map[string]any) {
			c["mute"] = []any{map[string]any{"until": "soon"}}
		}),
		refused("severity", func(_, route, _ map[string]any) { route["severity"] = "worst" }),
	)
}

func TestPrivateAddressesAreNotReached(t *testing.T) {
	t.Parallel()
	reached := func(http.ResponseWriter, *http.Request) { t.Error("it was reached") }
	server := httptest.NewServer(http.HandlerFunc(reached))
	t.Cleanup(server.Close)
	operatortest.Run(t, operator(t), operatortest.Case{Name: "loopback", Deliveries: running(t), Outputs: []string{},
		Config: map[string]any{"receivers": map[string]any{"r": map[string]any{"url": server.URL}},
			"routes": []any{map[string]any{"to": []any{"r"}}}},
		Inputs: []operatortest.Input{{As: "alerts", Query: one("a")}}, Fails: "may not be reached", Permanent: true})
}

func TestJobsThatCouldTellTwice(t *testing.T) {
	t.Parallel()
	spec := operator(t).Spec()
	good := dag.Job{Inputs: make([]dag.Input, 1), MaxConcurrency: 1, Config: map[string]any{
		"receivers": map[string]any{"r": map[string]any{"url": "https://e.org"}},
		"routes":    []any{map[string]any{"to": []any{"r"}}}}}
	require.Nil(t, spec.CheckJob(&good))
	for want, change := range map[string]func(*dag.Job){
		"outputs: 0":         func(j *dag.Job) { j.Outputs = []string{"out"} },
		"reads one input":    func(j *dag.Job) { j.Inputs = make([]dag.Input, 2) },
		"follows no cursor":  func(j *dag.Job) { j.PartitionBy.Kind = dag.ByCursor },
		"max_concurrency: 1": func(j *dag.Job) { j.MaxConcurrency = 0 },
	} {
		job := good
		change(&job)
		fault := spec.CheckJob(&job)
		if fault == nil {
			fault = spec.CheckPartitions(&job)
		}
		require.NotNil(t, fault, want)
		require.Contains(t, fault.Message, want)
	}
}

// Secrets go to the hosts of the receivers that name them; that of a secret URL is known when it is read.
func TestWhereSecretsGo(t *testing.T) {
	t.Parallel()
	config := map[string]any{"routes": []any{}, "receivers": map[string]any{
		"a": map[string]any{"url": "https://a.example/x",
			"headers": map[string]any{"T": map[string]any{"secret": "S"}}},
		"b": map[string]any{"url": map[string]any{"secret": "U"}},
		"c": map[string]any{"url": "https://c.example", "sign": map[string]any{"secret": "S"}}}}
	spec := operator(t).Spec()
	require.Equal(t, []string{"https://a.example/x", "https://c.example"}, spec.SecretTo(config, "S"))
	require.Equal(t, []string{""}, spec.SecretTo(config, "U"))
}
