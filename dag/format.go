package dag

import (
	"bytes"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/late"
)

// Format writes a DAG file in the standard layout: fields in the order of the grammar, two spaces a level, an empty
// line between sections and between jobs. Comments stay with the lines that they describe. Formatting the result again
// does not change it. Format refuses only what is not YAML or not allowed in any DAG file; it moves unknown fields to
// the end.
func Format(text []byte) ([]byte, Problems) {
	r := newReport("dag.yaml", text)
	formatted := format(text, r)
	return formatted, r.sorted()
}

// A layout settles within a few rounds: a comment may move once to where the YAML library keeps it.
const formatRounds = 5

func format(text []byte, r *report) []byte {
	text = bytes.TrimPrefix(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\ufeff"))
	root := load(text, r)
	if root == nil {
		return nil
	}

	meaning, before := value{root}.json(), text
	for range formatRounds {
		after, err := layout(before)
		if err != nil {
			break
		}
		if bytes.Equal(before, after) && keeps(text, after, meaning) {
			return after
		}
		before = after
	}
	r.at(1, 1, 1, CodeSyntax, "this file cannot be formatted without loss").
		suggest("move comments out of { } and [ ], each to a line of its own above a field")
	return nil
}

// keeps reports whether a formatted text has the same meaning as the original, and every comment.
func keeps(original, formatted []byte, meaning any) bool {
	r := newReport("", formatted)
	root := load(formatted, r)
	if root == nil || bytes.Count(original, []byte("#")) != bytes.Count(formatted, []byte("#")) {
		return false
	}

	was, err := canonicalJSON(meaning)
	if err != nil {
		return false
	}
	is, err := canonicalJSON(value{root}.json())
	return err == nil && bytes.Equal(was, is)
}

func layout(text []byte) ([]byte, error) {
	var document yaml.Node
	if err := decodeYAML(yaml.NewDecoder(bytes.NewReader(text)), &document); err != nil {
		return nil, err
	}
	sortFields(document.Content[0], documentShape)
	writeNulls(&document, false)

	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, err
	}
	if err := encoder.Close(); err != nil {
		return nil, err
	}
	return space(b.String()), nil
}

// writeNulls gives the fields in braces and brackets that have no value the one that they stand for: the YAML library
// would write an empty text.
func writeNulls(n *yaml.Node, inFlow bool) {
	inFlow = inFlow || n.Style&yaml.FlowStyle != 0
	if inFlow && n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == "" {
		n.Value = "null"
	}
	for _, child := range n.Content {
		writeNulls(child, inFlow)
	}
}

// sortFields puts the fields of every mapping in the grammar into the grammar's order.
func sortFields(n *yaml.Node, s shape) {
	switch s := s.(type) {
	case objectShape:
		if n.Kind == yaml.MappingNode {
			s.sort(n)
		}

	case listShape:
		if n.Kind != yaml.SequenceNode {
			sortFields(n, s.of)
			return
		}
		for _, item := range n.Content {
			sortFields(item, s.of)
			liftComment(item)
		}

	case tableShape:
		if n.Kind == yaml.MappingNode {
			for i := 1; i < len(n.Content); i += 2 {
				sortFields(n.Content[i], s.of)
			}
		}

	case choiceShape:
		if o := s.option(n); o != nil {
			sortFields(n, o)
		}
	}
}

func (s objectShape) sort(n *yaml.Node) {
	type entry struct {
		key, val *yaml.Node
		rank     int
	}
	entries := make([]entry, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := entry{n.Content[i], n.Content[i+1], len(s.fields)}
		if at := slices.Index(s.names(), e.key.Value); at >= 0 {
			e.rank = at
			sortFields(e.val, s.fields[at].of)
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return
	}

	// A comment below the last field describes the mapping, so it stays at the end.
	last := entries[len(entries)-1].key
	foot := last.FootComment
	last.FootComment = ""
	slices.SortStableFunc(entries, func(a, b entry) int { return a.rank - b.rank })
	last = entries[len(entries)-1].key
	last.FootComment = join(last.FootComment, foot)

	for i, e := range entries {
		n.Content[2*i], n.Content[2*i+1] = e.key, e.val
	}
}

// liftComment moves a comment from the first field of a list's entry to the line above the entry.
func liftComment(item *yaml.Node) {
	if item.Kind == yaml.MappingNode && item.Style&yaml.FlowStyle == 0 && len(item.Content) > 0 {
		item.HeadComment = join(item.HeadComment, item.Content[0].HeadComment)
		item.Content[0].HeadComment = ""
	}
}

func join(a, b string) string { return strings.Trim(a+"\n"+b, "\n") }

var (
	section = late.Pattern(`^[^\s#-]`)
	jobItem = late.Pattern(`^  - `)
)

// space puts one empty line before each job, and before each section that has more than one line or follows one that
// has, above the comments that belong to it. Text blocks are indented deeper, so it does not touch them.
func space(text string) []byte {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var out []string
	inJobs, firstJob := false, false
	for i, line := range lines {
		switch {
		case section.MatchString(line):
			long := i+1 < len(lines) && !section.MatchString(lines[i+1])
			wasLong := i > 0 && !section.MatchString(lines[i-1])
			if i > 0 && (long || wasLong) {
				out = emptyLine(out, "#")
			}
			inJobs = strings.HasPrefix(line, "jobs:")
			firstJob = inJobs
		case inJobs && jobItem.MatchString(line):
			if !firstJob {
				out = emptyLine(out, "  #")
			}
			firstJob = false
		}

		out = append(out, line)
	}
	return []byte(strings.Join(out, "\n") + "\n")
}

// emptyLine adds an empty line before the comments at the end that begin with the prefix.
func emptyLine(lines []string, prefix string) []string {
	at := len(lines)
	for at > 0 && strings.HasPrefix(lines[at-1], prefix) {
		at--
	}
	if at == 0 || lines[at-1] == "" {
		return lines
	}
	return slices.Insert(lines, at, "")
}
