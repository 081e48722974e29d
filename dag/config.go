package dag

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"gopkg.in/yaml.v3"
)

// compileSchema compiles a JSON Schema. It refuses references to other documents, so that nothing is fetched.
func compileSchema(document any) (*jsonschema.Schema, error) {
	const place = "dag:///"
	const name = place + "schema.json" // a name without a scheme would stand for a file of the server
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(name, document); err != nil {
		return nil, err
	}

	schema, err := compiler.Compile(name)
	var elsewhere *jsonschema.LoadURLError
	if errors.As(err, &elsewhere) {
		return nil, fmt.Errorf("it refers to %s, and other documents are not read",
			strings.TrimPrefix(elsewhere.URL, place))
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
	if err == nil && endless(schema) {
		return nil, errors.New("it refers to itself without an end: a schema may refer to itself only within a " +
			"property or an item")
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

// configTree is a job's config with the position of every value.
type configTree struct {
	job      value
	node     value                 // `config`, may be absent
	operator string                // its name
	inlined  map[string]*yaml.Node // the node that names the file, by stem of the *_file field
	secrets  map[string]bool       // secretKey of each {secret: NAME}
}

// config decodes a job's config: it reads the files that *_file fields name, collects the secrets and applies the
// operator's schema and its own check. known reports whether the operator exists.
func (d *decoder) config(v value, j *Job, op OperatorSpec, known bool) {
	t := &configTree{
		job:      v,
		node:     v.get("config"),
		operator: j.Operator,
		inlined:  map[string]*yaml.Node{},
		secrets:  map[string]bool{},
	}
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

	// Each step relies on the one before it, so the first that finds a problem is the last.
	before := len(d.problems)
	d.configFields(j, schema, t)
	if len(d.problems) > before {
		return
	}
	faulty := d.configSecretsAndSchema(j, schema, t)
	if len(d.problems) > before {
		if op.CheckFields != nil {
			sound := maps.Clone(map[string]any(j.Config))
			maps.DeleteFunc(sound, func(key string, _ any) bool { return faulty[key] })
			d.operatorFault(op.CheckFields(sound), t)
		}
		return
	}

	if !d.macros.inConfig(d, j, op, t) {
		return
	}
	if err := op.refuses(j); err != nil {
		d.operatorFault(err, t)
		return
	}
	d.sound[v.node] = t
	if op.Folders && d.cat.Folders != nil {
		path, _ := j.Config["path"].(string)
		if err := d.cat.Folders(d.dag, path); err != nil {
			_, place := t.find([]string{"path"})
			d.node(place, CodeConfig, "%s", err)
		}
	}
}

// operatorFault reports what an operator found, and what else it found, at their places; nil is nothing.
func (d *decoder) operatorFault(err *ConfigError, t *configTree) {
	if err == nil {
		return
	}
	_, place := t.find(append([]string{err.Key}, err.Within...)) // an empty key leads to the config as a whole
	p := d.statementFault(place, err.Message, t.inlined[err.Key] == nil)
	p.nearest(err.Unknown, err.Known)
	d.macros.suggest(p)
	p.unseen = err.Unseen
	if from, ok := t.inlined[err.Key]; ok {
		p.Message = fmt.Sprintf("%s: %s", from.Value, p.Message)
	}
	for _, more := range err.More {
		d.operatorFault(more, t)
	}
}

// refuses returns what the operator has against a job.
func (op OperatorSpec) refuses(j *Job) (fault *ConfigError) {
	if op.Canonical != nil {
		_, fault = op.Canonical(j.Config)
	}
	if fault == nil && op.CheckJob != nil {
		fault = op.CheckJob(j)
	}
	return fault
}

// checkPartitions asks the operator of a job whose partitioning is settled, unless its config has faults of its own.
func (d *decoder) checkPartitions(j *Job, v value, unclear map[string]bool) {
	t, sound := d.sound[v.node]
	check := d.cat.Operators[j.Operator].CheckPartitions
	if !sound || check == nil {
		return
	}

	asked := *j
	asked.Inputs = slices.Clone(j.Inputs)
	for i, in := range asked.Inputs {
		if upstream, known := d.upstream(in, unclear); known {
			asked.Inputs[i].Upstream = &upstream
		}
	}
	d.operatorFault(check(&asked), t)
}

// configFields sets the fields of a job's config, with the text of each file in place of its name.
func (d *decoder) configFields(j *Job, schema *jsonschema.Schema, t *configTree) {
	for key, val := range t.node.pairs() {
		name := key.Value
		stem, ok := strings.CutSuffix(name, "_file")
		switch {
		case !ok || !inlinable(schema, stem, name):
			j.Config[name] = value{val}.json()
		case t.node.has(stem):
			d.node(key, CodeConflict, "`%s` and `%s` exclude each other", stem, name)
		default:
			t.inlined[stem] = val
			// A file that cannot be read still stands for its field, so that nothing reports the field as missing.
			text, _ := d.readText(value{val})
			j.Config[stem] = string(text)
		}
	}
}

// configSecretsAndSchema lists the secrets that a config names, and checks the config against the schema. It returns
// the fields at or in which that has faults.
func (d *decoder) configSecretsAndSchema(j *Job, schema *jsonschema.Schema, t *configTree) (faulty map[string]bool) {
	plain, _ := d.withoutSecrets(map[string]any(j.Config), nil, t, &j.Secrets).(map[string]any)
	slices.Sort(j.Secrets)
	j.Secrets = slices.Compact(j.Secrets)

	if schema == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if errors.As(schema.Validate(plain), &invalid) {
		d.configFaults(invalid, schema, t)
		faulty = map[string]bool{}
		fieldsOf(invalid, faulty)
	}
	return faulty
}

// fieldsOf notes the top-level fields that a verdict is about.
func fieldsOf(e *jsonschema.ValidationError, fields map[string]bool) {
	if len(e.InstanceLocation) > 0 {
		fields[e.InstanceLocation[0]] = true
	}
	for _, cause := range e.Causes {
		fieldsOf(cause, fields)
	}
}

// leadsNowhere reports whether a node, or one below it, has a variable that could not be resolved.
func (d *decoder) leadsNowhere(n *yaml.Node) bool {
	return n != nil && len(d.unresolved) > 0 && (d.unresolved[n] || slices.ContainsFunc(n.Content, d.leadsNowhere))
}

// inlinable reports whether a *_file field stands for the field named by its stem.
func inlinable(schema *jsonschema.Schema, stem, name string) bool {
	if schema == nil {
		return false
	}
	_, stemKnown := schema.Properties[stem]
	_, fileKnown := schema.Properties[name]
	return stemKnown && !fileKnown
}

// withoutSecrets returns the config with text in place of each {secret: NAME}, which is what the schema describes, and
// appends the secrets' names.
func (d *decoder) withoutSecrets(v any, at []string, t *configTree, names *[]string) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["secret"].(string); ok && len(v) == 1 && len(at) > 0 {
			_, place := t.find(at)
			secretName.check(value{place}.get("secret").node, "`secret`", d.checker)
			t.secrets[secretKey(at)] = true
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

// secretKey returns a path of the config as a key of configTree.secrets.
func secretKey(path []string) string { return strings.Join(path, "\x00") }

// find returns the key and the value at a path of the config, or the nearest ones above it.
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

// configFaults reports every leaf of a schema's verdict, each at the value that it concerns.
func (d *decoder) configFaults(e *jsonschema.ValidationError, schema *jsonschema.Schema, t *configTree) {
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		// Report what is wrong with the one alternative of the right type, if there is one.
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

		if t.secrets[secretKey(e.InstanceLocation)] {
			return
		}
		_, place := t.find(e.InstanceLocation)
		d.node(place, CodeConfig, "%s has none of the forms that operator %s allows",
			configLabel(e.InstanceLocation), t.operator)
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

// failsOnType reports whether the value at a depth is of the wrong type.
func failsOnType(e *jsonschema.ValidationError, depth int) bool {
	if _, ok := e.ErrorKind.(*kind.Type); ok {
		return len(e.InstanceLocation) == depth
	}
	return len(e.Causes) == 1 && failsOnType(e.Causes[0], depth)
}

// configFault reports one leaf of a schema's verdict.
func (d *decoder) configFault(e *jsonschema.ValidationError, schema *jsonschema.Schema, t *configTree) {
	label := configLabel(e.InstanceLocation)
	_, place := t.find(e.InstanceLocation)
	if t.secrets[secretKey(e.InstanceLocation)] {
		// The platform does not know the value; it can only report that text must not stand here.
		if k, ok := e.ErrorKind.(*kind.Type); ok {
			d.node(place, CodeConfig, "%s cannot be a secret; it must be %s", label, inWords(k.Want))
		}
		return
	}

	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		d.unknownConfig(k.Properties, e.InstanceLocation, schema, t)
	case *kind.Required:
		d.missingConfig(k.Missing, e.InstanceLocation, schema, t)
	case *kind.Enum:
		var words []string
		for _, want := range k.Want {
			words = append(words, fmt.Sprint(want))
		}
		d.node(place, CodeConfig, "%s cannot be %q", label, fmt.Sprint(k.Got)).nearest(fmt.Sprint(k.Got), words)
	default:
		d.node(place, CodeConfig, "%s", badValue(label, e, place))
	}
}

func (d *decoder) unknownConfig(names, at []string, schema *jsonschema.Schema, t *configTree) {
	known := properties(schema, at)
	slices.Sort(names)
	for _, name := range names {
		key, _ := t.find(slices.Concat(at, []string{name}))
		d.node(key, CodeUnknown, "%s of operator %s has no field %q", configLabel(at), t.operator, name).
			nearest(name, known)
	}
}

func (d *decoder) missingConfig(names, at []string, schema *jsonschema.Schema, t *configTree) {
	_, place := t.find(at)
	for _, name := range names {
		p := d.node(place, CodeMissing, "%s of operator %s needs `%s`", configLabel(at), t.operator, name)
		if len(at) == 0 && inlinable(schema, name, name+"_file") && isText(schema.Properties[name]) {
			p.suggest("write it here, or name a file with `%s_file`", name)
		}
	}
}

// badValue returns the message about a value that breaks one rule of a schema.
func badValue(label string, e *jsonschema.ValidationError, place *yaml.Node) string {
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		return fmt.Sprintf("%s must be %s, not %s", label, inWords(k.Want), describe(place))
	case *kind.Minimum:
		return fmt.Sprintf("%s must be %s or more, not %s", label, k.Want.RatString(), k.Got.RatString())
	case *kind.Maximum:
		return fmt.Sprintf("%s must be %s or less, not %s", label, k.Want.RatString(), k.Got.RatString())
	case *kind.MinLength:
		return fmt.Sprintf("%s must have %d %s or more, not %d", label, k.Want, characters(k.Want), k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("%s must have %d %s or fewer, not %d", label, k.Want, characters(k.Want), k.Got)
	case *kind.Pattern:
		return fmt.Sprintf("%s cannot be %q: it must match %s", label, k.Got, k.Want)
	}
	return fmt.Sprintf("%s: %s", label, inEnglish(e))
}

func characters(n int) string { return plural(n, "character", "characters") }

func isText(s *jsonschema.Schema) bool {
	return s != nil && s.Types != nil && slices.Equal(s.Types.ToStrings(), []string{"string"})
}

func configLabel(path []string) string {
	return "`" + strings.Join(slices.Concat([]string{"config"}, path), ".") + "`"
}

// properties returns the known fields at a path of a schema. It follows references, fields and items, but does not
// choose among alternatives.
func properties(schema *jsonschema.Schema, path []string) []string {
	for _, name := range path {
		if schema = resolved(schema); schema == nil {
			return nil
		}
		if inner, ok := schema.Properties[name]; ok {
			schema = inner
		} else {
			schema = schema.Items2020
		}
	}
	if schema = resolved(schema); schema == nil {
		return nil
	}
	return sortedKeys(schema.Properties)
}

// resolved follows the references of a schema.
func resolved(schema *jsonschema.Schema) *jsonschema.Schema {
	for schema != nil && schema.Ref != nil {
		schema = schema.Ref
	}
	return schema
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
