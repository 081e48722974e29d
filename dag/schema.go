package dag

import (
	"encoding/json"
	"strings"
)

// Schema returns the grammar of DAG files as JSON Schema 2020-12, for editors. It covers what the text alone shows:
// fields, types, names, and each operator's config fields. Parse checks the values of variables, references to other
// jobs and files, and rules over several fields.
func Schema(cat Catalog) []byte {
	root := documentShape.schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "dagctl DAG file"
	root["$defs"] = map[string]any{
		"variable": map[string]any{
			"type": "string", "pattern": `\$\{var\.`, "description": "A value with ${var.name} in it.",
		},
		"secret": secretReference.schema(),
	}

	// The grammar allows any operator, runtime and config; the catalog restricts them.
	job := root["properties"].(map[string]any)["jobs"].(map[string]any)["items"].(map[string]any)
	fields := job["properties"].(map[string]any)
	if len(cat.Operators) > 0 {
		known := map[string]any{"enum": sortedKeys(cat.Operators)}
		fields["operator"] = described(orVariable(known), fields["operator"])
	}
	if len(cat.Runtimes) > 0 {
		fields["runtime"] = described(orVariable(map[string]any{"enum": cat.Runtimes}), fields["runtime"])
	}

	conditions := []any{}
	for _, name := range sortedKeys(cat.Operators) {
		if config := configFields(cat.Operators[name].ConfigSchema); config != nil {
			conditions = append(conditions, map[string]any{
				"if": map[string]any{
					"properties": map[string]any{"operator": map[string]any{"const": name}},
					"required":   []string{"operator"},
				},
				"then": map[string]any{"properties": map[string]any{"config": config}},
			})
		}
	}
	if len(conditions) > 0 {
		job["allOf"] = conditions
	}

	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("dag: the grammar cannot be written as JSON: " + err.Error()) // it is made of maps and strings
	}
	return append(text, '\n')
}

// described gives m the description of another schema.
func described(m map[string]any, like any) map[string]any {
	if doc, ok := like.(map[string]any)["description"]; ok {
		m["description"] = doc
	}
	return m
}

// configFields returns the schema of an operator's config in a DAG file: a field of one value may also be a variable, a
// text field a secret or a file. Parse checks what is inside lists and mappings, and that required fields exist.
func configFields(operatorSchema json.RawMessage) map[string]any {
	var schema struct {
		Properties           map[string]map[string]any `json:"properties"`
		AdditionalProperties any                       `json:"additionalProperties"`
	}
	if json.Unmarshal(operatorSchema, &schema) != nil || schema.Properties == nil {
		return nil
	}

	properties := map[string]any{}
	for name, p := range schema.Properties {
		written := map[string]any{}
		if single(p) {
			alternatives := []any{p, map[string]any{"$ref": "#/$defs/variable"}}
			if kind, ok := p["type"]; !ok || kind == "string" {
				alternatives = append(alternatives, map[string]any{"$ref": "#/$defs/secret"})
			}
			written["anyOf"] = alternatives
		}
		properties[name] = described(written, any(p))
		if file := name + "_file"; schema.Properties[file] == nil {
			properties[file] = map[string]any{
				"type": "string", "minLength": 1, "description": "A file to read `" + name + "` from.",
			}
		}
	}

	config := map[string]any{"type": "object", "properties": properties}
	if schema.AdditionalProperties == false {
		config["additionalProperties"] = false
	}
	return config
}

// single reports whether a schema describes a single value and refers to no other schema.
func single(schema map[string]any) bool {
	text, err := json.Marshal(schema)
	if err != nil || strings.Contains(string(text), `"$ref"`) {
		return false
	}
	switch schema["type"] {
	case "string", "integer", "number", "boolean":
		return true
	}
	return schema["enum"] != nil
}
