package dag

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/late"
)

// textShape is a string.
type textShape struct {
	pattern *late.Regexp
	rule    string                   // the pattern's rule, in words
	enum    []string                 // the only values allowed
	instead func(text string) string // what to do instead of a value that is not in enum; may be nil and return ""
	longest int                      // in characters; 0: unlimited
	valid   func(text string) error  // a check that a pattern cannot express; not part of the JSON Schema
}

func (s textShape) fits(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode }

func (s textShape) check(n *yaml.Node, label string, c *checker) {
	if c.unresolved[n] {
		return
	}
	isText := n.Kind == yaml.ScalarNode && (n.Tag == "!!str" || n.Tag == "!!timestamp" || c.interpolated(n))
	if !isText {
		s.notText(n, label, c)
		return
	}
	s.checkText(n, label, c)
}

func (s textShape) notText(n *yaml.Node, label string, c *checker) {
	p := c.wrongType(n, label, "text")
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null" || s.enum != nil:
	case s.breaks(n.Value):
		p.Suggestion = s.rule
	default:
		p.suggest("quote it: %q", n.Value)
	}
}

func (s textShape) checkText(n *yaml.Node, label string, c *checker) {
	count := utf8.RuneCountInString(n.Value)
	switch {
	case n.Value == "":
		s.suggest(c.node(n, CodeValue, "%s is empty", label), n.Value)
	case s.enum != nil && !slices.Contains(s.enum, n.Value):
		s.suggest(c.node(n, CodeValue, "%s cannot be %q", label, n.Value), n.Value)
	case s.longest > 0 && count > s.longest:
		c.node(n, CodeLimit, "%s has %d characters; at most %d are allowed", label, count, s.longest)
	case s.breaks(n.Value):
		c.node(n, CodeValue, "%s cannot be %q: %s", label, n.Value, s.rule)
	case s.valid != nil:
		if err := s.valid(n.Value); err != nil {
			c.node(n, CodeValue, "%s cannot be %q: %s", label, n.Value, err)
		}
	}
}

// suggest adds to a problem what to write instead of a text that is not in enum.
func (s textShape) suggest(p *Problem, text string) {
	if p.Suggestion = s.insteadOf(text); p.Suggestion == "" {
		p.nearest(text, s.enum)
	}
}

// insteadOf returns what to do instead of a text that is not in enum, where the shape knows.
func (s textShape) insteadOf(text string) string {
	if s.instead == nil {
		return ""
	}
	return s.instead(text)
}

// breaks reports whether a text does not match the pattern.
func (s textShape) breaks(text string) bool { return s.pattern != nil && !s.pattern.MatchString(text) }

func (s textShape) schema() map[string]any {
	m := map[string]any{"type": "string", "minLength": 1}
	if s.longest > 0 {
		m["maxLength"] = s.longest
	}
	switch {
	case s.enum != nil:
		return orVariable(map[string]any{"enum": s.enum})
	case s.pattern != nil:
		m["pattern"] = s.pattern.String()
		return orVariable(m)
	}
	return m
}

// orVariable lets a scalar be a ${var.name} instead, which only Parse can resolve.
func orVariable(m map[string]any) map[string]any {
	return map[string]any{"anyOf": []any{m, map[string]any{"$ref": "#/$defs/variable"}}}
}

// numberShape is a number from low to high.
type numberShape struct {
	whole     bool
	low, high float64
}

func (s numberShape) fits(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!float")
}

func (s numberShape) check(n *yaml.Node, label string, c *checker) {
	if c.unresolved[n] {
		return
	}
	if !s.isNumber(n, c) {
		want := "a number"
		if s.whole {
			want = "a whole number"
		}
		p := c.wrongType(n, label, want)
		if n.Kind == yaml.ScalarNode && plainTag(n.Value) == "!!int" {
			p.suggest("remove the quotes")
		}
		return
	}

	if !s.inRange(n.Value) {
		p := c.node(n, CodeValue, "%s cannot be %s", label, n.Value)
		if s.high == math.MaxInt64 {
			p.suggest("it must be %s or more", compact(s.low))
		} else {
			p.suggest("it must be from %s to %s", compact(s.low), compact(s.high))
		}
	}
}

// isNumber reports whether a node is a number, and a whole one where the shape asks for it.
func (s numberShape) isNumber(n *yaml.Node, c *checker) bool {
	tag := n.Tag
	if c.interpolated(n) {
		tag = plainTag(n.Value)
	}
	return n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float" && !s.whole)
}

func (s numberShape) inRange(text string) bool {
	v, err := number(text)
	if err != nil || math.IsNaN(v) || v < s.low || v > s.high {
		return false
	}
	return !s.whole || plain(text).Decode(new(int64)) == nil
}

func (s numberShape) schema() map[string]any {
	m := map[string]any{"type": "number", "minimum": s.low, "maximum": s.high}
	if s.whole {
		m["type"] = "integer"
	}
	return orVariable(m)
}

// plainTag returns the type that YAML gives an unquoted scalar.
func plainTag(value string) string { return plain(value).ShortTag() }

func plain(value string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: value} }

// number reads a YAML number, base prefixes and underscores included.
func number(value string) (float64, error) {
	var v float64
	err := plain(value).Decode(&v)
	return v, err
}

func compact(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// booleanShape is true or false.
type booleanShape struct{}

func (booleanShape) fits(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!bool" }

func (booleanShape) check(n *yaml.Node, label string, c *checker) {
	if c.unresolved[n] {
		return
	}
	isBool := n.Tag == "!!bool" || c.interpolated(n) && plainTag(n.Value) == "!!bool"
	if n.Kind != yaml.ScalarNode || !isBool {
		c.wrongType(n, label, "true or false")
	}
}

func (booleanShape) schema() map[string]any { return orVariable(map[string]any{"type": "boolean"}) }

// scalarShape is any single value but null.
type scalarShape struct{}

func (scalarShape) fits(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode }

func (scalarShape) check(n *yaml.Node, label string, c *checker) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		c.wrongType(n, label, "a single value")
		return
	}
	finite(n, label, c)
}

func (scalarShape) schema() map[string]any {
	return map[string]any{"type": []string{"string", "number", "boolean"}}
}

// finite reports numbers that JSON cannot hold, that nobody can compute with, or that look like something else.
func finite(n *yaml.Node, label string, c *checker) {
	tooLarge := n.Tag == "!!str" && n.Style == 0 && yamlNumber.MatchString(n.Value)
	if !tooLarge && n.Tag != "!!int" && n.Tag != "!!float" {
		return
	}

	v, err := number(n.Value)
	_, refused := exactNumber(n)
	switch {
	case refused != nil && err == nil && (math.IsNaN(v) || math.IsInf(v, 0)):
		c.node(n, CodeValue, "%s cannot be %s", label, n.Value)
	case refused != nil:
		c.node(n, CodeValue, "%s is a number that is not accepted: %s", label, refused).
			suggest("quote it if it is text")
	case tooLarge:
		c.node(n, CodeValue, "%s is a number beyond 1.8e308", label).suggest("quote it if it is text")
	case octal.MatchString(n.Value):
		c.node(n, CodeValue, "%s begins with a zero: %s", label, n.Value).
			suggest("quote it if it is text, and remove the zero if it is a number")
	}
}

var (
	// yamlNumber matches what looks like a number to a reader, and is text to YAML if a float64 cannot hold it.
	yamlNumber = late.Pattern(`^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$`)
	// octal matches what YAML 1.1 reads as an octal number, and YAML 1.2 as a decimal one.
	octal = late.Pattern(`^[-+]?0[0-9_]+$`)
)
