package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
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

// TestEveryOperatorHasAnExample looks for the operators of the catalogue in the DAGs below examples/, whose READMEs the
// tests there run.
func TestEveryOperatorHasAnExample(t *testing.T) {
	t.Parallel()
	cat := catalog(t)
	used := map[string]bool{}
	examples := filepath.Join(root, "examples")
	require.NoError(t, filepath.WalkDir(examples, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(name) != "dag.yaml" {
			return err
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		doc, problems := dag.Parse(dag.File{Name: name, Text: text, Files: os.DirFS(filepath.Dir(name))}, cat)
		require.Empty(t, problems)
		for _, job := range doc.Jobs {
			used[job.Operator] = true
		}
		return nil
	}))

	for _, operator := range slices.Sorted(maps.Keys(cat.Operators)) {
		require.Contains(t, used, operator, "no DAG below examples/ uses it")
	}
}
