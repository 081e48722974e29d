package lsp

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/dag"
)

// folder looks at the open texts together with the DAG files beside them, which nobody has open. They are those below
// the folder that the editor has open; for a text outside of it, those in the folders beside that of the text.
type folder struct {
	group  *dagfile.Group
	beside []string // the paths of DAG files, open or not
}

// published is a dataset of a DAG file.
type published struct {
	dag.Publication
	doc   *dag.Document
	path  string
	lines []string // of the file
}

// looked is what is found in a folder.
type looked struct {
	open     map[string]dagfile.Seen // by URI
	datasets map[string]published    // by name
}

// look looks at the open texts, by URI, and at what is beside them.
func (f *folder) look(roots []string, texts map[string]text, rescan bool) looked {
	var sources []dagfile.Source
	var uris []string
	open := map[string]bool{}
	for uri, t := range texts {
		path, ok := pathOf(uri)
		if !ok {
			path = dagfile.FileName // one that was never saved
		}
		open[path] = true
		uris, sources = append(uris, uri), append(sources, dagfile.Source{Path: path, Text: []byte(t.now)})
	}
	if rescan {
		f.beside = filesBeside(roots, sources)
	}
	for _, path := range f.beside {
		if text, err := os.ReadFile(path); err == nil && !open[path] {
			sources = append(sources, dagfile.Source{Path: path, Text: text})
		}
	}

	found := looked{map[string]dagfile.Seen{}, map[string]published{}}
	for i, seen := range f.group.Look(sources) {
		if i < len(uris) {
			found.open[uris[i]] = seen
		}
		if seen.Doc == nil {
			continue
		}
		lines := linesOf(string(seen.Text))
		for _, p := range seen.Doc.Publish {
			found.datasets[p.Name] = published{p, seen.Doc, seen.Path, lines}
		}
	}
	return found
}

// filesBeside lists the DAG files that belong to open ones.
func filesBeside(roots []string, open []dagfile.Source) (paths []string) {
	for _, src := range open {
		if !filepath.IsAbs(src.Path) {
			continue
		}
		if root := rootOf(roots, src.Path); root != "" {
			folders, _ := dagfile.Folders(root) // what cannot be read is not known
			for _, folder := range folders {
				paths = append(paths, filepath.Join(folder, dagfile.FileName))
			}
			continue
		}
		near, _ := filepath.Glob(filepath.Join(escaped(filepath.Dir(filepath.Dir(src.Path))), "*", dagfile.FileName))
		paths = append(paths, near...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// escaped returns a path as a pattern that matches it alone.
func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// rootOf returns the folder of the editor that a file is in; empty: it is in none.
func rootOf(roots []string, path string) string {
	for _, root := range roots {
		if within, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(within) {
			return root
		}
	}
	return ""
}

// pathOf returns the path of a file's URI, and reports whether it is one.
func pathOf(uri string) (string, bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return filepath.Clean(filepath.FromSlash(u.Path)), true
}

// uriOf returns the URI of a file.
func uriOf(path string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}
