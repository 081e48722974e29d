package dispatcher_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// spanCollector receives traces by OTLP over HTTP, with the codec of the OpenTelemetry collector.
type spanCollector struct {
	mu    sync.Mutex
	spans []ptrace.Span
	raw   strings.Builder
}

func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	request := ptraceotlp.NewExportRequest()
	if err != nil || r.URL.Path != "/v1/traces" || request.UnmarshalProto(body) != nil {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(body)
	for _, resource := range request.Traces().ResourceSpans().All() {
		for _, scope := range resource.ScopeSpans().All() {
			for _, span := range scope.Spans().All() {
				c.spans = append(c.spans, span)
			}
		}
	}
	answer, _ := ptraceotlp.NewExportResponse().MarshalProto()
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

// traced is a dispatcher that sends its traces to the spanCollector; flush waits for them.
func traced(w *dispatchertest.World, c *spanCollector) (d *service.Service, flush func()) {
	w.T.Helper()
	server := httptest.NewServer(c)
	w.T.Cleanup(server.Close)
	exporter, err := otlptracehttp.New(w.T.Context(), otlptracehttp.WithEndpointURL(server.URL+"/v1/traces"))
	require.NoError(w.T, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	w.T.Cleanup(func() { require.NoError(w.T, provider.Shutdown(context.Background())) })
	d = w.Dispatcher("traced", func(config *service.Config) { config.Tracer = provider.Tracer("test") })
	return d, func() { require.NoError(w.T, provider.ForceFlush(w.T.Context())) }
}

// line is a span with those above it, the root first: "accept/raw claim/raw run/raw ...".
func (c *spanCollector) line(t *testing.T, span ptrace.Span) string {
	t.Helper()
	byID := map[string]ptrace.Span{}
	for _, s := range c.spans {
		byID[s.SpanID().String()] = s
	}
	var line []string
	for ok := true; ok; span, ok = byID[span.ParentSpanID().String()] {
		job, _ := span.Attributes().Get("dagctl.job")
		line = append([]string{span.Name() + "/" + job.Str()}, line...)
	}
	return strings.Join(line, " ")
}

const threeSteps = `
name: chain
jobs:
` + dispatchertest.Raw + `  - name: once
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: once }
  - name: twice
    operator: hook
    inputs: [{ from: { job: once } }]
    execution_strategy: PerPartition
    config: { tag: twice }
publish:
  chain_twice: { from: { job: twice } }
`

// From the source to the last completion, over two hops, an event is one trace, and every step is the child of the
// step before.
func TestOneTraceOverTwoHops(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	c := &spanCollector{}
	var flush func()
	w.D, flush = traced(w, c)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a secret row")
	w.Serve(threeSteps)
	flush()

	c.mu.Lock()
	defer c.mu.Unlock()
	hop := func(job string) string { return "route/" + job + " claim/" + job + " run/" + job + " complete/" + job }
	want := "accept/raw claim/raw run/raw complete/raw publish/raw " + hop("once") + " publish/once " + hop("twice") +
		" publish/twice"
	var found []string
	for _, span := range c.spans {
		if span.Name() != "publish" {
			continue
		}
		if line := c.line(t, span); strings.HasSuffix(line, "publish/twice") {
			found = append(found, line)
			for _, other := range c.spans {
				if other.TraceID() == span.TraceID() {
					require.LessOrEqual(t, other.StartTimestamp(), other.EndTimestamp(), other.Name())
					org, _ := other.Attributes().Get("dagctl.org")
					require.Equal(t, "acme", org.Str())
				}
			}
		}
	}
	require.Equal(t, []string{want}, found)
	require.NotContains(t, c.raw.String(), "secret", "no row leaves in a trace")
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE metadata->>'traceparent' IS NULL`))
}

// A request's own trace continues in the tasks that it creates, and the caller's own metadata stays unchanged.
func TestARequestsTraceGoesOn(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	c := &spanCollector{}
	var flush func()
	w.D, flush = traced(w, c)
	w.Serve(notesDAG)
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	made, err := w.D.Enqueue(tasks.WithParentSpan(t.Context(), "00-"+trace+"-"+span+"-01"), w.Caller, "notes", "note",
		[]dispatcher.EnqueueItem{{Payload: json.RawMessage(`{}`), Metadata: json.RawMessage(`{"ticket": "T-1"}`)}})
	require.NoError(t, err)
	w.Settle()
	flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, s := range c.spans {
		if s.TraceID().String() == trace {
			names = append(names, s.Name())
		}
	}
	require.ElementsMatch(t, []string{"accept", "claim", "run", "complete"}, names)
	var metadata map[string]string
	w.Row(`SELECT metadata FROM tasks WHERE id = $1`, made[0].ID)(&metadata)
	require.Equal(t, "T-1", metadata["ticket"])
	require.Contains(t, metadata["traceparent"], "00-"+trace+"-")
}

// Without a tracer, nothing about traces is stored.
func TestNoTracerStoresNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	w.Work()
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE payload ? 'traces'`))
	require.Equal(t, 1, w.Count(`SELECT FROM outbox`))
	w.Settle()
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE metadata <> '{}'`))
}

const notesDAG = `
name: notes
jobs:
  - name: note
    operator: act
    source: { kind: manual }
    outputs: 0
    config: { tag: note }
`
