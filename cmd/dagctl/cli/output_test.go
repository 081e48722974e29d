package cli

import (
	"strings"
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

// A character of two columns counts as two, so that the columns after it stay below each other.
func TestTableAlignsWideCharacters(t *testing.T) {
	table := Table{Header: []string{"NAME", "ROWS"}}
	table.Add("日本語 🚀", "1")
	table.Add("größe", "12")
	var b strings.Builder
	table.Write(&b)
	require.Equal(t, "NAME       ROWS\n日本語 🚀     1\ngröße        12\n", b.String())
	require.Equal(t, "日本…", OneLine("日本語です", 6))
	require.Equal(t, "e\u0301", OneLine("e\u0301", 1))
}
