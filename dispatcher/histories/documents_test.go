package histories_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

var (
	names     = []string{"x", "y", "z"}
	producers = []string{"anna", "bert"}
	jobs      = []string{"p", "q"}
)

// String describes a version for people who look at a history that failed.
func (v *version) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(v.jobs)) {
		j := v.jobs[name]
		fmt.Fprintf(&b, "%s=%s", name, j.tag)
		for text, is := range map[string]bool{" tables": j.tables, " whole": j.whole, " checked": j.checked} {
			if is {
				b.WriteString(text)
			}
		}
		b.WriteString(", ")
	}
	fmt.Fprintf(&b, "names %v, takes %v", v.names, v.takes)
	if v.input != "" {
		fmt.Fprintf(&b, ", reads %s, which is %s", v.input, v.reads)
	}
	return b.String()
}

// document returns the file of a producer.
func document(name string, v *version) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\njobs:\n%s", name, dispatchertest.Raw)
	for _, name := range slices.Sorted(maps.Keys(v.jobs)) {
		writeJob(&b, name, "{ job: raw }", v.jobs[name])
	}
	if len(v.names) > 0 {
		b.WriteString("publish:\n")
	}
	for _, n := range slices.Sorted(maps.Keys(v.names)) {
		takes := ""
		if from := v.takes[n]; from != "" {
			takes = ", takes_over: " + from
		}
		fmt.Fprintf(&b, "  %s: { from: { job: %s }%s }\n", n, v.names[n], takes)
	}
	return b.String()
}

func writeJob(b *strings.Builder, name, from string, j job) {
	fmt.Fprintf(b, "  - name: %s\n    operator: hook\n    inputs: [{ from: %s }]\n", name, from)
	if j.whole {
		b.WriteString("    partition_by: none\n")
	} else {
		b.WriteString("    partition_by: { time: day }\n    execution_strategy: PerPartition\n")
	}
	if j.tables {
		b.WriteString("    storage: postgres\n")
	}
	fmt.Fprintf(b, "    config: { tag: %s }\n", j.tag)
	if j.checked {
		b.WriteString("    checks: [{ name: good, sql: \"SELECT * FROM output WHERE content LIKE '%evil%'\" }]\n")
	}
}

// reader returns the file of carl, which reads a name.
func reader(name string, j job) string {
	var b strings.Builder
	b.WriteString("name: carl\njobs:\n")
	writeJob(&b, "r", "{ dataset: "+name+" }", j)
	b.WriteString("publish:\n  read_by_carl: { from: { job: r } }\n")
	return b.String()
}

// edit returns another version of a producer.
func (h *history) edit(d *dagModel) *version {
	v := &version{jobs: map[string]job{}, names: map[string]string{}, takes: map[string]string{}}
	if s := d.live; s != nil {
		v.jobs, v.names, v.takes = maps.Clone(s.jobs), maps.Clone(s.names), maps.Clone(s.takes)
	}
	for range 1 + h.rng.IntN(2) {
		h.change(v)
	}
	if len(v.jobs) == 0 {
		v.jobs["p"] = job{tag: "p0"}
	}
	for name := range v.names {
		if owner := h.owner(name); owner != "" && owner != d.name && h.rng.IntN(8) > 0 {
			v.takes[name] = owner
		}
	}
	maps.DeleteFunc(v.takes, func(name, _ string) bool { return v.names[name] == "" })
	v.yaml = document(d.name, v)
	return v
}

// change makes one edit: of a job's definition, its check, its name, or its being there at all.
func (h *history) change(v *version) {
	name := pick(h, jobs)
	j, there := v.jobs[name]
	n := h.rng.IntN(20)
	if n < 7 {
		j.tag = fmt.Sprintf("%s%d", name, h.rng.IntN(4))
		v.jobs[name] = j
		return
	}
	if !there {
		return
	}

	switch {
	case n < 13:
		v.jobs[name] = h.changed(j, n)
	case n < 17:
		maps.DeleteFunc(v.names, func(_, j string) bool { return j == name }) // one name a dataset
		v.names[pick(h, names)] = name
	case n < 18:
		delete(v.names, pick(h, names))
	case n < 19 && len(v.jobs) > 1:
		delete(v.jobs, name)
		maps.DeleteFunc(v.names, func(_, j string) bool { return j == name })
	}
}

// changed returns a job with another storage, partitioning or check.
func (h *history) changed(j job, n int) job {
	switch {
	case n < 9:
		j.tables = !j.tables && h.rng.IntN(3) == 0 // these take longest
	case n < 10:
		j.whole = !j.whole
	default:
		j.checked = !j.checked && h.rng.IntN(2) == 0
	}
	return j
}
