package dag

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/late"
)

// load turns text into the one mapping that it must hold, or reports why it cannot. It also reports what YAML allows
// and a DAG file does not (anchors, tags, several documents, repeated keys, deep nesting), so that the grammar sees
// plain trees only.
func load(text []byte, r *report) *yaml.Node {
	switch {
	case len(text) > MaxFileBytes:
		r.lines = nil // no excerpt: the line may have a megabyte
		r.at(1, 1, 1, CodeLimit, "the file has %d bytes; at most %d are allowed", len(text), MaxFileBytes)
		return nil
	case !utf8.Valid(text):
		line, column := firstInvalid(text)
		r.at(line, column, 1, CodeSyntax, "the file is not UTF-8 text").suggest("save it as UTF-8")
		return nil
	}

	source := &lineReader{rest: text}
	decoder := yaml.NewDecoder(source)
	var document yaml.Node
	if err := decodeYAML(decoder, &document); errors.Is(err, io.EOF) {
		r.at(1, 1, 1, CodeMissing, "the file is empty").suggest("`dagctl init` writes a first one")
		return nil
	} else if err != nil {
		reportSyntax(err, source.line, r)
		return nil
	}

	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		r.at(1, 1, 1, CodeMissing, "the file is empty").suggest("`dagctl init` writes a first one")
		return nil
	}
	sound := checkTree(root, 1, r)

	var second yaml.Node
	if err := decodeYAML(decoder, &second); err == nil {
		r.node(second.Content[0], CodeSyntax, "a second document begins here; a DAG file holds one").
			suggest("put each DAG into a file of its own")
		sound = false
	} else if !errors.Is(err, io.EOF) {
		reportSyntax(err, source.line, r)
		sound = false
	}

	if root.Kind != yaml.MappingNode {
		r.node(root, CodeType, "a DAG file is a mapping with name and jobs, not %s", describe(root))
		return nil
	}
	if !sound {
		return nil
	}
	return root
}

// decodeYAML decodes one document. The YAML library panics on some malformed inputs; decodeYAML returns an error
// instead.
func decodeYAML(decoder *yaml.Decoder, node *yaml.Node) (err error) {
	defer func() {
		if caught := recover(); caught != nil {
			err = errors.New("yaml: the text cannot be read")
		}
	}()
	return decoder.Decode(node)
}

// firstInvalid returns the position of the first byte that is not UTF-8.
func firstInvalid(text []byte) (line, column int) {
	line, column = 1, 1
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size <= 1 {
			break
		}
		if column++; r == '\n' {
			line, column = line+1, 1
		}
		text = text[size:]
	}
	return line, column
}

// lineReader returns a text line by line and counts the lines. The YAML library reports the line where the list or
// mapping around an error begins. As it reads no further than it must, the last line that it read is nearer to the
// error.
type lineReader struct {
	rest []byte
	line int
}

func (l *lineReader) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		return 0, io.EOF
	}
	end := bytes.IndexByte(l.rest, '\n') + 1
	if end == 0 {
		end = len(l.rest)
	}
	n := copy(p, l.rest[:end])
	if n == end {
		l.line++
	}
	l.rest = l.rest[n:]
	return n, nil
}

var yamlErrorText = late.Pattern(`^yaml: (?:line \d+: )?(.*)$`)

// reportSyntax reports an error of the YAML library at the last line that the library read.
func reportSyntax(err error, line int, r *report) {
	message := strings.SplitN(err.Error(), "\n", 2)[0]
	if match := yamlErrorText.FindStringSubmatch(message); match != nil {
		message = match[1]
	}

	// The line before counts too: a tab there is the usual cause.
	line = min(max(line, 1), len(r.lines))
	for line > 1 && strings.TrimSpace(r.lines[line-1]) == "" {
		line--
	}
	for _, l := range []int{line, line - 1} {
		if l < 1 {
			continue
		}
		text := r.lines[l-1]
		indent := text[:len(text)-len(strings.TrimLeft(text, " \t"))]
		if tab := strings.IndexByte(indent, '\t'); tab >= 0 {
			r.at(l, tab+1, 1, CodeSyntax, "a tab cannot indent YAML").suggest("use spaces")
			return
		}
	}

	text := r.lines[line-1]
	column := len(text) - len(strings.TrimLeft(text, " ")) + 1
	r.at(line, column, utf8.RuneCountInString(strings.TrimSpace(text)), CodeSyntax, "not YAML: %s", message).
		suggest("look at the brackets, quotes and indentation of this line and the one before it")
}

// checkTree reports what YAML allows and a DAG file does not. It returns false if the tree cannot be used any further.
func checkTree(n *yaml.Node, depth int, r *report) bool {
	if depth > MaxDepth {
		r.node(n, CodeLimit, "nested more than %d levels deep", MaxDepth)
		return false
	}
	if n.Kind == yaml.AliasNode {
		r.node(n, CodeSyntax, "aliases are not allowed").suggest("write the value out, or use `defaults` or `vars`")
		return false
	}

	sound := true
	if n.Anchor != "" {
		r.node(n, CodeSyntax, "anchors are not allowed").suggest("write the value out, or use `defaults` or `vars`")
		sound = false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.node(n, CodeSyntax, "tags are not allowed: %s", n.Tag)
		sound = false
	}
	if n.Kind == yaml.ScalarNode && !storable([]byte(n.Value)) {
		r.node(n, CodeValue, "it has the character U+0000, which is no text").
			suggest("remove the escape, such as \\0")
		sound = false
	}
	if n.Kind == yaml.MappingNode && !checkKeys(n, r) {
		sound = false
	}
	for _, c := range n.Content {
		sound = checkTree(c, depth+1, r) && sound
	}
	return sound
}

// storable reports whether databases can keep data as text: it is UTF-8 without U+0000.
func storable(data []byte) bool { return utf8.Valid(data) && !bytes.ContainsRune(data, 0) }

// checkKeys checks that the keys of a mapping are distinct texts.
func checkKeys(n *yaml.Node, r *report) (sound bool) {
	sound = true
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			r.node(key, CodeType, "a field name must be text, not %s", describe(key))
			sound = false
			continue
		}

		if key.Tag == "!!merge" {
			r.node(key, CodeSyntax, "merge keys are not allowed").suggest("write the fields out, or use `defaults`")
			sound = false
		}

		if first, ok := seen[key.Value]; ok {
			r.node(key, CodeDuplicate, "field %q appears twice; the first is on line %d", key.Value, first.Line)
			sound = false
		}
		seen[key.Value] = key
	}
	return sound
}

// node records a problem at a node.
func (r *report) node(n *yaml.Node, code Code, format string, args ...any) *Problem {
	text, width := n.Value, 1
	if original, ok := r.original[n]; ok {
		text = original
	}
	if n.Kind == yaml.ScalarNode && !strings.Contains(text, "\n") {
		width = utf8.RuneCountInString(text)
		if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			width += 2
		}
	}
	return r.at(n.Line, n.Column, width, code, format, args...)
}

// describe returns the type of a node for messages.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "empty"
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return n.Value
	}
	return "text"
}
