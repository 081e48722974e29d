package python_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/conformance/conformancetest"
)

// The suite that any SDK runs against itself, with a server that loses, delays and refuses.
func TestItConforms(t *testing.T) {
	t.Parallel()
	report := conformancetest.Run(t, func() conformance.Options {
		return conformance.Options{Command: []string{"env", "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1", "python3",
			"-u", "testdata/conforms.py"}}
	})
	require.GreaterOrEqual(t, report.Passed, 2*len(conformance.Scenarios()))
}
