package server

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"

	otelattribute "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/dagctl/dagctl/internal/fault"
)

// newTracer returns a tracer that exports by OTLP if the variables of OpenTelemetry ask for it, and a nil tracer
// otherwise. Exporter, sampler and batches read their variables themselves. stop sends the remaining spans.
func newTracer(ctx context.Context, worker string) (tracer trace.Tracer, stop func(context.Context) error, err error) {
	stop = func(context.Context) error { return nil }
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	switch kind := os.Getenv("OTEL_TRACES_EXPORTER"); {
	case os.Getenv("OTEL_SDK_DISABLED") == "true", kind == "none", kind == "" && endpoint == "":
		return nil, stop, nil
	case kind != "" && kind != "otlp":
		return nil, stop, fault.New(fault.Invalid, "OTEL_TRACES_EXPORTER %q is not available", kind).
			WithHint("use otlp, or none")
	}

	var exporter sdktrace.SpanExporter
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf")
	switch protocol {
	case "http/protobuf":
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		return nil, stop, fault.New(fault.Invalid, "OTEL_EXPORTER_OTLP_PROTOCOL %q is not available", protocol).
			WithHint("use http/protobuf or grpc")
	}
	if err != nil {
		return nil, stop, fmt.Errorf("export traces: %w", err)
	}

	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		otelattribute.String("service.name", "dagctl"), otelattribute.String("service.version", cli.Version()),
		otelattribute.String("service.instance.id", worker),
	), resource.WithFromEnv())
	if err != nil {
		return nil, stop, fault.New(fault.Invalid, "OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}

	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return provider.Tracer("github.com/dagctl/dagctl"), provider.Shutdown, nil
}
