package dispatcher

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// tracing follows an event over tasks: accept, or route, makes a task; claim, run and complete are its attempt; publish is
// the next event, which route goes on from. The context travels as a W3C traceparent in what is stored anyway: in the
// metadata of tasks and in the payload of outbox rows. Without a tracer nothing is stored and nothing is done. Spans name
// orgs, DAGs, jobs, tasks and partitions, and never an error, a value or a statement.
type tracing struct {
	tracer trace.Tracer // nil: off
}

// traceparent is the key of the context in a task's metadata.
const traceparent = "traceparent"

var w3c propagation.TraceContext

func encodeTrace(span trace.Span) string {
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpan(context.Background(), span), carrier)
	return carrier[traceparent]
}

// under is ctx with the span that a traceparent names, if it names one.
func under(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return w3c.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

func aboutJob(job *registry.Job, partition string) trace.SpanStartEventOption {
	attributes := []attribute.KeyValue{attribute.String("dagctl.org", job.OrgSlug), attribute.String("dagctl.dag", job.DAG), attribute.String("dagctl.job", job.Name)}
	if partition != "" {
		attributes = append(attributes, attribute.String("dagctl.partition", partition))
	}
	return trace.WithAttributes(attributes...)
}

func aboutAttempt(span trace.Span, t claimed) {
	span.SetAttributes(attribute.String("dagctl.task", t.TaskID.String()), attribute.Int("dagctl.attempt", t.Attempt))
}

// made begins the spans of tasks that are about to be inserted, and writes each one's context into its metadata: route where
// an event calls for it, accept where a request, a source or a clock does.
func (t tracing) made(ctx context.Context, wanted []newTask) []trace.Span {
	if t.tracer == nil {
		return nil
	}
	spans := make([]trace.Span, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		name, parent := "accept", under(ctx, w.trace)
		if w.trace != "" {
			name = "route"
		}
		metadata := map[string]json.RawMessage{}
		if len(w.metadata) > 0 && json.Unmarshal(w.metadata, &metadata) != nil {
			metadata = map[string]json.RawMessage{}
		}
		if metadata == nil { // null
			metadata = map[string]json.RawMessage{}
		}
		var given string
		if json.Unmarshal(metadata[traceparent], &given) == nil { // by who asked for it
			parent = under(parent, given)
		}
		_, spans[i] = t.tracer.Start(parent, name, aboutJob(w.job, w.partition), trace.WithAttributes(attribute.String("dagctl.kind", w.kind)))
		// A string of hexadecimal digits and dashes: neither of these can fail.
		metadata[traceparent], _ = json.Marshal(encodeTrace(spans[i]))
		w.metadata, _ = json.Marshal(metadata)
	}
	return spans
}

// inserted ends the spans of the tasks that there are now, once they are committed.
func (t tracing) inserted(ctx context.Context, spans []trace.Span, ids []uuid.UUID) {
	for i, span := range spans {
		if ids[i] != uuid.Nil {
			span.SetAttributes(attribute.String("dagctl.task", ids[i].String()))
			pg.AfterCommit(ctx, func() { span.End() })
		}
	}
}

// claimed tells of a committed claim; one whose task was made without a trace begins one.
func (t tracing) claimed(tasks []claimed, began time.Time) {
	if t.tracer == nil {
		return
	}
	for i := range tasks {
		c := &tasks[i]
		_, span := t.tracer.Start(under(context.Background(), c.trace), "claim", trace.WithTimestamp(began), aboutJob(c.job, c.slot))
		aboutAttempt(span, *c)
		c.trace = encodeTrace(span)
		span.End()
	}
}

// step begins a span of an attempt, under which the attempt goes on; what it returns ends it.
func (t tracing) step(ctx context.Context, name string, c *claimed) (context.Context, func(err error)) {
	if t.tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.tracer.Start(under(ctx, c.trace), name, aboutJob(c.job, c.slot))
	aboutAttempt(span, *c)
	c.trace = encodeTrace(span)
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// published tells of a published revision, once it is committed; the event that says so carries what it returns.
func (t tracing) published(ctx context.Context, c claimed, partition string, revision int64) string {
	if t.tracer == nil {
		return ""
	}
	_, span := t.tracer.Start(under(ctx, c.trace), "publish", aboutJob(c.job, partition), trace.WithAttributes(attribute.Int64("dagctl.revision", revision)))
	aboutAttempt(span, c)
	pg.AfterCommit(ctx, func() { span.End() })
	return encodeTrace(span)
}

// rowTraces is the part of an outbox row's payload that carries traces.
type rowTraces struct {
	Traces map[uuid.UUID]string `json:"traces,omitempty"`
}

// tracesOf are the contexts of events by their ids, for an outbox row; nil where there are none.
func tracesOf(events []Event) map[uuid.UUID]string {
	var traces map[uuid.UUID]string
	for _, e := range events {
		if e.trace != "" {
			if traces == nil {
				traces = map[uuid.UUID]string{}
			}
			traces[e.ID] = e.trace
		}
	}
	return traces
}

// traceFindings has what is found follow the events that it is found for: a task that several of them call for goes on in
// the trace of the last.
func traceFindings(findings []finding, h hits) {
	for i := range findings {
		for _, e := range h.events[i] {
			if e.trace != "" {
				findings[i].trace = e.trace
			}
		}
	}
}
