package why

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each code has words of its own, and a line in the documentation.
func TestCodesAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	said := map[string]Code{}
	for _, code := range Codes {
		text := sentence(Reason{Code: code, Count: 2, Max: 1})
		require.NotEmpty(t, text)
		require.NotContains(t, said, text, code)
		said[text] = code
		require.Contains(t, string(page), "| `"+string(code)+"` |")
	}
	_, err = json.Marshal(Why{})
	require.NoError(t, err)
}

// codesIn lists the codes of a tree, each as PARENT/CHILD.
func codesIn(reasons []Reason) (codes []string) {
	for _, r := range reasons {
		codes = append(codes, string(r.Code))
		for _, below := range codesIn(r.Because) {
			codes = append(codes, string(r.Code)+"/"+below)
		}
	}
	return codes
}
