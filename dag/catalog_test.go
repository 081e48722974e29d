package dag

import (
	"strings"
)

// testCatalog has one operator of each kind.
func testCatalog() Catalog {
	return Catalog{Operators: map[string]OperatorSpec{
		"file_source": {
			Name: "file_source", Version: "1.0.0", Source: true, Replayable: true, Operational: []string{"batch"},
			ConfigSchema: []byte(`{
				"type": "object", "required": ["path"], "additionalProperties": false,
				"properties": {
					"path": {"type": "string"},
					"pattern": {"type": "string"},
					"format": {"enum": ["csv", "json", "parquet"]},
					"batch": {"type": "integer", "minimum": 1},
					"options": {"$ref": "#/$defs/options"},
					"columns": {"type": "array", "items": {
						"type": "object", "required": ["name"], "additionalProperties": false,
						"properties": {"name": {"type": "string"}, "type": {"enum": ["text", "number"]}}
					}}
				},
				"$defs": {"options": {
					"type": "object", "additionalProperties": false,
					"properties": {"header": {"type": "boolean"}, "delimiter": {"type": "string", "maxLength": 1}}
				}}
			}`),
		},

		"http_source": {Name: "http_source", Version: "1.0.0", Source: true, ConfigSchema: []byte(`{
			"type": "object", "required": ["url"], "additionalProperties": false,
			"properties": {
				"url": {"type": "string", "pattern": "^https?://"},
				"headers": {"type": "object", "additionalProperties": {"type": "string"}},
				"timeout": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]+s$"}]}
			}
		}`)},

		"sql": {Name: "sql", Version: "1.2.0", Reactive: true, Canonical: canonicalSQL, ConfigSchema: []byte(`{
			"type": "object", "required": ["query"], "additionalProperties": false,
			"properties": {"query": {"type": "string", "minLength": 1}, "threads": {"type": "integer"}}
		}`)},

		"notifier": {
			Name: "notifier", Version: "1.0.0", Reactive: true, Effect: EffectExternal,
			Runtimes: []string{"dispatcher", "lambda"},
			ConfigSchema: []byte(`{
				"type": "object", "required": ["webhook"], "additionalProperties": false,
				"properties": {"webhook": {"type": "string"}, "retries": {"type": "integer"}}
			}`),
		},

		"seed": {Name: Seed, Version: "1.0.0", Source: true, Replayable: true, ConfigSchema: []byte(`{
			"type": "object", "required": ["csv"], "additionalProperties": false,
			"properties": {"csv": {"type": "string"}}
		}`)},

		"command": {Name: "command", Version: "1.0.0", Source: true, Reactive: true},
	}}
}

// canonicalSQL stands for a parser. It returns the words of a query, in lower case, without comments.
func canonicalSQL(config map[string]any) (any, *ConfigError) {
	query, _ := config["query"].(string)
	var words []string
	for line := range strings.Lines(query) {
		line, _, _ = strings.Cut(line, "--")
		words = append(words, strings.Fields(strings.ToLower(line))...)
	}
	if len(words) == 0 || words[0] != "select" {
		return nil, &ConfigError{Key: "query", Message: "this is not a SELECT"}
	}
	return map[string]any{"query": strings.Join(words, " ")}, nil
}
