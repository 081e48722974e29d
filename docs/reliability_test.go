package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPromisesNameTheirTests looks up every test that docs/reliability.md names, so that no guarantee outlives its
// test.
func TestPromisesNameTheirTests(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile("`((?:[a-z]+/)*[a-z]+)\\.(Test\\w+)`")
	named := name.FindAllStringSubmatch(pageAt(t, "docs/reliability.md").text, -1)
	require.NotEmpty(t, named)
	sources := map[string]string{} // by package folder
	for _, name := range named {
		folder := name[1]
		if sources[folder] == "" {
			files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(folder), "*_test.go"))
			require.NoError(t, err)
			for _, file := range files {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				sources[folder] += string(text)
			}
		}
		require.Contains(t, sources[folder], "\nfunc "+name[2]+"(t *testing.T)", "docs/reliability.md names %s.%s",
			folder, name[2])
	}
}
