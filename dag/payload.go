package dag

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/dagctl/dagctl/internal/fault"
)

// payloadFaults is how many faults of a payload are told at once.
const payloadFaults = 5

// CompilePayload compiles the JSON Schema of a payload. A deploy refuses those that do not compile.
func CompilePayload(text []byte) (*jsonschema.Schema, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return compileSchema(document)
}

// endless reports whether a schema, or one within it, refers to itself for the same value, so that no value could ever
// be checked.
func endless(schema *jsonschema.Schema) bool {
	const open, done = 1, 2
	state := map[*jsonschema.Schema]int{}
	var visit func(s *jsonschema.Schema) bool
	visit = func(s *jsonschema.Schema) bool {
		if s == nil || state[s] == done {
			return false
		}
		if state[s] == open {
			return true
		}

		state[s] = open
		if slices.ContainsFunc(ofSameValue(s), visit) {
			return true
		}
		state[s] = done
		return false
	}

	seen := map[*jsonschema.Schema]bool{}
	for waiting := []*jsonschema.Schema{schema}; len(waiting) > 0; {
		s := waiting[0]
		if waiting = waiting[1:]; s == nil || seen[s] {
			continue
		}
		seen[s] = true
		if visit(s) {
			return true
		}
		waiting = append(append(waiting, ofSameValue(s)...), ofParts(s)...)
	}
	return false
}

// ofSameValue returns the schemas that a value must match besides, or may.
func ofSameValue(s *jsonschema.Schema) []*jsonschema.Schema {
	all := slices.Concat([]*jsonschema.Schema{s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf,
		s.OneOf, slices.Collect(maps.Values(s.DependentSchemas)))
	if s.DynamicRef != nil {
		all = append(all, s.DynamicRef.Ref)
	}
	for _, d := range s.Dependencies {
		if of, ok := d.(*jsonschema.Schema); ok {
			all = append(all, of)
		}
	}
	return all
}

// ofParts returns the schemas of a value's properties and items.
func ofParts(s *jsonschema.Schema) []*jsonschema.Schema {
	all := slices.Concat([]*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020,
		s.UnevaluatedItems, s.ContentSchema}, slices.Collect(maps.Values(s.Properties)),
		slices.Collect(maps.Values(s.PatternProperties)), s.PrefixItems)
	for _, of := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch of := of.(type) {
		case *jsonschema.Schema:
			all = append(all, of)
		case []*jsonschema.Schema:
			all = append(all, of...)
		}
	}
	return all
}

// PayloadError returns what a schema has against a payload, in one line: what is wrong where, and what would be right.
// err is the verdict of a compiled schema; nil is none.
func PayloadError(err error) error {
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return err
	}
	faults := faultsOf(invalid)
	slices.Sort(faults)
	faults = slices.Compact(faults)
	if more := len(faults) - payloadFaults; more > 0 {
		faults = append(faults[:payloadFaults], fmt.Sprintf("and %d more", more))
	}
	return fault.New(fault.Invalid, "%s", strings.Join(faults, "; "))
}

// faultsOf returns a text for each leaf of a verdict.
func faultsOf(e *jsonschema.ValidationError) (faults []string) {
	label := "it"
	if len(e.InstanceLocation) > 0 {
		label = "`" + strings.Join(e.InstanceLocation, ".") + "`"
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return []string{label + " has none of the forms that payload_schema allows"}
	case *kind.AdditionalProperties:
		return []string{fmt.Sprintf("%s has the field %s, which payload_schema does not know", label,
			inQuotes(k.Properties))}
	case *kind.Required:
		return []string{fmt.Sprintf("%s needs %s", label, inQuotes(k.Missing))}
	case *kind.Enum:
		return []string{fmt.Sprintf("%s must be one of %s, not %s", label, inJSON(k.Want), inJSON(k.Got))}
	case *kind.Const:
		return []string{fmt.Sprintf("%s must be %s, not %s", label, inJSON(k.Want), inJSON(k.Got))}
	case *kind.Type:
		return []string{fmt.Sprintf("%s must be %s, not %s", label, inWords(k.Want), inWords([]string{k.Got}))}
	}

	if len(e.Causes) == 0 {
		return []string{badValue(label, e, nil)}
	}
	for _, cause := range e.Causes {
		faults = append(faults, faultsOf(cause)...)
	}
	return faults
}

// inQuotes returns names, sorted and each in quotes.
func inQuotes(names []string) string {
	list := make([]string, len(names))
	for i, name := range slices.Sorted(slices.Values(names)) {
		list[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(list, ", ")
}

// inJSON returns a value as it would be written.
func inJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}
