package dagfile

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
)

// Group looks at DAG files together: each is read as it will be once the others are deployed, with the partitions and
// columns of the datasets that they publish. It remembers what it found. A file is looked at again if its text has
// changed, a file that it names, or what it reads of the others.
type Group struct {
	catalog dag.Catalog
	alone   map[string]*seen // by path, without the others
	among   map[string]*seen // by path, of those that read datasets of the others
}

// NewGroup returns a group that validates against a catalog.
func NewGroup(catalog dag.Catalog) *Group {
	return &Group{catalog: catalog, alone: map[string]*seen{}, among: map[string]*seen{}}
}

// Seen is what was found in a file.
type Seen struct {
	Source
	Doc      *dag.Document        // what can be read of it; nil if it is no YAML
	Beside   map[string]dag.Offer // datasets of the others that it reads
	Problems dag.Problems
	Err      error // nobody could look
}

// seen is what was found in a file, and what it depends on.
type seen struct {
	Seen
	stamp   string // of the text and the files that it names
	foreign foreign
}

// foreign is what a file is told of the datasets of others.
type foreign struct {
	by      map[string]dag.Partitioning
	columns map[string][]dag.Column
}

// Look returns what is found in each of the sources, in their order.
func (g *Group) Look(sources []Source) []Seen {
	paths := make(map[string]bool, len(sources))
	files := make([]*File, len(sources))
	first := make(map[*File]*seen, len(sources))
	for i, src := range sources {
		paths[src.Path] = true
		s := g.lookAlone(src)
		files[i] = &File{Source: src, Doc: s.Doc}
		first[files[i]] = s
	}
	for _, memory := range []map[string]*seen{g.alone, g.among} {
		maps.DeleteFunc(memory, func(path string, _ *seen) bool { return !paths[path] })
	}

	offers := foreign{map[string]dag.Partitioning{}, map[string][]dag.Column{}}
	last := make(map[*File]*seen, len(sources))
	beside := make(map[*File]map[string]dag.Offer, len(sources))
	for _, file := range inOrder(files) {
		reads := offers.of(file)
		s := g.lookAmong(first[file], reads)
		beside[file] = reads.offers()
		if last[file] = s; s.Doc != nil {
			by, columns := s.Doc.Offers()
			maps.Copy(offers.by, by)
			maps.Copy(offers.columns, columns)
		}
	}

	found := make([]Seen, len(files))
	for i, file := range files {
		found[i] = last[file].Seen
		found[i].Beside = beside[file]
	}
	return found
}

// of returns what of the offers a file reads.
func (o foreign) of(file *File) foreign {
	reads := foreign{map[string]dag.Partitioning{}, map[string][]dag.Column{}}
	for _, name := range file.Reads() {
		if by, ok := o.by[name]; ok {
			reads.by[name] = by
		}
		if columns, ok := o.columns[name]; ok {
			reads.columns[name] = columns
		}
	}
	return reads
}

// offers returns what a server is told of them.
func (o foreign) offers() map[string]dag.Offer {
	offers := map[string]dag.Offer{}
	for name, columns := range o.columns {
		offers[name] = dag.NewOffer(nil, columns)
	}
	for name, by := range o.by {
		offers[name] = dag.NewOffer(&by, o.columns[name])
	}
	return offers
}

func (g *Group) lookAlone(src Source) *seen {
	if known := g.alone[src.Path]; known != nil && known.stamp != "" && known.stamp == src.stamp(known.Doc) {
		return known
	}
	s := &seen{Seen: Seen{Source: src}}
	s.Doc, s.Problems, s.Err = src.Look(g.catalog)
	if s.Err == nil && len(s.Problems) == 0 { // a file that is missing may be there the next time
		s.stamp = src.stamp(s.Doc)
	}
	g.alone[src.Path] = s
	return s
}

func (g *Group) lookAmong(alone *seen, reads foreign) *seen {
	if len(reads.by)+len(reads.columns) == 0 || alone.Err != nil {
		return alone
	}
	known := g.among[alone.Path]
	if known != nil && alone.stamp != "" && known.stamp == alone.stamp && reflect.DeepEqual(known.foreign, reads) {
		return known
	}
	s := &seen{Seen: Seen{Source: alone.Source}, stamp: alone.stamp, foreign: reads}
	s.Doc, s.Problems, s.Err = alone.lookWith(g.catalog, reads)
	g.among[alone.Path] = s
	return s
}

// stamp tells a text and the files that it names from what they were before.
func (s Source) stamp(doc *dag.Document) string {
	var b strings.Builder
	b.Write(s.Text)
	if doc == nil {
		return b.String()
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Files)) {
		info, err := os.Stat(filepath.Join(filepath.Dir(s.Path), filepath.FromSlash(name)))
		if err != nil {
			return ""
		}
		fmt.Fprintf(&b, "\x00%s %d %d", name, info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}
