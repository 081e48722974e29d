package dag

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/spelling"
)

// Macros are written out where statements call them, as variables are put in where they are named: a Document has none,
// and a job that calls a macro changes exactly when what the call stands for does.

// Expanded are statements with their macros written out.
type Expanded struct {
	Macros     []string     // the names of those that can be used, sorted
	Faults     []MacroFault // of the files
	Statements []ExpandedSQL
}

// MacroFault is a fault in a file of macros.
type MacroFault struct {
	File          int // its index
	Message, Hint string
}

// ExpandedSQL is a statement without calls of macros, or why it has none.
type ExpandedSQL struct{ SQL, Refused string }

// macros are the macros of a document.
type macros struct {
	files   []string            // texts; empty: there are none
	names   []string            // of those that can be used
	faulty  []string            // names, in lower case, of those that have a fault or call one that has
	nodes   []*yaml.Node        // of the files
	written map[*yaml.Node]bool // where statements stand that are not those of the file any more
}

// read reads the files of macros.
func (m *macros) read(d *decoder, list value) {
	m.written = map[*yaml.Node]bool{}
	items := list.items()
	if list.scalar() {
		items = []value{list}
	}
	if len(items) == 0 {
		return
	}
	var files []string
	for _, item := range items {
		if item.scalar() {
			text, ok := d.readText(item)
			if !ok {
				return
			}
			files, m.nodes = append(files, string(text)), append(m.nodes, item.node)
		}
	}
	d.distinct(list, "file")
	if d.cat.Expand == nil {
		return // a server looks at them, and is sent the files
	}

	expanded, err := d.cat.Expand(files, nil)
	if err != nil {
		d.node(list.node, CodeConfig, "the macros cannot be read: %s", err).unseen = err
		return
	}
	for _, f := range expanded.Faults {
		p := d.node(m.nodes[f.File], CodeConfig, "%s: %s", m.nodes[f.File].Value, f.Message)
		if f.Hint != "" {
			p.suggest("%s", f.Hint)
		}
	}
	m.files, m.names = files, expanded.Macros
	if len(expanded.Faults) > 0 {
		m.faulty = faulty(files, m.names)
	}
}

var macroDefined = late.Pattern(`(?i)\bmacro\s+"?(\w+)`)

// faulty lists the macros of files that cannot be used. A file with a fault in it may not be read to its end, so the
// names are those that seem to be defined.
func faulty(files, sound []string) (names []string) {
	for _, text := range files {
		for _, found := range macroDefined.FindAllStringSubmatch(text, -1) {
			name := strings.ToLower(found[1])
			if !slices.ContainsFunc(sound, func(s string) bool { return strings.EqualFold(s, name) }) {
				names = append(names, name)
			}
		}
	}
	return names
}

// unreadable reports whether a statement may call a macro that cannot be used. Such a statement is not looked at: what
// is wrong with it is said of the macro.
func (m *macros) unreadable(sql string) bool {
	lower := strings.ToLower(sql)
	return slices.ContainsFunc(m.faulty, func(name string) bool { return strings.Contains(lower, name) })
}

// collisions reports macros that have the name of something that SQL reads.
func (m *macros) collisions(d *decoder, doc *Document, publish value) {
	named := map[string]string{}
	for _, job := range doc.Jobs {
		for _, in := range job.Inputs {
			named[strings.ToLower(in.As)] = "an input of job " + job.Name
		}
	}
	for key := range publish.pairs() {
		named[strings.ToLower(key.Value)] = "a published dataset"
	}
	for _, job := range doc.Jobs {
		named[strings.ToLower(job.Name)] = "a job"
	}

	for _, name := range m.names {
		if what := named[strings.ToLower(name)]; what != "" {
			d.node(m.nodes[0], CodeConflict, "macro %q has the name of %s", name, what).
				suggest("give the macro another name")
		}
	}
}

// calls reports whether a statement may call a macro.
func (m *macros) calls(sql string) bool {
	lower := strings.ToLower(sql)
	for _, name := range m.names {
		if strings.Contains(lower, strings.ToLower(name)) {
			return len(m.files) > 0
		}
	}
	return false
}

// inConfig writes out the macros in the statements of a config. It returns false if it cannot, which is reported.
func (m *macros) inConfig(d *decoder, j *Job, op OperatorSpec, t *configTree) bool {
	if op.SQL == nil || len(m.files) == 0 {
		return true
	}
	sound := true
	for _, path := range op.SQL(j.Config) {
		within := map[string]any(j.Config)
		for _, name := range path[:len(path)-1] {
			within, _ = within[name].(map[string]any)
		}
		last := path[len(path)-1]
		text, _ := within[last].(string)
		if m.unreadable(text) {
			sound = false
			continue
		}
		written, refused := m.expand(d, text)
		if refused != nil {
			refused.Key, refused.Within, sound = path[0], path[1:], false
			d.operatorFault(refused, t)
			continue
		}

		if written != text {
			within[last] = written
			_, place := t.find(path)
			m.written[place] = true
		}
	}
	return sound
}

// inCheck returns the SQL of a check without calls of macros; false: there is none, which is reported.
func (m *macros) inCheck(d *decoder, rule value) (string, bool) {
	if m.unreadable(rule.text()) {
		return "", false
	}
	written, refused := m.expand(d, rule.text())
	if refused != nil {
		d.node(rule.node, CodeConfig, "%s", refused.Message).unseen = refused.Unseen
		return "", false
	}
	m.written[rule.node] = written != rule.text()
	return written, true
}

func (m *macros) expand(d *decoder, sql string) (string, *ConfigError) {
	if !m.calls(sql) {
		return sql, nil
	}
	expanded, err := d.cat.Expand(m.files, []string{sql})
	switch {
	case err != nil:
		return sql, &ConfigError{Message: fmt.Sprintf("its macros cannot be written out: %s", err), Unseen: err}
	case len(expanded.Statements) == 0:
		return sql, nil
	case expanded.Statements[0].Refused != "":
		return sql, &ConfigError{Message: expanded.Statements[0].Refused}
	}
	return expanded.Statements[0].SQL, nil
}

var placeInSQL = late.Pattern(` \(line \d+(, column \d+)?\)`)

// withoutPlace returns a message about a statement without a place in it, where the statement is not that of the file.
func (m *macros) withoutPlace(at *yaml.Node, message string) string {
	if !m.written[at] {
		return message
	}
	return placeInSQL.ReplaceAllString(message, "")
}

// offset returns the offset of a fault in the statement of a file. If that calls macros, it is the only place of the
// name at fault, if there is one; -1: somewhere.
func (m *macros) offset(at *yaml.Node, sql string, f NameFault) int {
	if !m.written[at] {
		return f.Offset
	}
	if f.Unknown == "" || strings.Count(sql, f.Unknown) != 1 {
		return -1
	}
	return strings.Index(sql, f.Unknown)
}

var unknownFunction = late.Pattern(`^(?:.*: )?(?:there is no function "([^"]+)"|the table function (\w+) is)`)

// suggest suggests a macro for a function that there is not.
func (m *macros) suggest(p *Problem) {
	found := unknownFunction.FindStringSubmatch(p.Message)
	if found == nil {
		return
	}
	if near := spelling.Nearest(found[1]+found[2], m.names); near != "" {
		p.suggest("did you mean the macro %q?", near)
	}
}
