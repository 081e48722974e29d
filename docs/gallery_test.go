package docs_test

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGalleryShowsWhatThereIs compares docs/gallery.md with the templates, the examples and the catalogue of operators.
func TestGalleryShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	text := pageAt(t, "docs/gallery.md").text
	first := regexp.MustCompile("(?m)^\\| \\[?`?([a-z][a-z0-9_-]*)[`\\]]")
	listed := func(section string) (names []string) {
		_, rows, found := strings.Cut(text, "\n## "+section+"\n")
		require.True(t, found, section)
		rows, _, _ = strings.Cut(rows, "\n## ")
		for _, match := range first.FindAllStringSubmatch(rows, -1) {
			names = append(names, match[1])
		}
		return names
	}
	folders := func(pattern string) (names []string) {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		for _, file := range files {
			names = append(names, filepath.Base(filepath.Dir(file)))
		}
		return names
	}

	require.ElementsMatch(t, folders("cmd/dagctl/dagfile/templates/*/README.md"), listed("Templates"))
	require.ElementsMatch(t, slices.Concat(folders("examples/*/dag.yaml"), folders("examples/*/main.go")),
		listed("Examples"))
	require.ElementsMatch(t, slices.Collect(maps.Keys(catalog(t).Operators)), listed("Operators"))
}
