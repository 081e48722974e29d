package lsp

import (
	"strings"
	"unicode/utf16"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/late"
)

// place is where the cursor is in a text, and what that is a part of. It is found by lines and indentation alone, since
// a text that is being written is rarely YAML.
type place struct {
	schema map[string]any
	doc    *dag.Document        // of the last text that could be read; nil: none was
	others map[string]published // the datasets that other DAG files publish, by name
	lines  []string
	line   int
	before string // of the line, up to the cursor
	word   string // around the cursor
	path   []string
	job    *dag.Job // nil: none that is known
	sql    bool     // it is in a statement
}

func linesOf(text string) []string {
	return strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
}

func (s *server) look(uri string, at position) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.open[uri]
	if t == nil {
		t = &text{}
	}
	p := &place{schema: s.schema, doc: t.doc, others: map[string]published{}, lines: linesOf(t.now), line: at.Line}
	for name, d := range s.datasets {
		if path, _ := pathOf(uri); d.path != path {
			p.others[name] = d
		}
	}
	if at.Line < 0 || at.Line >= len(p.lines) {
		return p
	}

	line := p.lines[at.Line]
	units := utf16.Encode([]rune(line))
	p.before = string(utf16.Decode(units[:max(0, min(at.Character, len(units)))]))
	p.word = wordAt(line, len(p.before))
	p.path = p.pathOf()
	p.job = p.jobOf()
	last := ""
	if len(p.path) > 0 {
		last = p.path[len(p.path)-1]
	}
	p.sql = last == "query" || last == "sql" || len(p.path) > 1 && p.path[len(p.path)-2] == "queries"
	return p
}

var inWord = late.Pattern(`[\pL\pN_-]`)

// wordAt returns the name around a byte of a line.
func wordAt(line string, at int) string {
	from, to := at, at
	for from > 0 && inWord.MatchString(line[from-1:from]) {
		from--
	}
	for to < len(line) && inWord.MatchString(line[to:to+1]) {
		to++
	}
	return line[from:to]
}

var field = late.Pattern(`^(\s*(?:-\s+)*)"?([\w-]+)"?:(?:\s|$)`)

// indentOf returns where the first field of a line begins, and its name; empty: it has none.
func indentOf(line string) (indent int, name string) {
	if found := field.FindStringSubmatch(line); found != nil {
		return len(found[1]), found[2]
	}
	return len(line) - len(strings.TrimLeft(line, " -")), ""
}

// pathOf returns the fields around the cursor, the outermost first. The last one is that whose value is being written.
func (p *place) pathOf() (path []string) {
	limit, name := indentOf(p.before)
	if strings.TrimSpace(p.before) == "" {
		limit = len(p.before)
	}
	if name != "" {
		path = append(path, name)
	}

	for n := p.line - 1; n >= 0 && limit > 0; n-- {
		line := p.lines[n]
		if strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		if indent, name := indentOf(line); name != "" && indent < limit {
			path, limit = append([]string{name}, path...), indent
		}
	}
	return append(path, flow(p.before)...)
}

var flowField = late.Pattern(`"?([\w-]+)"?:\s*$`)

// flow returns the fields of the braces that a line opens, and that of the value after them.
func flow(before string) (path []string) {
	var stack []string
	start, quoted := 0, rune(0)
	for i, c := range before {
		switch {
		case quoted != 0:
			if c == quoted {
				quoted = 0
			}
		case c == '"' || c == '\'':
			quoted = c
		case c == '{' || c == '[':
			name := ""
			if found := flowField.FindStringSubmatch(before[start:i]); found != nil {
				name = found[1]
			}
			stack, start = append(stack, name), i+1
		case (c == '}' || c == ']') && len(stack) > 0:
			stack, start = stack[:len(stack)-1], i+1
		case c == ',':
			start = i + 1
		}
	}
	if len(stack) == 0 {
		return nil
	}

	for _, name := range stack[1:] {
		if name != "" {
			path = append(path, name)
		}
	}
	if name, _, is := strings.Cut(strings.TrimSpace(before[start:]), ":"); is {
		path = append(path, strings.Trim(name, `"`))
	}
	return path
}

var nameField = late.Pattern(`^\s*-\s+(?:\{\s*)?(?:.*[ ,{])?name:\s*"?([a-z][a-z0-9_-]*)`)

// jobOf returns the job around the cursor.
func (p *place) jobOf() *dag.Job {
	if p.doc == nil || len(p.path) == 0 || p.path[0] != "jobs" {
		return nil
	}
	for n := p.line; n >= 0; n-- {
		if found := nameField.FindStringSubmatch(p.lines[n]); found != nil {
			if job, ok := p.doc.Job(found[1]); ok {
				return job
			}
		}
	}
	return nil
}

var (
	operatorField = late.Pattern(`\boperator:\s*"?([a-z_]+)`)
	jobItem       = late.Pattern(`^ {0,4}-\s`)
)

// operator returns the operator that the text gives to the job around the cursor.
func (p *place) operator() string {
	item := func(n int) bool { return jobItem.MatchString(p.lines[n]) }
	from := p.line
	for from > 0 && !item(from) {
		from--
	}
	for n := from; n < len(p.lines) && (n == from || !item(n)); n++ {
		if found := operatorField.FindStringSubmatch(p.lines[n]); found != nil {
			return found[1]
		}
	}
	return ""
}
