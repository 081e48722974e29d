package tasks

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Tracing follows an event across tasks: the spans accept and route create a task; claim, run and complete are its
// attempt; publish is the next event, which the next route continues. The context travels as a W3C traceparent in rows
// that exist anyway: in the metadata of tasks and in the payload of outbox rows. Without a tracer, Tracing does nothing
// and stores nothing. Spans name orgs, DAGs, jobs, tasks and partitions, and never an error, a value or a statement.
type Tracing struct {
	Tracer trace.Tracer // nil: off
}

// traceparent is the key of the context in a task's metadata.
const traceparent = "traceparent"

var w3c propagation.TraceContext

// Traceparent returns the W3C traceparent of a span.
func Traceparent(span trace.Span) string {
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpan(context.Background(), span), carrier)
	return carrier[traceparent]
}

// WithParentSpan returns ctx with the span that a traceparent names, or ctx itself if parent is empty.
func WithParentSpan(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return w3c.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

// JobAttributes attaches the org, DAG, job and, if not empty, partition to a span.
func JobAttributes(job *registry.Job, partition string) trace.SpanStartEventOption {
	attributes := []attribute.KeyValue{
		attribute.String("dagctl.org", job.OrgSlug),
		attribute.String("dagctl.dag", job.DAG),
		attribute.String("dagctl.job", job.Name),
	}
	if partition != "" {
		attributes = append(attributes, attribute.String("dagctl.partition", partition))
	}
	return trace.WithAttributes(attributes...)
}

// begin begins the spans of tasks that are about to be inserted, and writes the context of each into its metadata. The
// span is route if an event calls for the task, and accept if a request, a source or a clock does.
func (t Tracing) begin(ctx context.Context, wanted []Request) []trace.Span {
	if t.Tracer == nil {
		return nil
	}

	spans := make([]trace.Span, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		name, parent := "accept", WithParentSpan(ctx, w.Trace)
		if w.Trace != "" {
			name = "route"
		}

		metadata := map[string]json.RawMessage{}
		if len(w.Metadata) > 0 && json.Unmarshal(w.Metadata, &metadata) != nil {
			metadata = map[string]json.RawMessage{}
		}
		if metadata == nil { // null
			metadata = map[string]json.RawMessage{}
		}

		// Whoever asked for the task may have given a parent.
		var given string
		if json.Unmarshal(metadata[traceparent], &given) == nil {
			parent = WithParentSpan(parent, given)
		}

		_, spans[i] = t.Tracer.Start(parent, name, JobAttributes(w.Job, w.Partition),
			trace.WithAttributes(attribute.String("dagctl.kind", string(w.Kind))))
		// The value is a string of hexadecimal digits and dashes: neither call can fail.
		metadata[traceparent], _ = json.Marshal(Traceparent(spans[i]))
		w.Metadata, _ = json.Marshal(metadata)
	}
	return spans
}

// WithoutTrace returns the metadata of a task as whoever asked for it gave it, or nothing if it gave no object.
func WithoutTrace(metadata []byte) json.RawMessage {
	if len(metadata) == 0 || string(metadata) == "{}" { // as most tasks have it
		return nil
	}
	var given map[string]json.RawMessage
	if json.Unmarshal(metadata, &given) != nil {
		return nil
	}
	if _, traced := given[traceparent]; traced {
		delete(given, traceparent)
		metadata, _ = json.Marshal(given) // raw messages that were read
	}
	if len(given) == 0 {
		return nil
	}
	return metadata
}

// end ends the spans of the tasks that were inserted, after their COMMIT.
func (t Tracing) end(ctx context.Context, spans []trace.Span, ids []uuid.UUID) {
	for i, span := range spans {
		if ids[i] != uuid.Nil {
			span.SetAttributes(attribute.String("dagctl.task", ids[i].String()))
			pg.AfterCommit(ctx, func() { span.End() })
		}
	}
}
