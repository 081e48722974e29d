package dag

import (
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

func TestPayloadErrors(t *testing.T) {
	t.Parallel()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(`{
		"type": "object", "required": ["to", "day"], "additionalProperties": false,
		"properties": {"to": {"type": "string", "minLength": 3}, "day": {"type": "string", "pattern": "^[0-9-]+$"},
			"n": {"type": ["integer", "null"], "maximum": 9}, "kind": {"enum": ["a", 1]}, "v": {"const": 2},
			"list": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "d": {"type": "number"},
			"either": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["x"]}]}}}`))
	require.NoError(t, err)
	schema, err := compileSchema(document)
	require.NoError(t, err)
	for payload, want := range map[string]string{
		`{"to": "abc", "day": "1"}`: "",
		`null`:                      "it must be a mapping, not empty",
		`[]`:                        "it must be a mapping, not a list",
		`{}`:                        "it needs \"day\", \"to\"",
		`{"to": 7, "day": "x"}`: "`day` cannot be \"x\": it must match ^[0-9-]+$; " +
			"`to` must be text, not a number",
		`{"to": "a", "day": "1", "n": 10}`: "`n` must be 9 or less, not 10; " +
			"`to` must have 3 characters or more, not 1",
		`{"to": "abc", "day": "1", "n": "x"}`:         "`n` must be empty or a whole number, not text",
		`{"to": "abc", "day": "1", "kind": "b"}`:      "`kind` must be one of [\"a\",1], not \"b\"",
		`{"to": "abc", "day": "1", "v": 3}`:           "`v` must be 2, not 3",
		`{"to": "abc", "day": "1", "z": 1}`:           "it has the field \"z\", which payload_schema does not know",
		`{"to": "abc", "day": "1", "list": [1, "x"]}`: "`list.1` must be a whole number, not text",
		`{"to": "abc", "day": "1", "either": {}}`:     "`either` has none of the forms that payload_schema allows",
	} {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(payload))
		require.NoError(t, err)
		err = PayloadError(schema.Validate(value))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, want, payload)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"to": "abc", "day": "1", "list": [1, 2, 3]}`))
	require.NoError(t, err)
	require.ErrorContains(t, PayloadError(schema.Validate(value)), "`list`")
	value, err = jsonschema.UnmarshalJSON(strings.NewReader(`{"to": "abc", "day": "1",
		"list": ["a", "b", "c", "d", "e", "f", "g"]}`))
	require.NoError(t, err)
	require.ErrorContains(t, PayloadError(schema.Validate(value)), "; and 3 more")
}

// A schema that could check no value, and one that is elsewhere, are refused; neither names a folder of the server.
func TestSchemasThatCannotCheck(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"$ref": "#"}`: "refers to itself without an end",
		`{"properties": {"a": {"allOf": [{"$ref": "#/properties/b"}]},
			"b": {"anyOf": [{"$ref": "#/properties/a"}]}}}`: "refers to itself without an end",
		`{"$ref": "other.json"}`:           "it refers to other.json, and other documents are not read",
		`{"$ref": "file:///etc/passwd"}`:   "it refers to file:///etc/passwd, and other documents are not read",
		`{"$ref": "#/properties/nothing"}`: "nothing",
		`{"properties": {"next": {"$ref": "#"}, "list": {"items": {"$ref": "#"}}}}`:                     "",
		`{"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}}`: "",
	} {
		_, err := CompilePayload([]byte(schema))
		if want == "" {
			require.NoError(t, err, schema)
			continue
		}
		require.ErrorContains(t, err, want, schema)
		folder, _ := os.Getwd()
		require.NotContains(t, err.Error(), folder, schema)
	}
}
