package dag

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// A shape is what a piece of the DAG file may look like. The grammar (grammar.go) is made of shapes; Parse checks
// nodes against it, Schema writes it down as JSON Schema and Format takes the order of fields from it, so that
// the three cannot differ.
type shape interface {
	// fits says whether a node could be meant as this shape. It chooses among alternatives.
	fits(n *yaml.Node) bool
	// check reports how a node differs from this shape. The label names the field in messages.
	check(n *yaml.Node, label string, c *checker)
	// schema is the shape as JSON Schema 2020-12.
	schema() map[string]any
}

// checker holds a tree against the grammar.
type checker struct {
	*report
	unresolved map[*yaml.Node]bool // scalars with a ${var.name} that leads nowhere: nothing more is said of them
}

// interpolated says whether a variable was replaced in a scalar. Its type is then what the grammar wants it to be.
func (c *checker) interpolated(n *yaml.Node) bool {
	_, ok := c.original[n]
	return ok
}

func (c *checker) wrongType(n *yaml.Node, label, want string) *Problem {
	if n.Tag == "!!null" {
		return c.node(n, CodeType, "%s has no value; it must be %s", label, want)
	}
	if c.interpolated(n) {
		return c.node(n, CodeType, "%s must be %s, but the variable makes it %q", label, want, n.Value)
	}
	return c.node(n, CodeType, "%s must be %s, not %s", label, want, describe(n))
}

// textShape is a string.
type textShape struct {
	pattern *regexp.Regexp
	rule    string                  // what the pattern or valid asks for, in words
	enum    []string                // the only values allowed
	instead map[string]string       // what to do instead of a value that people try
	longest int                     // in characters; 0: unlimited
	valid   func(text string) error // what a pattern cannot say; not part of the JSON Schema
}

func (s textShape) fits(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode }

func (s textShape) check(n *yaml.Node, label string, c *checker) {
	isText := n.Kind == yaml.ScalarNode && (n.Tag == "!!str" || n.Tag == "!!timestamp" || c.interpolated(n))
	switch {
	case c.unresolved[n]:
	case !isText:
		p := c.wrongType(n, label, "text")
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" && s.enum == nil {
			p.suggest("quote it: %q", n.Value)
			if s.pattern != nil && !s.pattern.MatchString(n.Value) {
				p.Suggestion = s.rule
			}
		}
	case n.Value == "":
		c.node(n, CodeValue, "%s is empty", label)
	case s.enum != nil && !slices.Contains(s.enum, n.Value):
		p := c.node(n, CodeValue, "%s cannot be %q", label, n.Value)
		if p.Suggestion = s.instead[n.Value]; p.Suggestion == "" {
			p.nearest(n.Value, s.enum)
		}
	case s.longest > 0 && utf8.RuneCountInString(n.Value) > s.longest:
		c.node(n, CodeLimit, "%s has %d characters; at most %d are allowed", label, utf8.RuneCountInString(n.Value), s.longest)
	case s.pattern != nil && !s.pattern.MatchString(n.Value):
		c.node(n, CodeValue, "%s cannot be %q: %s", label, n.Value, s.rule)
	case s.valid != nil:
		if err := s.valid(n.Value); err != nil {
			c.node(n, CodeValue, "%s cannot be %q: %s", label, n.Value, err)
		}
	}
}

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
	want := "a number"
	if s.whole {
		want = "a whole number"
	}
	tag := n.Tag
	if c.interpolated(n) {
		tag = plainTag(n.Value)
	}
	if c.unresolved[n] {
		return
	}
	if n.Kind != yaml.ScalarNode || tag != "!!int" && (s.whole || tag != "!!float") {
		p := c.wrongType(n, label, want)
		if n.Kind == yaml.ScalarNode && plainTag(n.Value) == "!!int" {
			p.suggest("remove the quotes")
		}
		return
	}
	v, err := number(n.Value)
	if s.whole && err == nil {
		err = plain(n.Value).Decode(new(int64))
	}
	if err != nil || math.IsNaN(v) || v < s.low || v > s.high {
		p := c.node(n, CodeValue, "%s cannot be %s", label, n.Value)
		if s.high == math.MaxInt64 {
			p.suggest("it must be %s or more", compact(s.low))
		} else {
			p.suggest("it must be from %s to %s", compact(s.low), compact(s.high))
		}
	}
}

func (s numberShape) schema() map[string]any {
	m := map[string]any{"type": "number", "minimum": s.low, "maximum": s.high}
	if s.whole {
		m["type"] = "integer"
	}
	return orVariable(m)
}

// plainTag is the type that YAML gives an unquoted scalar.
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
	if c.unresolved[n] || n.Kind == yaml.ScalarNode && (n.Tag == "!!bool" || c.interpolated(n) && plainTag(n.Value) == "!!bool") {
		return
	}
	c.wrongType(n, label, "true or false")
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

// finite reports numbers that JSON cannot hold or that would lose digits in it.
func finite(n *yaml.Node, label string, c *checker) {
	switch n.Tag {
	case "!!float":
		if digits.MatchString(n.Value) {
			c.node(n, CodeValue, "%s has too many digits: %s", label, n.Value).suggest("quote it")
		} else if v, err := number(n.Value); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			c.node(n, CodeValue, "%s cannot be %s", label, n.Value)
		}
	case "!!int": // above the largest int64
		if plain(n.Value).Decode(new(int64)) != nil {
			c.node(n, CodeValue, "%s has too many digits: %s", label, n.Value).suggest("quote it")
		}
	}
}

var digits = regexp.MustCompile(`^[-+]?[0-9_]+$`)

// anyShape is any JSON value; what it must be is somebody else's schema.
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

// field is one entry of an object.
type field struct {
	name     string
	of       shape
	doc      string
	required bool
}

// objectShape is a mapping with known fields.
type objectShape struct {
	what   string // in messages: "a job"
	doc    string
	fields []field
	oneOf  []string            // exactly one of these must be there
	needs  map[string]string   // a field that makes sense only beside another
	tag    string              // the field that decides which others may be there
	cases  map[string]tagCases // by the tag's value
}

// tagCases are the fields that go with one value of the tag.
type tagCases struct{ required, optional []string }

func (s objectShape) fits(n *yaml.Node) bool { return n.Kind == yaml.MappingNode }

func (s objectShape) names() []string {
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = f.name
	}
	return names
}

func (s objectShape) field(name string) (field, bool) {
	for _, f := range s.fields {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

func (s objectShape) check(n *yaml.Node, label string, c *checker) {
	if n.Kind != yaml.MappingNode {
		c.wrongType(n, label, "a mapping")
		return
	}
	v := value{node: n}
	var chosen []string
	meant := map[string]bool{} // fields whose name is misspelled; that they are missing is no second fault
	for key, val := range v.pairs() {
		f, ok := s.field(key.Value)
		if !ok {
			c.node(key, CodeUnknown, "%s has no field %q", s.what, key.Value).nearest(key.Value, s.names())
			meant[nearest(key.Value, s.names())] = true
			continue
		}
		f.of.check(val, "`"+f.name+"`", c)
		if slices.Contains(s.oneOf, f.name) {
			chosen = append(chosen, f.name)
		}
		if other, ok := s.needs[f.name]; ok && !v.has(other) {
			c.node(key, CodeConflict, "`%s` goes with `%s`, which is not there", f.name, other)
		}
	}
	for _, f := range s.fields {
		if f.required && !v.has(f.name) && !meant[f.name] {
			c.node(n, CodeMissing, "%s needs `%s`", s.what, f.name)
		}
	}
	if len(s.oneOf) > 0 && len(chosen) == 0 && !slices.ContainsFunc(s.oneOf, func(name string) bool { return meant[name] }) {
		c.node(n, CodeMissing, "%s needs one of `%s`", s.what, strings.Join(s.oneOf, "`, `"))
	}
	for _, second := range chosen[min(1, len(chosen)):] {
		c.node(v.key(second), CodeConflict, "%s has `%s` already; `%s` cannot be beside it", s.what, chosen[0], second)
	}
	if rule, ok := s.cases[v.get(s.tag).text()]; ok {
		s.checkCase(v, rule, meant, c)
	}
}

func (s objectShape) checkCase(v value, rule tagCases, meant map[string]bool, c *checker) {
	is := v.get(s.tag).text()
	for key := range v.pairs() {
		if _, known := s.field(key.Value); known && key.Value != s.tag && !slices.Contains(rule.required, key.Value) && !slices.Contains(rule.optional, key.Value) {
			c.node(key, CodeConflict, "%s of %s %s has no field `%s`", s.what, s.tag, is, key.Value)
		}
	}
	for _, name := range rule.required {
		if !v.has(name) && !meant[name] {
			c.node(v.node, CodeMissing, "%s of %s %s needs `%s`", s.what, s.tag, is, name)
		}
	}
}

func (s objectShape) schema() map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, f := range s.fields {
		p := f.of.schema()
		if f.doc != "" {
			p["description"] = f.doc
		}
		properties[f.name] = p
		if f.required {
			required = append(required, f.name)
		}
	}
	m := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if s.doc != "" {
		m["description"] = s.doc
	}
	if len(required) > 0 {
		m["required"] = required
	}
	if len(s.oneOf) > 0 {
		var alternatives []any
		for _, name := range s.oneOf {
			alternatives = append(alternatives, map[string]any{"required": []string{name}})
		}
		m["oneOf"] = alternatives
	}
	if len(s.needs) > 0 {
		dependent := map[string]any{}
		for name, other := range s.needs {
			dependent[name] = []string{other}
		}
		m["dependentRequired"] = dependent
	}
	var conditions []any
	for _, is := range sortedKeys(s.cases) {
		rule := s.cases[is]
		then := map[string]any{"propertyNames": map[string]any{"enum": slices.Concat([]string{s.tag}, rule.required, rule.optional)}}
		if len(rule.required) > 0 {
			then["required"] = rule.required
		}
		conditions = append(conditions, map[string]any{
			"if":   map[string]any{"properties": map[string]any{s.tag: map[string]any{"const": is}}, "required": []string{s.tag}},
			"then": then,
		})
	}
	if conditions != nil {
		m["allOf"] = conditions
	}
	return m
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
	// Names are never variables, so the pattern stands alone.
	names := map[string]any{"minLength": 1}
	if s.key.pattern != nil {
		names["pattern"] = s.key.pattern.String()
	}
	return map[string]any{"type": "object", "propertyNames": names, "additionalProperties": s.of.schema(), "maxProperties": s.max}
}

// choiceShape is one of several shapes, told apart by what kind of node is there.
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
		// The variable's value chooses, as if it stood there unquoted.
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
	if text, ok := o.(textShape); ok && text.enum != nil && n.Tag == "!!str" && n.Value != "" && !slices.Contains(text.enum, n.Value) {
		p := c.node(n, CodeValue, "%s cannot be %q", label, n.Value)
		if p.nearest(n.Value, text.enum); nearest(n.Value, text.enum) == "" {
			p.Suggestion = cmp.Or(text.instead[n.Value], "it is "+s.want)
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
	return textShape{pattern: regexp.MustCompile(expression), rule: rule}
}

func oneOf(values ...string) textShape { return textShape{enum: values} }

func whole(low, high int64) numberShape {
	return numberShape{whole: true, low: float64(low), high: float64(high)}
}

func listOf(of shape, minimum, maximum int) listShape {
	return listShape{of: of, min: minimum, max: maximum}
}

func quoted(names []string) string { return fmt.Sprintf("`%s`", strings.Join(names, "`, `")) }
