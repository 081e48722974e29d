package webhook_test

import (
	"context"
	"fmt"
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
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/webhook"
)

func TestMain(m *testing.M) { dispatchertest.Main(m) }

func operator(t *testing.T, allowed ...string) operators.Operator {
	t.Helper()
	op, err := webhook.New(operators.Options{AllowedAddresses: allowed})
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

func TestConforms(t *testing.T) {
	t.Parallel()
	ledger := running(t)
	var mu sync.Mutex
	got := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got[r.Method+" "+r.URL.Path+" "+string(body)]++
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
		for request, times := range got {
			if !strings.Contains(request, "/hangs") {
				require.Equal(t, 1, times, "%s: run twice, delivered once", request)
			}
		}
		require.Contains(t, got, `PUT /sent {"id":7,"v":"n"}`)
		require.Contains(t, got, `POST /where {"v":"n"}`)
	})

	// A case writes when it was delivered, which no query can know: the columns that are certain are compared in Check.
	in := func(from, to int) operatortest.Input {
		query := fmt.Sprintf("SELECT range AS id, 'n' AS v FROM range(%d, %d)", from, to)
		return operatortest.Input{As: "rows", Query: query}
	}
	sends := func(name, path string, in operatortest.Input, result string, more ...any) operatortest.Case {
		c := operatortest.Case{Name: name, Config: map[string]any{"url": server.URL + path, "key": []any{"id"}},
			Inputs: []operatortest.Input{in}, Deliveries: ledger,
			Secrets: map[string]secret.Value{"KEY": secret.New("KEY", "sixteen-characters", []string{"http://*"})},
			Check:   func(t *testing.T, r operators.Result) { require.JSONEq(t, result, string(r.Result)) }}
		for i := 0; i < len(more); i += 2 {
			c.Config[more[i].(string)] = more[i+1]
		}
		return c
	}
	fails := func(c operatortest.Case, permanent bool, message string) operatortest.Case {
		c.Fails, c.Permanent, c.Check = message, permanent, nil
		return c
	}
	refused := func(message string, more ...any) operatortest.Case {
		c := sends(message, "/", in(0, 1), "{}", more...)
		c.Refused = message
		return c
	}

	filtered := in(20, 30)
	filtered.Where = []dag.Condition{{Column: "id", Values: []any{int64(22)}}}
	empty := in(0, 1)
	empty.Empty = true
	two := sends("", "/", in(50, 51), "{}")
	two.Name, two.Inputs[0].Query = "a row without its key", "SELECT NULL::INT AS id"
	hangs := sends("it is canceled", "/hangs", in(60, 61), "{}")
	hangs.Endless = true
	elsewhere := sends("elsewhere", "/", in(70, 71), "{}")
	elsewhere.Deliveries = nil

	operatortest.Run(t, operator(t, "127.0.0.0/8"),
		sends("rows", "/sent", in(1, 4), `{"delivered": 3}`),
		sends("signed", "/sent", in(7, 8), `{"delivered": 1}`, "method", "PUT", "sign",
			map[string]any{"secret": "KEY"}),
		sends("some columns of rows that where selects", "/where", filtered, `{"delivered": 1}`, "columns", []any{"v"}),
		sends("what is refused for good", "/none", in(40, 42), `{"delivered": 0, "failed": 2}`),
		sends("no rows", "/sent", empty, `{"delivered": 0}`),
		fails(two, true, "row 1 has no id"),
		fails(sends("no such column", "/", in(50, 51), "{}", "key", []any{"nope"}), true, `no column "nope"`),
		fails(elsewhere, true, "in the server's own processes only"),
		hangs,
		refused("there is no {day}", "url", server.URL+"/{day}"),
		refused("the value of X-A", "headers", map[string]any{"X-A": "a\nb"}),
		refused("the key is written out", "sign", "sixteen-characters"),
		refused("headers", "headers", map[string]any{"Idempotency-Key": "mine"}),
		refused("url", "url", "ftp://example.com"),
		refused("without a password", "url", "http://me:pw@example.com"),
		refused("method", "method", "DELETE"),
		refused("key", "key", []any{}),
		refused("concurrency", "concurrency", 65),
	)
}

func TestPrivateAddressesAreNotReached(t *testing.T) {
	t.Parallel()
	reached := func(http.ResponseWriter, *http.Request) { t.Error("it was reached") }
	server := httptest.NewServer(http.HandlerFunc(reached))
	t.Cleanup(server.Close)
	operatortest.Run(t, operator(t), operatortest.Case{Name: "loopback", Deliveries: running(t),
		Config: map[string]any{"url": server.URL, "key": []any{"id"}},
		Inputs: []operatortest.Input{{As: "rows", Query: "SELECT 1 AS id"}},
		Fails:  "may not be reached", Permanent: true})
}

func TestJobsThatWouldLoseDeliveries(t *testing.T) {
	t.Parallel()
	spec := operator(t).Spec()
	good := dag.Job{Operator: "webhook_deliver", Config: map[string]any{"url": "https://e.org", "key": []any{"id"}},
		Inputs: make([]dag.Input, 1), Outputs: []string{"out"}, UpdateStrategy: dag.Append, UniqueKey: []string{"key"}}
	require.Nil(t, spec.CheckJob(&good))
	for want, change := range map[string]func(*dag.Job){
		"one output":       func(j *dag.Job) { j.Outputs = nil },
		"reads one input":  func(j *dag.Job) { j.Inputs = make([]dag.Input, 2) },
		"unique_key: key":  func(j *dag.Job) { j.UniqueKey = []string{"id"} },
		"update_strategy":  func(j *dag.Job) { j.UpdateStrategy = dag.Replace },
		"no segments":      func(j *dag.Job) { j.PartitionBy.Kind = dag.ByCursor },
		"it must be a URL": func(j *dag.Job) { j.Config = map[string]any{"url": "https://", "key": []any{"id"}} },
		"is set by the operator": func(j *dag.Job) {
			j.Config = map[string]any{"url": "https://e.org", "key": []any{"id"},
				"headers": map[string]any{"host": "x"}}
		},
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
