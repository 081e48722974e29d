package dag

import (
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/late"
)

// Variables. `vars` declares them. ${var.name} in any value of the file, but not in field names or in files that it
// names, is replaced by the value given at deploy or by the default. $${var.name} stands for the text ${var.name}.
//
// A field of the grammar determines the type of the result, so `max_attempts: "${var.n}"` is a number. Inside `config`
// and `where`, an unquoted ${var.n} has the type that YAML gives its value, and a quoted one is text. A value is never
// read as a YAML list or mapping.

var variableReference = late.Pattern(`\$?\$\{var\.([^}]*)\}?`)

// resolveVariables returns the variables that `vars` declares, with their given or default values.
func resolveVariables(root value, given map[string]string, c *checker) map[string]string {
	vars := map[string]string{}
	declared := root.get("vars")
	for key, val := range declared.pairs() {
		name, fallback := key.Value, value{val}.get("default")
		given, ok := given[name]
		switch {
		case ok:
			vars[name] = given
		case fallback.scalar():
			vars[name] = fallback.text()
			if strings.Contains(vars[name], "${var.") {
				c.node(fallback.node, CodeVariable, "the default of a variable cannot refer to a variable")
			}
		default:
			vars[name] = ""
			c.node(key, CodeVariable, "variable %q has neither a value nor a default", name).
				suggest("deploy with --var %s=...", name)
		}

		if len(vars[name]) > MaxVariableBytes {
			c.node(key, CodeLimit, "the value of variable %q has %d bytes; at most %d are allowed",
				name, len(vars[name]), MaxVariableBytes)
			vars[name] = "" // as often as the file refers to it, it is reported once
		}
		if !storable([]byte(vars[name])) {
			c.node(key, CodeVariable, "the value of variable %q is not text", name)
		}
	}

	place := root.node
	if declared.present() {
		place = root.key("vars")
	}
	for _, name := range sortedKeys(given) {
		if _, ok := vars[name]; !ok {
			c.node(place, CodeVariable, "variable %q was given a value, but the file does not declare it", name).
				nearest(name, sortedKeys(vars))
		}
	}
	return vars
}

// substitute replaces variables in every value below the node. A free value is one whose type the grammar does not
// determine.
func substitute(n *yaml.Node, vars map[string]string, free bool, c *checker) {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "${var.") {
		substituteScalar(n, vars, free, c)
	}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			continue
		}
		inner := free
		if n.Kind == yaml.MappingNode {
			inner = free || slices.Contains([]string{"config", "where", "values"}, n.Content[i-1].Value)
		}
		substitute(child, vars, inner, c)
	}
}

func substituteScalar(n *yaml.Node, vars map[string]string, free bool, c *checker) {
	original := n.Value
	replaced := variableReference.ReplaceAllStringFunc(n.Value, func(reference string) string {
		if strings.HasPrefix(reference, "$$") {
			return reference[1:]
		}
		c.original[n] = original
		name := strings.TrimSuffix(strings.TrimPrefix(reference, "${var."), "}")
		if _, ok := vars[name]; !ok || !strings.HasSuffix(reference, "}") {
			c.reference(n, reference, name, vars)
			c.unresolved[n] = true
			return ""
		}
		return c.expand(n, vars[name])
	})

	if free && n.Style == 0 && c.interpolated(n) {
		n.Tag = plainTag(replaced)
	}
	n.Value = replaced
}

// expand returns the value of a variable, as long as all values together are not too long. A short file could otherwise
// become one that takes all of the memory.
func (c *checker) expand(n *yaml.Node, value string) string {
	before := c.expanded
	if c.expanded += len(value); c.expanded <= MaxExpandedBytes {
		return value
	}
	if before <= MaxExpandedBytes {
		c.node(n, CodeLimit, "the values of variables add more than %d bytes to the file", MaxExpandedBytes).
			suggest("keep long texts in files that the DAG file names, such as query_file")
	}
	return ""
}

// reference reports a ${var.name} that has no value, at the reference itself if it can be found in the line.
func (c *checker) reference(n *yaml.Node, reference, name string, vars map[string]string) {
	line, column, width := n.Line, n.Column, 1
	if n.Line <= len(c.lines) {
		from := min(n.Column-1, len(c.lines[n.Line-1]))
		if at := strings.Index(c.lines[n.Line-1][from:], reference); at >= 0 {
			column = utf8.RuneCountInString(c.lines[n.Line-1][:from+at]) + 1
			width = utf8.RuneCountInString(reference)
		}
	}

	if !strings.HasSuffix(reference, "}") {
		c.at(line, column, width, CodeVariable, "${var. is not closed").
			suggest("write ${var.name}; $${var. stands for the text itself")
		return
	}
	c.at(line, column, width, CodeVariable, "there is no variable %q", name).nearest(name, sortedKeys(vars))
}
