package dag

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/spelling"
)

// A shape describes what a piece of the DAG file may look like. The grammar (grammar.go) is made of shapes. Parse
// checks nodes against it, Schema writes it down as JSON Schema and Format takes the order of fields from it, so that
// the three cannot differ.
type shape interface {
	// fits reports whether a node looks as if it were meant as this shape. It chooses among alternatives.
	fits(n *yaml.Node) bool
	// check reports how a node differs from this shape. The label names the field in messages.
	check(n *yaml.Node, label string, c *checker)
	// schema returns the shape as JSON Schema 2020-12.
	schema() map[string]any
}

// checker checks a tree against the grammar.
type checker struct {
	*report
	unresolved map[*yaml.Node]bool // scalars with a ${var.name} that has no value: nothing else about them is reported
}

// interpolated reports whether a variable was replaced in a scalar. Its type is then the one that the grammar asks for.
func (c *checker) interpolated(n *yaml.Node) bool {
	_, ok := c.original[n]
	return ok
}

func (c *checker) wrongType(n *yaml.Node, label, want string) *Problem {
	if n.Tag == "!!null" {
		return c.node(n, CodeType, "%s has no value; it must be %s", label, want)
	}
	if c.interpolated(n) {
		return c.node(n, CodeType, "%s must be %s, but the variable sets it to %q", label, want, n.Value)
	}
	return c.node(n, CodeType, "%s must be %s, not %s", label, want, describe(n))
}

// anyShape is any JSON value. Its rules, if there are any, are in a schema outside the grammar.
type anyShape struct {
	object bool // it must at least be a mapping
}

func (s anyShape) fits(n *yaml.Node) bool { return !s.object || n.Kind == yaml.MappingNode }

func (s anyShape) check(n *yaml.Node, label string, c *checker) {
	if !s.fits(n) {
		c.wrongType(n, label, "a mapping")
		return
	}
	finite(n, label, c)
	for i, child := range n.Content {
		switch {
		case n.Kind != yaml.MappingNode:
			anyShape{}.check(child, "an entry of "+label, c)
		case i%2 == 1:
			anyShape{}.check(child, "`"+n.Content[i-1].Value+"`", c)
		}
	}
}

func (s anyShape) schema() map[string]any {
	if s.object {
		return map[string]any{"type": "object"}
	}
	return map[string]any{}
}

// listShape is a list of one shape.
type listShape struct {
	of       shape
	min, max int
	single   bool // a single value stands for a list of one
}

func (s listShape) fits(n *yaml.Node) bool {
	return n.Kind == yaml.SequenceNode || s.single && s.of.fits(n)
}

func (s listShape) check(n *yaml.Node, label string, c *checker) {
	switch {
	case s.single && n.Kind != yaml.SequenceNode && n.Tag != "!!null":
		s.of.check(n, label, c)
	case n.Kind != yaml.SequenceNode:
		c.wrongType(n, label, "a list")
	case len(n.Content) < s.min:
		c.node(n, CodeValue, "%s needs at least %d %s", label, s.min, plural(s.min, "entry", "entries"))
	case len(n.Content) > s.max:
		c.node(n, CodeLimit, "%s has %d entries; at most %d are allowed", label, len(n.Content), s.max)
	default:
		for _, item := range n.Content {
			s.of.check(item, "an entry of "+label, c)
		}
	}
}

func (s listShape) schema() map[string]any {
	m := map[string]any{"type": "array", "items": s.of.schema(), "minItems": s.min, "maxItems": s.max}
	if s.single {
		return map[string]any{"anyOf": []any{m, s.of.schema()}}
	}
	return m
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// tableShape is a mapping whose keys are names that the user chooses.
type tableShape struct {
	key textShape
	of  shape
	max int
}

func (s tableShape) fits(n *yaml.Node) bool { return n.Kind == yaml.MappingNode }

func (s tableShape) check(n *yaml.Node, label string, c *checker) {
	if n.Kind != yaml.MappingNode {
		c.wrongType(n, label, "a mapping")
		return
	}
	if len(n.Content)/2 > s.max {
		c.node(n, CodeLimit, "%s has %d entries; at most %d are allowed", label, len(n.Content)/2, s.max)
		return
	}
	for key, val := range (value{node: n}).pairs() {
		s.key.check(key, "a name in "+label, c)
		s.of.check(val, "`"+key.Value+"`", c)
	}
}

func (s tableShape) schema() map[string]any {
	// A name cannot be a variable, so the pattern is the only form.
	names := map[string]any{"minLength": 1}
	if s.key.pattern != nil {
		names["pattern"] = s.key.pattern.String()
	}
	return map[string]any{
		"type":                 "object",
		"propertyNames":        names,
		"additionalProperties": s.of.schema(),
		"maxProperties":        s.max,
	}
}

// choiceShape is one of several shapes. The kind of the node decides which.
type choiceShape struct {
	want    string // in messages: "a count or a list of names"
	options []shape
}

func (s choiceShape) fits(n *yaml.Node) bool { return s.option(n) != nil }

func (s choiceShape) option(n *yaml.Node) shape {
	for _, o := range s.options {
		if o.fits(n) {
			return o
		}
	}
	return nil
}

func (s choiceShape) check(n *yaml.Node, label string, c *checker) {
	if c.interpolated(n) {
		// The variable's value decides, as if it stood there unquoted.
		unquoted := *n
		unquoted.Tag = plainTag(n.Value)
		if o := s.option(&unquoted); o != nil {
			o.check(n, label, c)
			return
		}
	}
	if c.unresolved[n] {
		return
	}

	o := s.option(n)
	text, isText := o.(textShape)
	if isText && text.enum != nil && n.Tag == "!!str" && n.Value != "" && !slices.Contains(text.enum, n.Value) {
		p := c.node(n, CodeValue, "%s cannot be %q", label, n.Value)
		if p.Suggestion = text.insteadOf(n.Value); p.Suggestion != "" {
			return
		}
		if p.nearest(n.Value, text.enum); spelling.Nearest(n.Value, text.enum) == "" {
			p.Suggestion = "it must be " + s.want
		}
		return
	}
	if o == nil || n.Tag == "!!null" {
		c.wrongType(n, label, s.want)
		return
	}
	o.check(n, label, c)
}

func (s choiceShape) schema() map[string]any {
	alternatives := make([]any, len(s.options))
	for i, o := range s.options {
		alternatives[i] = o.schema()
	}
	return map[string]any{"anyOf": alternatives}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// pattern is a text shape from a regular expression that JSON Schema understands too.
func pattern(expression, rule string) textShape {
	return textShape{pattern: late.Pattern(expression), rule: rule}
}

func oneOf(values ...string) textShape { return textShape{enum: values} }

func whole(low, high int64) numberShape {
	return numberShape{whole: true, low: float64(low), high: float64(high)}
}

func listOf(of shape, minimum, maximum int) listShape {
	return listShape{of: of, min: minimum, max: maximum}
}

func quoted(names []string) string { return fmt.Sprintf("`%s`", strings.Join(names, "`, `")) }
