package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// Not parallel: the exporter reads the process's own environment.
func TestTracesAreAskedForByTheStandardVariables(t *testing.T) {
	for name, c := range map[string]struct {
		env     map[string]string
		on      bool
		problem string
	}{
		"nothing":     {},
		"an endpoint": {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, on: true},
		"for traces alone": {env: map[string]string{
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, on: true},
		"grpc": {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, on: true},
		"disabled": {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
			"OTEL_SDK_DISABLED": "true"}},
		"none": {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
			"OTEL_TRACES_EXPORTER": "none"}},
		"another exporter": {env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, problem: "zipkin"},
		"another protocol": {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, problem: "http/json"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
				"OTEL_TRACES_EXPORTER",
				"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_SDK_DISABLED"} {
				t.Setenv(key, c.env[key])
			}
			tracer, stop, err := newTracer(t.Context(), "worker")
			require.NoError(t, stop(t.Context()))
			if c.problem != "" {
				require.True(t, fault.Is(err, fault.Invalid), "%v", err)
				require.ErrorContains(t, err, c.problem)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.on, tracer != nil)
		})
	}
}
