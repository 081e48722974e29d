package dispatcher

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
)

// attemptTraces traces attempts from their claim to the revisions they publish.
type attemptTraces struct{ tasks.Tracing }

func aboutAttempt(span trace.Span, t Claimed) {
	span.SetAttributes(attribute.String("dagctl.task", t.TaskID.String()), attribute.Int("dagctl.attempt", t.Attempt))
}

// claimed traces a committed claim. It begins a trace for a task that was made without one.
func (t attemptTraces) claimed(batch []Claimed, began time.Time) {
	if t.Tracer == nil {
		return
	}
	for i := range batch {
		c := &batch[i]
		_, span := t.Tracer.Start(tasks.WithParentSpan(context.Background(), c.trace), "claim",
			trace.WithTimestamp(began), tasks.JobAttributes(c.Job, c.Slot))
		aboutAttempt(span, *c)
		c.trace = tasks.Traceparent(span)
		span.End()
	}
}

// step begins a span of an attempt, under which the attempt goes on. The returned function ends the span.
func (t attemptTraces) step(ctx context.Context, name string, c *Claimed) (context.Context, func(err error)) {
	if t.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.Tracer.Start(tasks.WithParentSpan(ctx, c.trace), name, tasks.JobAttributes(c.Job, c.Slot))
	aboutAttempt(span, *c)
	c.trace = tasks.Traceparent(span)
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// published traces a published revision after COMMIT, and returns the traceparent for its event.
func (t attemptTraces) published(ctx context.Context, c Claimed, partition string, revision int64) string {
	if t.Tracer == nil {
		return ""
	}
	_, span := t.Tracer.Start(tasks.WithParentSpan(ctx, c.trace), "publish",
		tasks.JobAttributes(c.Job, partition), trace.WithAttributes(attribute.Int64("dagctl.revision", revision)))
	aboutAttempt(span, c)
	pg.AfterCommit(ctx, func() { span.End() })
	return tasks.Traceparent(span)
}

// rowTraces is the part of an outbox row's payload that carries traces.
type rowTraces struct {
	Traces map[uuid.UUID]string `json:"traces,omitempty"`
}

// tracesOf returns the traceparents of events by their ids, for an outbox row. It returns nil if there are none.
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

// traceFindings gives findings the traces of their events. If several events call for one task, it continues the trace
// of the last.
func traceFindings(findings []stale.Finding, h hits) {
	for i := range findings {
		for _, e := range h.events[i] {
			if e.trace != "" {
				findings[i].Trace = e.trace
			}
		}
	}
}
