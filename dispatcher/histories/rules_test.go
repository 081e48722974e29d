package histories_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// verdict is what the model says about a step before it is made: the reasons why it must be refused, and those why it
// may be. Without either it must be done.
type verdict struct{ must, may []string }

func (v *verdict) require(format string, args ...any) {
	v.must = append(v.must, fmt.Sprintf(format, args...))
}
func (v *verdict) allow(format string, args ...any) {
	v.may = append(v.may, fmt.Sprintf(format, args...))
}

// judge decides whether a version may take the place of the one that serves.
func (m *model) judge(d *dagModel, v *version, back bool) (r verdict) {
	m.judgeNames(d, v, back, &r)
	m.judgeReaders(d, v, back, &r)
	if d.live != nil && !v.consents.removals {
		for name, g := range v.gens {
			g.judgeEmptied(name, d.live.gens[name], &r)
		}
	}
	if back {
		for name, g := range v.gens {
			if g.gone {
				r.allow("%s is gone", name)
			}
			if d.live != nil && !v.consents.removals {
				g.judgePurged(name, d.live.gens[name], &r)
			}
		}
		return r
	}
	m.judgeLosses(d, v, &r)
	m.judgeChecks(d, v, &r)
	return r
}

// judgeEmptied looks for what is cut into other partitions, and may have none of them.
func (g *generation) judgeEmptied(name string, live *generation, r *verdict) {
	if live == nil || g == nil || g.job.whole == live.job.whole || len(live.visible()) == 0 {
		return
	}
	if len(g.visible()) == 0 {
		r.allow("%s has nothing for its new partitioning", name)
	}
}

// judgePurged looks for partitions that readers have and that were purged from an earlier generation.
func (g *generation) judgePurged(name string, live *generation, r *verdict) {
	seen := live.visible()
	for key, p := range g.parts {
		switch {
		case g == live || !p.absent || seen[key] == nil:
		case p.text != "" && p.withheld == "" && p.either == nil:
			r.require("%s would lose %s, which was purged", name, key)
		default:
			r.allow("%s may lose %s", name, key)
		}
	}
}

// judgeNames looks for names that move.
func (m *model) judgeNames(d *dagModel, v *version, back bool, r *verdict) {
	for name := range v.names {
		m.judgeTaken(d, v, name, back, r)
	}
	if d.live == nil || v.consents.moves {
		return
	}

	for name, job := range d.live.names {
		claims := m.claims[name]
		if m.owner(name) != d.name || v.names[name] == job {
			continue
		}
		if v.names[name] != "" {
			r.require("%s would move from %s to %s", name, job, v.names[name])
		} else if len(claims) > 1 {
			r.require("%s would go back to %s", name, claims[len(claims)-2])
		}
	}
}

// judgeTaken looks at a name that another DAG has, or is going to have.
func (m *model) judgeTaken(d *dagModel, v *version, name string, back bool, r *verdict) {
	owner := m.owner(name)
	others := owner != "" && owner != d.name && (back || v.takes[name] != owner)
	switch {
	case others && !v.consents.moves:
		r.require("%s belongs to %s", name, owner)
	case others && !back:
		r.allow("%s belongs to %s", name, owner) // a promotion may take it
	}
	for _, other := range m.dags {
		if _, coming := namesOf(other.parked)[name]; coming && other != d && !back {
			r.allow("%s is on its way in %s", name, other.name)
		}
	}
}

func namesOf(v *version) map[string]string {
	if v == nil {
		return nil
	}
	return v.names
}

// judgeReaders looks at what carl reads, and at what it would read.
func (m *model) judgeReaders(d *dagModel, v *version, back bool, r *verdict) {
	carl := m.dags["carl"]
	for _, reader := range []*version{carl.live, carl.parked} {
		if reader != nil && d.live != nil && d != carl {
			m.judgeReader(d, v, reader, back, r)
		}
	}
	if v.input == "" {
		return
	}
	switch g := m.serving(v.reads); {
	case v.reads == "":
		r.require("%s is nobody's", v.input)
	case g == nil:
		r.allow("%s serves no more", v.reads)
	case g.job.whole && !v.jobs["r"].whole:
		r.require("%s has no days", v.reads)
	}
}

// judgeReader looks at what a version of carl would miss.
func (m *model) judgeReader(d *dagModel, v, reader *version, back bool, r *verdict) {
	dag, name, _ := strings.Cut(reader.reads, "/")
	if dag != d.name {
		return
	}
	now, stays := v.jobs[name]
	if stays && now.whole && !reader.jobs["r"].whole {
		r.require("carl reads days of %s", name)
	}
	if _, has := d.live.jobs[name]; !has {
		return
	}
	called := m.called(d, name)
	if stays && (called == "" || v.names[called] == name) || back && v.consents.breaking {
		return
	}
	if stays && v.names[reader.input] == name {
		return // it gets the name that the reader's document has
	}
	r.require("carl reads %s", name)
}

// called returns the name under which readers find the dataset of a job that serves; empty if it has none.
func (m *model) called(d *dagModel, job string) string {
	for name, of := range d.live.names {
		if of == job && m.owner(name) == d.name {
			return name
		}
	}
	return ""
}

// candidates returns the generations that a job of a version may get: the one that serves, if it has the job's
// definition, and otherwise those that have it, and nil for a new one. Which of these it is depends on what was
// computed anew, and on rollbacks since.
func (d *dagModel) candidates(v *version, name string) []*generation {
	if g := v.gens[name]; g != nil {
		return []*generation{g}
	}
	found := []*generation{nil}
	for _, g := range d.known {
		if g.name == name && g.job == v.jobs[name].unchecked() && !g.gone {
			if d.live != nil && d.live.gens[name] == g {
				return []*generation{g}
			}
			found = append(found, g)
		}
	}
	return found
}

// keys returns the partitions that a job of a version will have with a generation.
func (m *model) keys(d *dagModel, v *version, name string, g *generation) map[string]bool {
	keys := map[string]bool{}
	for key := range g.visible() {
		keys[key] = true
	}
	input := m.input(d, v)
	if v.jobs[name].whole {
		if len(input) > 0 && (g == nil || g.parts["all"] == nil || g.parts["all"].from != revisions(input)) {
			keys["all"] = true
		}
		return keys
	}
	for key, in := range input {
		if g == nil || g.parts[key] == nil || g.parts[key].from != fmt.Sprint(in.revision) {
			keys[key] = true
		}
	}
	return keys
}

// judgeLosses looks for partitions that readers would miss.
func (m *model) judgeLosses(d *dagModel, v *version, r *verdict) {
	if v.consents.removals {
		return
	}
	for name, j := range v.jobs {
		before := map[*generation]bool{}
		if d.live != nil {
			before[d.live.gens[name]] = true
		}
		for n, job := range v.names {
			if job == name && (v.takes[n] != "" || m.owner(n) == d.name) {
				before[m.serving(m.dataset(n))] = true
			}
		}
		for was := range before {
			if was == nil || was.job.whole != j.whole {
				continue
			}
			m.judgeLoss(d, v, name, was, r)
		}
	}
}

func (m *model) judgeLoss(d *dagModel, v *version, name string, was *generation, r *verdict) {
	candidates, losing := d.candidates(v, name), 0
	var lost []string
	for _, g := range candidates {
		if g == was {
			continue
		}
		keys := m.keys(d, v, name, g)
		if v.forward && g == nil && d.live != nil && d.live.gens[name] == was {
			continue
		}
		gone := slices.DeleteFunc(slices.Sorted(maps.Keys(was.visible())), func(k string) bool { return keys[k] })
		if len(gone) > 0 {
			losing++
			lost = gone
		}
	}
	switch {
	case losing == 0:
	case losing == len(candidates):
		r.require("%s would lose %v", name, lost)
	default:
		r.allow("%s may lose %v", name, lost)
	}
}

// judgeChecks looks for what a check refuses.
func (m *model) judgeChecks(d *dagModel, v *version, r *verdict) {
	for name, j := range v.jobs {
		if !j.checked {
			continue
		}
		candidates, bad, maybe := d.candidates(v, name), 0, 0
		for _, g := range candidates {
			must, may := m.wouldServeEvil(d, v, name, g)
			bad, maybe = bad+btoi(must), maybe+btoi(must || may)
		}
		switch {
		case maybe == 0:
		case bad == len(candidates) && !v.forward:
			r.require("%s has evil rows", name)
		default:
			r.allow("%s may have evil rows", name)
		}
	}
}

func btoi(b bool) int { return map[bool]int{true: 1}[b] }

// wouldServeEvil reports whether a generation must or may be found to have evil rows once it has caught up. A version
// does not wait for the check of what another one has made since its build began.
func (m *model) wouldServeEvil(d *dagModel, v *version, name string, g *generation) (must, may bool) {
	copied := &generation{parts: map[string]*part{}}
	if g != nil {
		for key, p := range g.parts {
			twin := *p
			copied.parts[key] = &twin
		}
	}
	before := m.made
	m.update(copied, v.jobs[name], false, m.input(d, v))
	for _, p := range copied.parts {
		found := !p.absent && evil(p.text)
		since := p.revision > v.since && p.revision <= before
		must, may = must || found && !since, may || found || p.withheld != "" || evil(strings.Join(p.either, " "))
	}
	m.made = before
	return must, may
}
