package dag

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"gopkg.in/yaml.v3"
)

// compileSchema compiles a JSON Schema that stands alone: references to other documents are refused, so that nothing
// is fetched.
func compileSchema(document any) (*jsonschema.Schema, error) {
	const name = "schema.json"
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(name, document); err != nil {
		return nil, err
	}
	schema, err := compiler.Compile(name)
	var elsewhere *jsonschema.LoadURLError
	if errors.As(err, &elsewhere) {
		return nil, fmt.Errorf("it refers to %s, and other documents are not read", elsewhere.URL)
	}
	var invalid *jsonschema.SchemaValidationError
	if errors.As(err, &invalid) {
		var cause *jsonschema.ValidationError
		if errors.As(invalid.Err, &cause) {
			leaf := cause
			for len(leaf.Causes) > 0 {
				leaf = leaf.Causes[0]
			}
			return nil, fmt.Errorf("at /%s: %s", strings.Join(leaf.InstanceLocation, "/"), inEnglish(leaf))
		}
	}
	return schema, err
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: other documents are not read: %w", url, fs.ErrNotExist)
}

func (d *decoder) configSchema(op OperatorSpec) (*jsonschema.Schema, error) {
	if op.ConfigSchema == nil {
		return nil, nil
	}
	if schema, ok := d.schemas[op.Name]; ok {
		return schema, nil
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(op.ConfigSchema)))
	if err != nil {
		return nil, err
	}
	schema, err := compileSchema(document)
	d.schemas[op.Name] = schema
	return schema, err
}

// configTree is a job's config with the place of every value.
type configTree struct {
	job      value
	node     value                 // `config`, may be absent
	operator string                // its name
	inlined  map[string]*yaml.Node // stem of a *_file field → the node that names the file
	secrets  map[string]bool       // paths of {secret: NAME}
}

// config decodes a job's config: files are read in, secrets collected, and the operator's schema applied.
func (d *decoder) config(v value, j *Job, op OperatorSpec, known bool) {
	t := &configTree{job: v, node: v.get("config"), operator: j.Operator, inlined: map[string]*yaml.Node{}, secrets: map[string]bool{}}
	j.Config = map[string]any{}
	if !known || t.node.present() && t.node.node.Kind != yaml.MappingNode {
		return
	}
	schema, err := d.configSchema(op)
	if err != nil {
		d.node(v.get("operator").node, CodeConfig, "operator %s has no usable config schema: %s", j.Operator, err)
		return
	}
	if d.leadsNowhere(t.node.node) {
		return
	}
	sound := len(d.problems)
	for key, val := range t.node.pairs() {
		name := key.Value
		if stem, ok := strings.CutSuffix(name, "_file"); ok && inlinable(schema, stem, name) {
			if t.node.has(stem) {
				d.node(key, CodeConflict, "`%s` is there already; `%s` cannot be beside it", stem, name)
				continue
			}
			t.inlined[stem] = val
			// A file that cannot be read still stands for its field, so that nothing reports the field as missing.
			text, _ := d.readText(value{val})
			j.Config[stem] = string(text)
			continue
		}
		j.Config[name] = value{val}.json()
	}
	if len(d.problems) > sound {
		return
	}
	plain, _ := d.withoutSecrets(j.Config, nil, t, &j.Secrets).(map[string]any)
	slices.Sort(j.Secrets)
	j.Secrets = slices.Compact(j.Secrets)
	if schema != nil {
		if err := schema.Validate(plain); err != nil {
			var invalid *jsonschema.ValidationError
			if errors.As(err, &invalid) {
				d.configFaults(invalid, schema, t)
			}
		}
	}
	if len(d.problems) == sound && op.Canonical != nil {
		if _, err := op.Canonical(j.Config); err != nil {
			_, place := t.find([]string{err.Key}) // an empty key leads to the config as a whole
			p := d.node(place, CodeConfig, "%s", err.Message)
			if from, ok := t.inlined[err.Key]; ok {
				p.Message = fmt.Sprintf("%s: %s", from.Value, err.Message)
			}
		}
	}
}

// leadsNowhere says whether a variable below a node could not be resolved.
func (d *decoder) leadsNowhere(n *yaml.Node) bool {
	return n != nil && len(d.unresolved) > 0 && (d.unresolved[n] || slices.ContainsFunc(n.Content, d.leadsNowhere))
}

// inlinable says whether a *_file field stands for the field of its stem.
func inlinable(schema *jsonschema.Schema, stem, name string) bool {
	if schema == nil {
		return false
	}
	_, stemKnown := schema.Properties[stem]
	_, fileKnown := schema.Properties[name]
	return stemKnown && !fileKnown
}

// withoutSecrets is the config with text in place of each {secret: NAME}, for the schema.
func (d *decoder) withoutSecrets(v any, at []string, t *configTree, names *[]string) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["secret"].(string); ok && len(v) == 1 && len(at) > 0 {
			_, place := t.find(at)
			secretName.check(value{place}.get("secret").node, "`secret`", d.checker)
			t.secrets[strings.Join(at, "\x00")] = true
			*names = append(*names, name)
			return "secret"
		}
		m := make(map[string]any, len(v))
		for _, key := range sortedKeys(v) {
			m[key] = d.withoutSecrets(v[key], slices.Concat(at, []string{key}), t, names)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = d.withoutSecrets(v[i], slices.Concat(at, []string{fmt.Sprint(i)}), t, names)
		}
		return list
	}
	return v
}

// find is the key and the value at a path of the config, or the nearest there is above it.
func (t *configTree) find(path []string) (key, val *yaml.Node) {
	if !t.node.present() {
		return t.job.key("operator"), t.job.get("operator").node
	}
	key, val = t.job.key("config"), t.node.node
	for i, name := range path {
		if i == 0 && t.inlined[name] != nil {
			return t.node.key(name + "_file"), t.inlined[name]
		}
		if val.Kind == yaml.SequenceNode {
			var index int
			if _, err := fmt.Sscan(name, &index); err != nil || index >= len(val.Content) {
				return key, val
			}
			val = val.Content[index]
			key = val
			continue
		}
		inner := value{val}
		if !inner.has(name) {
			return key, val
		}
		key, val = inner.key(name), inner.get(name).node
	}
	return key, val
}

// configFaults reports every leaf of a schema's verdict at the value it is about.
func (d *decoder) configFaults(e *jsonschema.ValidationError, schema *jsonschema.Schema, t *configTree) {
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		// Say what is wrong with the one alternative of the right type, if there is one.
		var fitting []*jsonschema.ValidationError
		for _, cause := range e.Causes {
			if !failsOnType(cause, len(e.InstanceLocation)) {
				fitting = append(fitting, cause)
			}
		}
		if len(fitting) == 1 {
			d.configFaults(fitting[0], schema, t)
			return
		}
		if t.secrets[strings.Join(e.InstanceLocation, "\x00")] {
			return
		}
		_, place := t.find(e.InstanceLocation)
		d.node(place, CodeConfig, "%s has none of the forms that operator %s allows", configLabel(e.InstanceLocation), t.operator)
		return
	}
	if len(e.Causes) > 0 {
		for _, cause := range e.Causes {
			d.configFaults(cause, schema, t)
		}
		return
	}
	d.configFault(e, schema, t)
}

func failsOnType(e *jsonschema.ValidationError, depth int) bool {
	if _, ok := e.ErrorKind.(*kind.Type); ok {
		return len(e.InstanceLocation) == depth
	}
	return len(e.Causes) == 1 && failsOnType(e.Causes[0], depth)
}

func (d *decoder) configFault(e *jsonschema.ValidationError, schema *jsonschema.Schema, t *configTree) {
	label := configLabel(e.InstanceLocation)
	_, place := t.find(e.InstanceLocation)
	if t.secrets[strings.Join(e.InstanceLocation, "\x00")] {
		// The platform does not know the value; all it can say is whether text may stand here.
		if k, ok := e.ErrorKind.(*kind.Type); ok {
			d.node(place, CodeConfig, "%s cannot be a secret; it must be %s", label, inWords(k.Want))
		}
		return
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		known := properties(schema, e.InstanceLocation)
		slices.Sort(k.Properties)
		for _, name := range k.Properties {
			key, _ := t.find(slices.Concat(e.InstanceLocation, []string{name}))
			d.node(key, CodeUnknown, "%s of operator %s has no field %q", label, t.operator, name).nearest(name, known)
		}
	case *kind.Required:
		for _, name := range k.Missing {
			p := d.node(place, CodeMissing, "%s of operator %s needs `%s`", label, t.operator, name)
			if len(e.InstanceLocation) == 0 && inlinable(schema, name, name+"_file") && isText(schema.Properties[name]) {
				p.suggest("write it here, or name a file with `%s_file`", name)
			}
		}
	case *kind.Type:
		d.node(place, CodeConfig, "%s must be %s, not %s", label, inWords(k.Want), describe(place))
	case *kind.Enum:
		var words []string
		for _, want := range k.Want {
			words = append(words, fmt.Sprint(want))
		}
		d.node(place, CodeConfig, "%s cannot be %q", label, fmt.Sprint(k.Got)).nearest(fmt.Sprint(k.Got), words)
	case *kind.Minimum:
		d.node(place, CodeConfig, "%s must be %s or more, not %s", label, k.Want.RatString(), k.Got.RatString())
	case *kind.Maximum:
		d.node(place, CodeConfig, "%s must be %s or less, not %s", label, k.Want.RatString(), k.Got.RatString())
	case *kind.MinLength:
		d.node(place, CodeConfig, "%s must have %d %s or more, not %d", label, k.Want, plural(k.Want, "character", "characters"), k.Got)
	case *kind.MaxLength:
		d.node(place, CodeConfig, "%s must have %d %s or less, not %d", label, k.Want, plural(k.Want, "character", "characters"), k.Got)
	case *kind.Pattern:
		d.node(place, CodeConfig, "%s cannot be %q: it must match %s", label, k.Got, k.Want)
	default:
		d.node(place, CodeConfig, "%s: %s", label, inEnglish(e))
	}
}

func isText(s *jsonschema.Schema) bool {
	return s != nil && s.Types != nil && slices.Equal(s.Types.ToStrings(), []string{"string"})
}

func configLabel(path []string) string {
	return "`" + strings.Join(slices.Concat([]string{"config"}, path), ".") + "`"
}

// properties is the known fields at a path of a schema, as far as it can be followed without deciding anything.
func properties(schema *jsonschema.Schema, path []string) []string {
	for _, name := range path {
		for schema != nil && schema.Ref != nil {
			schema = schema.Ref
		}
		if schema == nil {
			return nil
		}
		if inner, ok := schema.Properties[name]; ok {
			schema = inner
		} else {
			schema = schema.Items2020
		}
	}
	for schema != nil && schema.Ref != nil {
		schema = schema.Ref
	}
	if schema == nil {
		return nil
	}
	return sortedKeys(schema.Properties)
}

// inWords names JSON types as the messages of the grammar do.
func inWords(types []string) string {
	words := map[string]string{
		"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
		"object": "a mapping", "array": "a list", "null": "empty",
	}
	named := make([]string, len(types))
	for i, t := range types {
		named[i] = words[t]
	}
	return strings.Join(named, " or ")
}

func inEnglish(e *jsonschema.ValidationError) string {
	return e.ErrorKind.LocalizedString(message.NewPrinter(language.English))
}
