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

func TestArgumentsForShells(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/srv/ann/.dagctl/worker-token": "/srv/ann/.dagctl/worker-token",
		"/my data/token":                "'/my data/token'",
		"od d/é dags":                   "'od d/é dags'",
		"-x":                            "./-x",
		"it's":                          `'it'\''s'`,
		"$(rm -rf .)":                   "'$(rm -rf .)'",
	} {
		require.Equal(t, want, Argument(path))
	}
}
