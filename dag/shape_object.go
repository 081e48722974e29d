package dag

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/spelling"
)

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
	unless *setting            // where this is set, none of them may be there; nil: nothing stands for them
	needs  map[string]string   // fields that make sense only beside another, and that other
	apart  map[string]string   // fields that make no sense beside another, and that other
	tag    string              // the field that decides which others may be there
	cases  map[string]tagCases // by the tag's value
}

// setting is a field with a value.
type setting struct{ name, value string }

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
	misspelled := s.checkFields(v, c)

	for _, f := range s.fields {
		if f.required && !v.has(f.name) && !misspelled[f.name] {
			c.node(n, CodeMissing, "%s needs `%s`", s.what, f.name)
		}
	}
	s.checkOneOf(v, misspelled, c)
	if rule, ok := s.cases[v.get(s.tag).text()]; ok {
		s.checkCase(v, rule, misspelled, c)
	}
}

// checkFields checks the fields that are there. It returns the known fields that misspelled names probably mean, so
// that they are not reported as missing too.
func (s objectShape) checkFields(v value, c *checker) (misspelled map[string]bool) {
	misspelled = map[string]bool{}
	for key, val := range v.pairs() {
		f, ok := s.field(key.Value)
		if !ok {
			c.node(key, CodeUnknown, "%s has no field %q", s.what, key.Value).nearest(key.Value, s.names())
			misspelled[spelling.Nearest(key.Value, s.names())] = true
			continue
		}
		f.of.check(val, "`"+f.name+"`", c)
		if other, ok := s.needs[f.name]; ok && !v.has(other) {
			c.node(key, CodeConflict, "`%s` needs `%s` beside it", f.name, other)
		}
		if other, ok := s.apart[f.name]; ok && v.has(other) {
			c.node(key, CodeConflict, "%s cannot have both `%s` and `%s`", s.what, other, f.name)
		}
	}
	return misspelled
}

// checkOneOf checks that exactly one of the alternative fields is there.
func (s objectShape) checkOneOf(v value, misspelled map[string]bool, c *checker) {
	var chosen []string
	for key := range v.pairs() {
		if slices.Contains(s.oneOf, key.Value) {
			chosen = append(chosen, key.Value)
		}
	}
	if s.unless != nil && v.get(s.unless.name).text() == s.unless.value {
		for _, name := range chosen {
			c.node(v.key(name), CodeConflict, "%s of %s %s has no `%s`", s.what, s.unless.name, s.unless.value, name)
		}
		return
	}

	meant := func(name string) bool { return misspelled[name] }
	if len(s.oneOf) > 0 && len(chosen) == 0 && !slices.ContainsFunc(s.oneOf, meant) {
		c.node(v.node, CodeMissing, "%s needs one of `%s`", s.what, strings.Join(s.oneOf, "`, `"))
	}
	for _, second := range chosen[min(1, len(chosen)):] {
		c.node(v.key(second), CodeConflict, "%s cannot have both `%s` and `%s`", s.what, chosen[0], second)
	}
}

// checkCase checks that the fields are those that go with the tag's value.
func (s objectShape) checkCase(v value, rule tagCases, misspelled map[string]bool, c *checker) {
	is := v.get(s.tag).text()
	allowed := slices.Concat([]string{s.tag}, rule.required, rule.optional)
	for key := range v.pairs() {
		if _, known := s.field(key.Value); known && !slices.Contains(allowed, key.Value) {
			c.node(key, CodeConflict, "%s of %s %s has no field `%s`", s.what, s.tag, is, key.Value)
		}
	}
	for _, name := range rule.required {
		if !v.has(name) && !misspelled[name] {
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
		m["oneOf"] = s.oneOfSchemas()
	}
	if len(s.needs) > 0 {
		dependent := map[string]any{}
		for name, other := range s.needs {
			dependent[name] = []string{other}
		}
		m["dependentRequired"] = dependent
	}
	if len(s.apart) > 0 {
		var both []any
		for _, name := range sortedKeys(s.apart) {
			both = append(both, map[string]any{"required": []string{name, s.apart[name]}})
		}
		m["not"] = map[string]any{"anyOf": both}
	}
	if len(s.cases) > 0 {
		m["allOf"] = s.caseSchemas()
	}
	return m
}

// oneOfSchemas returns a schema for each of the alternative fields, and one for none of them where that may be.
func (s objectShape) oneOfSchemas() (alternatives []any) {
	for _, name := range s.oneOf {
		alternatives = append(alternatives, map[string]any{"required": []string{name}})
	}
	if s.unless == nil {
		return alternatives
	}

	set := map[string]any{
		"properties": map[string]any{s.unless.name: map[string]any{"const": s.unless.value}},
		"required":   []string{s.unless.name},
	}
	without := map[string]any{"not": map[string]any{"anyOf": alternatives}}
	with := make([]any, len(alternatives))
	for i, alternative := range alternatives {
		with[i] = map[string]any{"allOf": []any{alternative, map[string]any{"not": set}}}
	}
	return append(with, map[string]any{"allOf": []any{set, without}})
}

// caseSchemas returns a conditional schema for each value of the tag.
func (s objectShape) caseSchemas() []any {
	var conditions []any
	for _, is := range sortedKeys(s.cases) {
		rule := s.cases[is]
		allowed := slices.Concat([]string{s.tag}, rule.required, rule.optional)
		then := map[string]any{"propertyNames": map[string]any{"enum": allowed}}
		if len(rule.required) > 0 {
			then["required"] = rule.required
		}

		conditions = append(conditions, map[string]any{
			"if": map[string]any{
				"properties": map[string]any{s.tag: map[string]any{"const": is}},
				"required":   []string{s.tag},
			},
			"then": then,
		})
	}
	return conditions
}
