package dag_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

// A short file stays short, however often it refers to a variable.
func TestVariablesDoNotMakeAFileHuge(t *testing.T) {
	t.Parallel()
	for value, problem := range map[string]string{
		strings.Repeat("x", 1_000_000): `the value of variable "a" has 1000000 bytes; at most 4096 are allowed`,
		strings.Repeat("x", 4096):      "the values of variables add more than 2097152 bytes to the file",
	} {
		text := "name: bomb\nvars: {a: {default: " + value + "}}\ndescription: \"" +
			strings.Repeat("${var.a}", 50_000) + "\"\njobs: []\n"
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text)}, dag.Catalog{})
		var found []string
		for _, p := range problems {
			found = append(found, p.Message)
			require.Less(t, len(p.Message), 1000)
		}
		require.Contains(t, found, problem)
	}
}
