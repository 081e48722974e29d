package builtin_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
)

// An operator that needs the server's database is not among those of a worker, by default or by name.
func TestAWorkerOffersNoOperatorOfTheServer(t *testing.T) {
	t.Parallel()
	registry, err := standard.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	require.Contains(t, registry.Names(), "webhook_deliver")
	work, err := worker.New(worker.Config{Log: slog.New(slog.DiscardHandler), ScratchDir: t.TempDir()})
	require.NoError(t, err)
	require.NoError(t, builtin.Register(work, builtin.Options{Registry: registry, ScratchDir: t.TempDir()}))
	require.ErrorContains(t, builtin.Register(work, builtin.Options{Registry: registry,
		Only: []string{"webhook_deliver"}}), "in the server's own processes only")
}
