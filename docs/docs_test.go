// Package docs_test checks the documentation against the product: it parses and runs examples, and looks up names.
//
// The first line of a fenced block says what the block is:
//
//	yaml                    a whole DAG file
//	yaml jobs               jobs of a DAG file
//	yaml top                top-level fields of a DAG file
//	console run             commands ("$ ...") that run in order, in one folder per page, and parts of their output
//	console run page        a command that prints the address of a page, which is opened: it draws a line chart
//	console run background  a `dagctl dev` that keeps running
//	csv PATH, sql PATH      files beside the page's DAG files, which name them
//
// Blocks of any other sort are only for reading.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

func TestMain(m *testing.M) { os.Exit(processtest.Main(m)) }

// root is the repository.
const root = ".."

// page is a Markdown file.
type page struct {
	path   string // from the repository's root
	text   string
	blocks []block
}

// block is a fenced block of a page.
type block struct {
	info, text string
	line       int
}

func pages(t *testing.T) []page {
	t.Helper()
	var found []page
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "examples/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			path, err := filepath.Rel(root, file)
			require.NoError(t, err)
			p := page{path: filepath.ToSlash(path), text: string(text)}
			p.blocks = blocksOf(t, p)
			found = append(found, p)
		}
	}
	return found
}

func pageAt(t *testing.T, path string) page {
	t.Helper()
	for _, p := range pages(t) {
		if p.path == path {
			return p
		}
	}
	require.Fail(t, "there is no page "+path)
	return page{}
}

func blocksOf(t *testing.T, p page) []block {
	t.Helper()
	var blocks []block
	var open *block
	for i, line := range strings.Split(p.text, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open == nil:
			open = &block{info: fence, line: i + 1}
		case isFence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	require.Nil(t, open, "%s: a block is not closed", p.path)
	return blocks
}

// stub has the jobs that fragments of DAG files refer to.
const stub = `
- { name: landing, operator: file_source, source: { kind: poll, every: 10s }, partition_by: { time: day },
    config: { path: d, pattern: "{date}.csv", format: csv } }
- { name: split, operator: command, source: { kind: manual }, partition_by: { time: day }, outputs: [good, rejects],
    config: { argv: [split] } }
`

func TestYAMLBlocksAreValid(t *testing.T) {
	t.Parallel()
	cat := catalog(t)
	for _, p := range pages(t) {
		if p.path == "docs/config.md" {
			continue // a server's config, which a test of cmd/dagctl compares with the code
		}
		for _, b := range p.blocks {
			document, ok := asDocument(b)
			if b.info == "yaml server" {
				continue // settings, which a test of cmd/dagctl/server loads
			}
			if !ok {
				require.NotEqual(t, "yaml", strings.Fields(b.info + " -")[0], "%s:%d: yaml of an unknown sort", p.path,
					b.line)
				continue
			}
			_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(document), Files: filesOf(p)}, cat)
			require.Empty(t, problems, "%s:%d\n%s", p.path, b.line, document)
		}
	}
}

// filesOf returns the files that a page shows, which its DAG files may name.
func filesOf(p page) fs.FS {
	files := map[string][]byte{}
	for _, b := range p.blocks {
		if kind, path, named := strings.Cut(b.info, " "); named && (kind == "csv" || kind == "sql") {
			files[path] = []byte(b.text)
		}
	}
	return dag.InMemory(files)
}

func asDocument(b block) (string, bool) {
	switch b.info {
	case "yaml", "yaml shop.yaml":
		return b.text, true
	case "yaml jobs":
		return "name: example\njobs:" + indent(stub+b.text), true
	case "yaml top":
		return "name: example\njobs:" + indent(stub) + b.text, true
	}
	return "", false
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") + "\n" }

func catalog(t *testing.T) dag.Catalog {
	t.Helper()
	builtin, err := standard.New(operators.Options{Engines: enginetest.Engines(),
		Command: operators.CommandOptions{Every: true}})
	require.NoError(t, err)
	return builtin.Catalog(nil)
}

var (
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	path = regexp.MustCompile("`((?:[a-z_0-9-]+/)+[a-z_0-9.]*|architecture_test\\.go)`")
)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	headings := regexp.MustCompile(`(?m)^#+ (.*)$`)
	for _, p := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(p.text, -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := filepath.Join(root, filepath.Dir(p.path), filepath.FromSlash(target))
			if target == "" {
				file = filepath.Join(root, p.path)
			}
			_, err := os.Stat(file)
			require.NoError(t, err, "%s: %s", p.path, match[1])
			if anchor == "" {
				continue
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var anchors []string
			for _, h := range headings.FindAllStringSubmatch(string(text), -1) {
				anchors = append(anchors, slug(h[1]))
			}
			require.Contains(t, anchors, anchor, "%s: %s", p.path, match[1])
		}
	}
}

// slug is the anchor by which GitHub links to a heading.
func slug(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}

// TestNamedFilesExist looks up every file and folder that the pages for engineers name.
func TestNamedFilesExist(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"docs/architecture.md", "docs/state_machines.md", "CONTRIBUTING.md"} {
		found := path.FindAllStringSubmatch(pageAt(t, name).text, -1)
		require.NotEmpty(t, found, name)
		for _, match := range found {
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(match[1])))
			require.NoError(t, err, name)
		}
	}
}

// TestTheWayOfOneEventIsThatOfTheCode checks that the page follows an event through the files that the package comment
// of dispatcher names, in that order.
func TestTheWayOfOneEventIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "dispatcher", "dispatcher.go"))
	require.NoError(t, err)
	comment, _, _ := strings.Cut(string(text), "\npackage ")
	_, way, found := strings.Cut(pageAt(t, "docs/architecture.md").text, "## The way of one event")
	require.True(t, found)
	files := regexp.MustCompile(`[a-z_]+\.go`).FindAllString(comment, -1)
	require.GreaterOrEqual(t, len(files), 5)
	for _, file := range files {
		at := strings.Index(way, "dispatcher/"+file)
		require.GreaterOrEqual(t, at, 0, "%s is missing, or comes too late", file)
		way = way[at:]
	}
}

// TestOperatorFieldsAreThoseOfTheSchemas checks that docs/operators.md has a section for each operator, and a row for
// each field of its config.
func TestOperatorFieldsAreThoseOfTheSchemas(t *testing.T) {
	t.Parallel()
	text := pageAt(t, "docs/operators.md").text
	row := regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+`) \\|")
	for name, spec := range catalog(t).Operators {
		_, section, found := strings.Cut(text, "\n## "+name+"\n")
		require.True(t, found, name)
		section, _, _ = strings.Cut(section, "\n## ")
		documented := []string{}
		for _, match := range row.FindAllStringSubmatch(section, -1) {
			for _, field := range strings.Split(match[1], ", ") {
				documented = append(documented, strings.Trim(field, "`"))
			}
		}
		require.ElementsMatch(t, properties(t, spec.ConfigSchema), documented, name)
	}
}
