package dag

import (
	"bytes"
	"io/fs"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

// File is a DAG file to parse.
type File struct {
	Name  string            // for messages
	Text  []byte            // the YAML
	Files fs.FS             // that *_file fields and UDF folders name, relative to the DAG file; nil: they are errors
	Vars  map[string]string // values of variables, over the defaults
	// Datasets holds the partitioning of datasets of other DAGs, by name. Without it, nothing is known of a dataset:
	// jobs that inherit its partitioning are left without one, and mappings of it are not checked.
	Datasets map[string]Partitioning
	// Columns holds the columns of datasets of other DAGs, by name, as far as they are known.
	Columns map[string][]Column
}

// Reads returns the names of the datasets of other DAGs that inputs in the file name, sorted. The file may have
// problems.
func (f File) Reads() []string {
	if !bytes.Contains(f.Text, []byte("dataset")) {
		return nil
	}
	r := newReport(f.Name, f.Text)
	root := value{load(f.Text, r)}
	if root.node == nil {
		return nil
	}
	c := &checker{report: r, unresolved: map[*yaml.Node]bool{}}
	jobs, vars := root.get("jobs"), resolveVariables(root, f.Vars, c)
	if jobs.node != nil {
		substitute(jobs.node, vars, false, c)
	}

	var names []string
	for _, job := range jobs.items() {
		for _, in := range job.get("inputs").items() {
			if name := in.get("from").get("dataset"); name.scalar() {
				names = append(names, name.text())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Parse decodes and validates a DAG file. It reports all problems at once, in the order of the file; if there are any,
// the document is nil.
//
// The document's Files hold every file that Parse read, so that parsing the same text again with InMemory(doc.Files),
// as the server does, gives the same document.
func Parse(file File, cat Catalog) (*Document, Problems) {
	doc, problems := Look(file, cat)
	if len(problems) > 0 {
		return nil, problems
	}
	return doc, nil
}

// Look is Parse for editors: it returns what can be read of a document that has problems, too; nil if it is no YAML.
func Look(file File, cat Catalog) (*Document, Problems) {
	r := newReport(file.Name, file.Text)
	root := load(file.Text, r)
	if root == nil {
		return nil, r.sorted()
	}

	d := &decoder{
		checker:  &checker{report: r, unresolved: map[*yaml.Node]bool{}},
		cat:      cat,
		files:    &fileReader{fsys: file.Files, read: map[string][]byte{}},
		schemas:  map[string]*jsonschema.Schema{},
		defaults: value{root}.get("defaults"),
		datasets: file.Datasets,
		columns:  file.Columns,
		sound:    map[*yaml.Node]*configTree{},
	}

	return d.document(value{root}, file.Vars), r.sorted()
}

// decoder turns a tree into a Document. It goes on after a problem, to find the others.
type decoder struct {
	*checker
	cat      Catalog
	files    *fileReader
	schemas  map[string]*jsonschema.Schema // of operators' configs, compiled when first needed
	defaults value
	datasets map[string]Partitioning    // of other DAGs
	columns  map[string][]Column        // of datasets of other DAGs
	sound    map[*yaml.Node]*configTree // configs without a fault, by the node of their job
	macros   macros
	dag      string          // the document's name
	jobs     map[string]*Job // of the document, by name; the first of those that share a name
}

func (d *decoder) document(root value, given map[string]string) *Document {
	doc := &Document{Vars: resolveVariables(root, given, d.checker)}
	for key, val := range root.pairs() {
		if key.Value != "vars" {
			substitute(val, doc.Vars, false, d.checker)
		}
	}
	documentShape.check(root.node, "a DAG file", d.checker)

	doc.Name = root.get("name").text()
	d.dag = doc.Name
	d.macros.read(d, root.get("macros"))
	doc.Macros = d.macros.names
	doc.Description = root.get("description").text()

	nodes := root.get("jobs").items()
	for _, v := range nodes {
		doc.Jobs = append(doc.Jobs, d.job(v))
	}
	d.jobs = make(map[string]*Job, len(doc.Jobs))
	for i := range doc.Jobs {
		if _, ok := d.jobs[doc.Jobs[i].Name]; !ok {
			d.jobs[doc.Jobs[i].Name] = &doc.Jobs[i]
		}
	}

	d.macros.collisions(d, doc, root.get("publish"))

	doc.byName = d.jobs
	acyclic := d.link(doc, nodes)

	d.publications(doc, root.get("publish"))
	if acyclic {
		d.names(doc, nodes, root.get("publish"))
	}
	for _, v := range root.get("notify").items() {
		n := Notification{On: v.get("on").texts()}
		for _, format := range NotifyFormats {
			if to := v.get(format); to.node != nil {
				n.Format, n.Secret = format, to.get("secret").text()
				n.To, n.From = to.get("to").texts(), to.get("from").text()
			}
		}
		if n.Format == NotifyWebhook {
			n.Format = "" // as documents of before are kept and hashed
		}
		doc.Notify = append(doc.Notify, n)
	}
	doc.Files = d.files.read
	return doc
}

// publications decodes `publish`, and reports outputs that it gives two names.
func (d *decoder) publications(doc *Document, publish value) {
	type output struct {
		job   string
		index int
	}
	names := map[output]string{}
	for key, val := range publish.pairs() {
		v := value{val}
		p := Publication{
			Name:        key.Value,
			Job:         v.get("from").get("job").text(),
			Description: v.get("description").text(),
			Owner:       v.get("owner").text(),
			Tags:        v.get("tags").texts(),
			DueWithin:   v.get("due").get("within").duration(),
			Retention:   v.get("retention").duration(),
			TakesOver:   v.get("takes_over").text(),
			Position:    Position{d.file, key.Line, key.Column},
		}

		for column, meaning := range v.get("columns").pairs() {
			if p.Columns == nil {
				p.Columns = map[string]string{}
			}
			p.Columns[column.Value] = meaning.Value
		}

		if p.TakesOver != "" && p.TakesOver == doc.Name {
			d.node(v.get("takes_over").node, CodeConflict, "`takes_over` must name another DAG")
		}
		if index, ok := d.output(v.get("from")); ok {
			p.Output = index
			o := output{p.Job, index}
			if other, taken := names[o]; taken {
				d.node(key, CodeDuplicate, "the same output is already published as %q", other).
					suggest("give an output one name only")
			} else {
				names[o] = key.Value
			}
		}
		doc.Publish = append(doc.Publish, p)
	}
}

// output resolves {job, output} to the index of an output.
func (d *decoder) output(from value) (int, bool) {
	job := from.get("job")
	if !job.scalar() {
		return 0, false // the grammar has reported it
	}
	producer, ok := d.jobs[job.text()]
	if !ok {
		d.node(job.node, CodeReference, "there is no job %q", job.text()).nearest(job.text(), sortedKeys(d.jobs))
		return 0, false
	}
	if len(producer.Outputs) == 0 {
		d.node(job.node, CodeReference, "job %q has no outputs", producer.Name)
		return 0, false
	}
	return d.outputIndex(producer, from.get("output"), job.node)
}

// outputIndex resolves an `output` field, which may be absent if the job has a single output.
func (d *decoder) outputIndex(producer *Job, output value, place *yaml.Node) (int, bool) {
	if !output.scalar() {
		if len(producer.Outputs) > 1 {
			d.node(place, CodeMissing, "job %q has %d outputs; name one with `output`",
				producer.Name, len(producer.Outputs)).
				nearest("", producer.Outputs)
			return 0, false
		}
		return 0, true
	}

	for i, name := range producer.Outputs {
		if output.text() == name {
			return i, true
		}
	}
	index := output.integer()
	if plainTag(output.text()) == "!!int" && index >= 0 && index < int64(len(producer.Outputs)) {
		return int(index), true
	}
	d.node(output.node, CodeReference, "job %q has no output %q", producer.Name, output.text()).
		nearest(output.text(), producer.Outputs)
	return 0, false
}
