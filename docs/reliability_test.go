package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPromisesNameTheirTests looks up every test that docs/reliability.md and docs/sources.md name, with its part where
// one is named, so that no promise outlives its test.
func TestPromisesNameTheirTests(t *testing.T) {
	t.Parallel()
	sources := map[string]string{} // by package folder
	for _, page := range []string{"docs/reliability.md", "docs/sources.md"} {
		requireTests(t, page, sources)
	}
}

func requireTests(t *testing.T, page string, sources map[string]string) {
	t.Helper()
	name := regexp.MustCompile("`((?:[a-z]+/)*[a-z]+)\\.(Test\\w+)`(?:, \"([^\"]+)\")?")
	named := name.FindAllStringSubmatch(pageAt(t, page).text, -1)
	require.NotEmpty(t, named, page)
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
		require.Contains(t, sources[folder], "\nfunc "+name[2]+"(t *testing.T)", "%s names %s.%s", page, folder,
			name[2])
		if name[3] != "" {
			require.Contains(t, sources[folder], `t.Run("`+name[3]+`", `, "%s names a part of %s", page, name[2])
		}
	}
}
