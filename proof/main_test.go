package proof_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Stage()
	inside.Main()
	bootstrap()
	os.Exit(m.Run())
}

// engines returns engines for the time of a test.
func engines(t testing.TB) *engine.Engines {
	t.Helper()
	e, err := engine.New(engine.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}
