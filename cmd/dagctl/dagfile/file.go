package dagfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// File is a DAG file as it is on disk now.
type File struct {
	Source
	Doc      *dag.Document // nil where there are problems
	Problems dag.Problems
	Hash     [sha256.Size]byte // of everything that a deploy would send
}

// Find reads every DAG file under dir, except in hidden folders, and returns producers before consumers. Each is
// checked with what the others publish.
func Find(dir string, vars map[string]string) ([]*File, error) {
	catalog, err := builtinCatalog()
	if err != nil {
		return nil, err
	}

	folders, err := Folders(dir)
	if err != nil {
		return nil, err
	}

	var sources []Source
	for _, folder := range folders {
		path, err := filepath.Abs(filepath.Join(folder, FileName))
		if err != nil {
			return nil, fmt.Errorf("read DAG file: %w", err)
		}
		text, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it vanished
		case err != nil:
			return nil, fmt.Errorf("read DAG file: %w", err)
		default:
			sources = append(sources, Source{Path: path, Text: text, Vars: vars})
		}
	}
	if len(sources) == 0 {
		return nil, noneBelow(dir)
	}

	found := make([]*File, len(sources))
	for i, seen := range NewGroup(catalog).Look(sources) {
		if found[i], err = seen.file(); err != nil {
			return nil, err
		}
	}
	return inOrder(found), nil
}

// Folders returns the folders under dir, except hidden ones, that have a DAG file.
func Folders(dir string) (folders []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path != dir:
			return nil // the folder vanished, or this account may not read it
		case err != nil:
			return fault.New(fault.NotFound, "%w", err)
		case entry.IsDir() && path != dir && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !entry.IsDir() && entry.Name() == FileName:
			folders = append(folders, filepath.Dir(path))
		}
		return nil
	})
	return folders, err
}

// file returns a file for commands, which use no document that has problems.
func (s Seen) file() (*File, error) {
	d := &File{Source: s.Source, Doc: s.Doc, Problems: s.Problems}
	if len(s.Problems) > 0 {
		d.Doc = nil
	}
	d.Hash = d.contentHash()
	return d, s.Err
}

// SavedAt returns when the DAG file, or a file that it names, was last saved.
func (d *File) SavedAt() (newest time.Time, err error) {
	paths := []string{d.Path}
	if d.Doc != nil {
		for name := range d.Doc.Files {
			paths = append(paths, filepath.Join(filepath.Dir(d.Path), filepath.FromSlash(name)))
		}
	}

	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return time.Time{}, fmt.Errorf("look at %s: %w", path, err)
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return newest, nil
}

func (d *File) contentHash() [sha256.Size]byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d\n%s", len(d.Text), d.Text)
	if d.Doc == nil {
		fmt.Fprint(&b, d.Problems.Error()) // which change with the files that the document names
		return sha256.Sum256(b.Bytes())
	}
	for _, name := range slices.Sorted(maps.Keys(d.Doc.Files)) {
		fmt.Fprintf(&b, "%s %d\n%s", name, len(d.Doc.Files[name]), d.Doc.Files[name])
	}
	return sha256.Sum256(b.Bytes())
}

// inOrder returns the files with producers before the consumers of their datasets. It ignores circles, which a deploy
// reports.
func inOrder(dags []*File) []*File {
	producers := producersOf(dags)
	var ordered []*File
	visited := map[*File]bool{}
	var visit func(d *File)
	visit = func(d *File) {
		if visited[d] {
			return
		}
		visited[d] = true
		for _, name := range d.Reads() {
			if producer := producers[name]; producer != nil {
				visit(producer)
			}
		}
		ordered = append(ordered, d)
	}

	for _, d := range dags {
		visit(d)
	}
	return ordered
}

// producersOf returns the files by the datasets that they publish.
func producersOf(dags []*File) map[string]*File {
	producers := map[string]*File{}
	for _, d := range dags {
		if d.Doc != nil {
			for _, p := range d.Doc.Publish {
				producers[p.Name] = d
			}
		}
	}
	return producers
}

// Reads returns the names of the published datasets that the DAG reads.
func (d *File) Reads() []string {
	var names []string
	if d.Doc != nil {
		for _, job := range d.Doc.Jobs {
			for _, in := range job.Inputs {
				if in.Dataset != "" {
					names = append(names, in.Dataset)
				}
			}
		}
	}
	return names
}

// Circle returns the names of DAGs that read each other's datasets in a circle, the first one twice, or nil if there is
// no circle.
func Circle(dags []*File) []string {
	const open, closed = 1, 2
	producers := producersOf(dags)
	state := map[*File]int{}
	var way []string // from the first DAG to the one being visited
	var visit func(d *File) []string
	visit = func(d *File) []string {
		if state[d] == closed {
			return nil
		}
		way = append(way, d.Doc.Name)
		defer func() { way = way[:len(way)-1] }()
		if state[d] == open {
			first := 0
			for way[first] != d.Doc.Name {
				first++
			}
			return append([]string{}, way[first:]...)
		}

		state[d] = open
		for _, name := range d.Reads() {
			if producer := producers[name]; producer != nil {
				if circle := visit(producer); circle != nil {
					return circle
				}
			}
		}

		state[d] = closed
		return nil
	}

	for _, d := range dags {
		if circle := visit(d); circle != nil {
			return circle
		}
	}
	return nil
}

// RefuseCircle returns an error if DAGs read each other in a circle.
func RefuseCircle(dags []*File) error {
	circle := Circle(dags)
	if circle == nil {
		return nil
	}
	return fault.New(fault.Conflict, "the DAGs read each other in a circle: %s", strings.Join(circle, " reads ")).
		WithHint("have one of them read something else, or make them one DAG")
}
