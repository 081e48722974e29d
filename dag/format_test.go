package dag

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/format/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		formatted, problems := Format(text)
		require.Empty(t, problems.Pretty(), file)
		golden(t, strings.TrimSuffix(file, ".yaml")+".txt", string(formatted))

		again, problems := Format(formatted)
		require.Empty(t, problems)
		require.Equal(t, string(formatted), string(again), "formatting twice is formatting once")
	}
}

func TestFormatRefuses(t *testing.T) {
	t.Parallel()
	_, problems := Format([]byte("name: a\nname: b\n"))
	require.Equal(t, "dag.yaml:2:1: field \"name\" appears twice; the first is on line 1", problems.Error())
	_, problems = Format([]byte("name: [a\n"))
	require.Len(t, problems, 1)
	_, problems = Format(nil)
	require.Contains(t, problems.Error(), "the file is empty")
}

// A field without a value, in braces, is one that says null: also where it is what follows a comma in unquoted text.
func TestFormatKeepsFieldsWithoutValues(t *testing.T) {
	t.Parallel()
	const text = "name: a\npublish:\n  x: {description: One, and two, from: {job: b, output: }}\n"
	formatted, problems := Format([]byte(text))
	require.Empty(t, problems.Pretty())
	require.Equal(t, "name: a\n\npublish:\n  x: {from: {job: b, output: null}, description: One, and two: null}\n",
		string(formatted))
}

func TestFormatLineEnds(t *testing.T) {
	t.Parallel()
	formatted, problems := Format([]byte("\ufeffjobs: []\r\nname: a\r\n"))
	require.Empty(t, problems)
	require.Equal(t, "name: a\njobs: []\n", string(formatted))
}
