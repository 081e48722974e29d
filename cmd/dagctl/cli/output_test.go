package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableAlignsAndYAMLKeepsOrder(t *testing.T) {
	t.Parallel()
	out, err := yamlFromJSON([]byte(`{"b": "1", "a": [{"x": null, "on": true}], "s": "yes"}`))
	require.NoError(t, err)
	require.Equal(t, "b: \"1\"\na:\n    - x: null\n      \"on\": true\ns: \"yes\"\n", string(out))
}
