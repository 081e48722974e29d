package dag

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// Query is the SELECT of an output, which stands at a path in the config.
type Query struct {
	Path []string
	SQL  string
	// Names are those of the columns of its result, as far as its text alone says them; nil: it does not.
	Names []string
}

// Naming is what is known of a document when its names are looked at.
type Naming struct {
	Doc     *Document
	Catalog Catalog
	Columns map[string][]Column  // of datasets of other DAGs, by name, as far as they are known
	Sound   func(index int) bool // whether a job of the document has a config without faults
}

// Named is what a look at a document's names finds.
type Named struct {
	Faults  []NameFault
	Columns map[string][][]Column // as in Document
}

// NameFault is a name in a document that stands for nothing, or for what cannot be used there.
type NameFault struct {
	Job         int    // its index in the document; ignored where there is a Publication
	Publication string // its name
	// Path leads from the job or the publication to what is at fault: names of fields and indexes of lists.
	Path []string
	Key  bool // it is the last name of Path itself
	// Text says that what is at fault is part of a text, Width bytes at Offset; Offset -1: somewhere in it.
	Text          bool
	Offset, Width int

	Message, Suggestion string
	// Unknown is the name at fault and Known are those there are, one of which was probably meant; empty: none was.
	Unknown string
	Known   []string
}

// names reports the names that stand for nothing, and notes the columns of outputs.
func (d *decoder) names(doc *Document, nodes []value, publish value) {
	if d.cat.Names == nil {
		return
	}
	found, err := d.cat.Names(Naming{Doc: doc, Catalog: d.cat, Columns: d.columns, Sound: func(i int) bool {
		_, sound := d.sound[nodes[i].node]
		return sound && d.jobs[doc.Jobs[i].Name] == &doc.Jobs[i]
	}})
	if err != nil {
		p := d.at(1, 1, 1, CodeReference, "nobody could look at the names in the file: %s", err)
		p.unseen = err
		return
	}

	doc.Columns = found.Columns
	for _, f := range found.Faults {
		if f.Publication != "" {
			d.nameFault(f, publish.get(f.Publication), nil)
		} else {
			d.nameFault(f, nodes[f.Job], d.sound[nodes[f.Job].node])
		}
	}
}

// nameFault reports a fault at its place, below a node.
func (d *decoder) nameFault(f NameFault, at value, config *configTree) {
	key, val := at.node, at.node
	for _, name := range f.Path {
		key, val = step(key, val, name)
	}
	place := val
	if f.Key {
		place = key
	}

	message := f.Message
	if config != nil && len(f.Path) > 1 && f.Path[0] == "config" {
		if file := config.inlined[f.Path[1]]; file != nil { // its text is that of a file
			f.Offset = d.macros.offset(file, d.textOf(file), f)
			message = fmt.Sprintf("%s: %s%s", file.Value, message, placeInText(d.textOf(file), f.Offset))
			d.suggestName(d.node(file, CodeReference, "%s", message), f)
			return
		}
	}
	f.Offset = d.macros.offset(place, place.Value, f)
	if !f.Text || f.Offset < 0 {
		d.suggestName(d.node(place, CodeReference, "%s", message), f)
		return
	}

	line, column, ok := d.inText(place, f.Offset)
	if !ok {
		message += placeInText(place.Value, f.Offset)
		d.suggestName(d.node(place, CodeReference, "%s", message), f)
		return
	}
	d.suggestName(d.at(line, column, max(1, f.Width), CodeReference, "%s", message), f)
}

func (d *decoder) suggestName(p *Problem, f NameFault) {
	if f.Suggestion != "" {
		p.suggest("%s", f.Suggestion)
		d.macros.suggest(p)
		return
	}
	p.nearest(f.Unknown, f.Known)
	d.macros.suggest(p)
}

// textOf returns the text of a file that a node names.
func (d *decoder) textOf(reference *yaml.Node) string {
	name, err := cleanPath(reference.Value)
	if err != nil {
		return ""
	}
	return string(d.files.read[name])
}

// step goes from a node to the field or the entry of a name, or stays. A single value stands for a list of one.
func step(key, val *yaml.Node, name string) (*yaml.Node, *yaml.Node) {
	v := value{val}
	switch {
	case val == nil:
	case val.Kind == yaml.MappingNode && v.has(name):
		return v.key(name), v.get(name).node
	case val.Kind == yaml.SequenceNode:
		var index int
		if _, err := fmt.Sscan(name, &index); err == nil && index >= 0 && index < len(val.Content) {
			return val.Content[index], val.Content[index]
		}
	}
	return key, val
}

// placeInText returns a place in a text for people: " (line 1, column 15)".
func placeInText(text string, offset int) string {
	if offset < 0 || offset > len(text) {
		return ""
	}
	before := text[:offset]
	line := strings.Count(before, "\n") + 1
	column := len([]rune(before[strings.LastIndexByte(before, '\n')+1:])) + 1
	return fmt.Sprintf(" (line %d, column %d)", line, column)
}
