package histories_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// model is what there must be. Datasets are called "dag/job".
type model struct {
	source map[string]string // content by partition
	dags   map[string]*dagModel
	claims map[string][]string // by name: the DAGs that claim it, the newest last
	made   int                 // revisions made so far
}

// dagModel is a DAG.
type dagModel struct {
	name     string
	read     map[string]*part // of a producer: what it has read of the source
	live     *version
	building *version
	parked   *version // waits for its promotion
	failed   *version // the last one that failed
	versions []*version
	known    map[uuid.UUID]*generation
}

// version is a version of a DAG.
type version struct {
	id       uuid.UUID
	number   int
	yaml     string
	jobs     map[string]job
	names    map[string]string // published name → job
	takes    map[string]string // name → DAG that it is taken over from
	input    string            // of carl: the name that it reads
	reads    string            // of carl: the dataset that the name meant when it was deployed
	given    consents          // to its last deploy
	consents consents          // to all deploys of its document
	forward  bool              // deployed forward-only
	since    int               // the last revision before it was deployed
	gens     map[string]*generation
}

// job is the definition of a job.
type job struct {
	tag     string // what it puts around the content of each partition
	tables  bool   // its rows are in PostgreSQL
	whole   bool   // it has one partition
	reads   string // of carl: the dataset
	checked bool   // a check refuses evil rows; not part of what decides about rebuilding
}

func (j job) unchecked() job { j.checked = false; return j }

// consents are what a step agrees to.
type consents struct{ moves, breaking, removals bool }

func (c consents) with(d consents) consents {
	return consents{c.moves || d.moves, c.breaking || d.breaking, c.removals || d.removals}
}

// generation is what a job has made with one definition.
type generation struct {
	job   job // its checks do not count
	name  string
	parts map[string]*part
	gone  bool        // it was collected while it did not serve
	heir  *generation // the generation that it continues, until it serves
}

// part is a partition.
type part struct {
	text     string   // what readers see
	revision int      // of that text
	from     string   // the revisions of the input that it was made of, or that were tried
	absent   bool     // readers see nothing: it was purged, or nothing has passed the check
	withheld string   // the text that the check refused since
	either   []string // where the model leaves it open: other texts that readers may see
	kept     []string // those of them that were taken over
	heirloom bool     // it is as the generation took it over
}

func newModel() *model {
	m := &model{source: map[string]string{}, dags: map[string]*dagModel{}, claims: map[string][]string{}}
	for _, name := range []string{"anna", "bert", "carl"} {
		m.dags[name] = &dagModel{name: name, read: map[string]*part{}, known: map[uuid.UUID]*generation{}}
	}
	return m
}

func (m *model) next() int { m.made++; return m.made }

func (m *model) owner(name string) string {
	if c := m.claims[name]; len(c) > 0 {
		return c[len(c)-1]
	}
	return ""
}

// dataset returns the dataset that a name means now; empty if none.
func (m *model) dataset(name string) string {
	owner := m.owner(name)
	if owner == "" {
		return ""
	}
	return owner + "/" + m.dags[owner].live.names[name]
}

// serving returns the generation of a dataset that serves; nil if none does.
func (m *model) serving(dataset string) *generation {
	dag, job, _ := strings.Cut(dataset, "/")
	if d := m.dags[dag]; d != nil && d.live != nil {
		return d.live.gens[job]
	}
	return nil
}

// visible returns the partitions of a generation that readers see.
func (g *generation) visible() map[string]*part {
	seen := map[string]*part{}
	if g != nil {
		for key, p := range g.parts {
			if !p.absent {
				seen[key] = p
			}
		}
	}
	return seen
}

// claim makes the claims of a DAG those of a version.
func (m *model) claim(d *dagModel, v *version) {
	for name, claims := range m.claims {
		if _, wants := v.names[name]; !wants {
			m.claims[name] = slices.DeleteFunc(claims, func(c string) bool { return c == d.name })
		}
	}
	for name := range v.names {
		if m.owner(name) != d.name {
			others := slices.DeleteFunc(m.claims[name], func(c string) bool { return c == d.name })
			m.claims[name] = append(others, d.name)
		}
	}
}

func evil(text string) bool { return strings.Contains(text, "evil") }

// poll reads the source for a producer.
func (m *model) poll(d *dagModel) {
	for key, content := range m.source {
		if p := d.read[key]; p == nil || p.text != content {
			d.read[key] = &part{text: content, revision: m.next()}
		}
	}
}

// bind looks up what a name means to a version that is deployed now.
func (m *model) bind(v *version) {
	if v.input != "" {
		v.reads = m.dataset(v.input)
		j := v.jobs["r"]
		j.reads = v.reads
		v.jobs = map[string]job{"r": j}
	}
}

// input returns what a job of a version reads.
func (m *model) input(d *dagModel, v *version) map[string]*part {
	if v.input != "" {
		return m.serving(v.reads).visible()
	}
	seen := map[string]*part{}
	for key, p := range d.read {
		if !p.absent {
			seen[key] = p
		}
	}
	return seen
}

// settle lets everything catch up: sources are read, and what serves or waits is made of the newest inputs.
func (m *model) settle() {
	for _, name := range slices.Sorted(maps.Keys(m.dags)) {
		m.settleDAG(m.dags[name])
	}
}

func (m *model) settleDAG(d *dagModel) {
	if d.name != "carl" && (d.live != nil || d.building != nil || d.parked != nil) {
		m.poll(d)
	}
	for _, v := range []*version{d.live, d.building, d.parked} {
		if v != nil {
			for name := range v.gens {
				m.update(v.gens[name], v.jobs[name], d.checks(v, name), m.input(d, v))
			}
		}
	}
}

// checks reports whether what a version's job makes is checked. A version that waits is held against its own checks
// when it is built, and what serves decides about what both have.
func (d *dagModel) checks(v *version, name string) bool {
	if d.live != nil && d.live != v && d.live.gens[name] == v.gens[name] {
		return d.live.jobs[name].checked
	}
	return v.jobs[name].checked
}

// update makes what a generation lacks of its input.
func (m *model) update(g *generation, j job, checked bool, input map[string]*part) {
	if !j.whole {
		for key, in := range input {
			m.make(g, key, fmt.Sprintf("%s(%s)", j.tag, in.text), fmt.Sprint(in.revision), checked)
		}
		return
	}
	if len(input) == 0 {
		return
	}
	var texts []string
	for _, p := range input {
		texts = append(texts, p.text)
	}
	slices.Sort(texts)
	m.make(g, "all", fmt.Sprintf("%s(%s)", j.tag, strings.Join(texts, "+")), revisions(input), checked)
}

// revisions returns what a partition is made of that is made of a whole input.
func revisions(input map[string]*part) string {
	var from []string
	for _, key := range slices.Sorted(maps.Keys(input)) {
		from = append(from, fmt.Sprintf("%s=%d", key, input[key].revision))
	}
	return strings.Join(from, " ")
}

// replaced returns the generations that serve and that a version has no more, or checks in another way, with their
// partitions as they are.
func (d *dagModel) replaced(v *version) map[*generation]map[string]part {
	before := map[*generation]map[string]part{}
	if d.live == nil {
		return before
	}
	for name, g := range d.live.gens {
		if v.gens[name] == g && v.jobs[name].checked == d.live.jobs[name].checked {
			continue
		}
		before[g] = map[string]part{}
		for key, p := range g.parts {
			before[g][key] = *p
		}
	}
	return before
}

// leaveOpen leaves open whether what stopped serving has still been made of a file that came meanwhile.
func leaveOpen(before map[*generation]map[string]part) {
	for g, parts := range before {
		for key, p := range g.parts {
			was, had := parts[key]
			switch {
			case p.absent:
			case !had || was.absent:
				p.text, p.either, p.absent = was.text, []string{p.text}, true
			case p.text != was.text:
				p.either = []string{was.text}
			}
		}
	}
}

// make makes a partition, unless it was made of the same inputs before.
func (m *model) make(g *generation, key, text, from string, checked bool) {
	p := g.parts[key]
	switch {
	case p != nil && p.from == from:
		return
	case p != nil && p.from == unknown:
		p.either = append(p.either, text)
		return
	case p != nil && !p.absent && fewer(p.from, from):
		p.either = []string{text} // whether less of an input makes a partition anew is left open
		p.from = from
		return
	case p == nil:
		p = &part{absent: true}
		g.parts[key] = p
	}
	p.from, p.withheld = from, ""
	if checked && evil(text) {
		p.withheld = text
		return
	}
	p.text, p.revision, p.absent, p.either, p.heirloom = text, m.next(), false, nil, false
}

// unknown is what a partition was made of that was kept although its job reads another dataset now. When something new
// makes it anew is left open.
const unknown = "?"

// fewer reports whether all that is in now was in before.
func fewer(before, now string) bool {
	was := strings.Fields(before)
	return strings.Contains(before, "=") && !slices.ContainsFunc(strings.Fields(now), func(s string) bool {
		return !slices.Contains(was, s)
	})
}

// release shows readers what a check of another version has refused, for one without the check.
func (m *model) release(g *generation) {
	for _, p := range g.parts {
		if p.withheld != "" {
			p.text, p.revision, p.absent, p.withheld, p.either = p.withheld, m.next(), false, "", nil
		}
	}
}

// resolve decides what the model leaves open by what readers see.
func (m *model) resolve(g *generation, got map[string]string) {
	for key, p := range g.parts {
		if seen, shown := got[key]; shown && slices.Contains(p.either, seen) {
			if p.from == unknown && seen != p.text && !slices.Contains(p.kept, seen) {
				p.from = "" // it was computed
			}
			p.text, p.revision, p.absent, p.withheld = seen, m.next(), false, ""
		}
		p.either, p.kept = nil, nil
	}
}

// inherit takes over what serves.
func (g *generation) inherit(from *generation) {
	g.heir = from
	for key, p := range from.visible() {
		kept := *p
		kept.heirloom = true
		if kept.withheld != "" {
			kept.from = "" // what the check refused has come since: it is computed by the new definition
		}
		if g.job.reads != from.job.reads {
			kept.from = unknown
		}
		kept.withheld, kept.either = "", nil
		g.parts[key] = &kept
	}
}

// inheritAgain takes over what has replaced partitions since they were taken over, just before the generation serves.
func (g *generation) inheritAgain(live *generation) {
	if g.heir == nil || g.heir != live {
		return
	}
	for key, p := range live.visible() {
		if kept := g.parts[key]; kept != nil && kept.heirloom && p.revision > kept.revision {
			kept.text, kept.revision = p.text, p.revision
			kept.either, kept.kept = slices.Concat(kept.either, p.either), p.either
		}
	}
}
