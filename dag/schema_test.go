package dag

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

func editorSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(Schema(testCatalog()))))
	require.NoError(t, err)
	schema, err := compileSchema(document)
	require.NoError(t, err)
	return schema
}

// accepts reports whether the schema accepts a text, as an editor would ask.
func accepts(t *testing.T, schema *jsonschema.Schema, text []byte) bool {
	t.Helper()
	root := load(text, newReport("", text))
	require.NotNil(t, root)
	return schema.Validate(value{root}.json()) == nil
}

// TestSchemaAgrees checks that the schema accepts what Parse accepts and refuses what the grammar refuses.
func TestSchemaAgrees(t *testing.T) {
	t.Parallel()
	schema := editorSchema(t)
	valid, err := filepath.Glob("testdata/valid/*.yaml")
	require.NoError(t, err)
	for _, file := range valid {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, accepts(t, schema, text), file)
	}

	const job = "name: a\njobs:\n  - { name: a, operator: command, source: { kind: manual }, %s }\n"
	const reactive = "name: a\njobs:\n  - { name: b, operator: command, source: { kind: manual } }\n" +
		"  - { name: a, operator: command, inputs: [%s] }\n"
	for _, c := range []struct{ frame, hole string }{
		{"%s", "{}"},
		{"%s", "name: a\njobs: []"},
		{"%s", "name: a\njobs: {}"},
		{"%s", "name: A\njobs: [{ name: a, operator: command, source: { kind: manual } }]"},
		{"%s", "jobs: [{ name: a, operator: command, source: { kind: manual } }]"},
		{"%s", "name: a\njobs: [{ operator: command, source: { kind: manual } }]"},
		{"%s", "name: a\njobs: [{ name: a, source: { kind: manual } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: seed, config: { csv: a }, source: { kind: manual } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: seed, config: { csv: a }, inputs: [{ from: { dataset: b } }] }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: nothing, source: { kind: manual } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: {} }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: cron } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: poll, every: 5 } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual, every: 5s } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: other } }]"},
		{"%s", "name: a\njobs: [null]"},
		{"%s", "name: a\nvars: { A: {} }\njobs: [{ name: a, operator: command, source: { kind: manual } }]"},
		{"%s", "name: a\nvars: { a: 5 }\njobs: [{ name: a, operator: command, source: { kind: manual } }]"},
		{"%s", "name: a\nvars: { a: { default: [1] } }\n" +
			"jobs: [{ name: a, operator: command, source: { kind: manual } }]"},
		{"%s", "name: a\ndefaults: { operator: sql }\n" +
			"jobs: [{ name: a, operator: command, source: { kind: manual } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\n" +
			"publish: { a-b: { from: { job: a } } }"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\n" +
			"publish: { a: { from: { dataset: a } } }"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\npublish: { a: {} }"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\n" +
			"publish: { a: { from: { job: a }, due: 5h } }"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\n" +
			"notify: [{ on: [other], webhook: { secret: A } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\n" +
			"notify: [{ on: [], webhook: { secret: A } }]"},
		{"%s", "name: a\njobs: [{ name: a, operator: command, source: { kind: manual } }]\n" +
			"notify: [{ on: [dead], webhook: A }]"},
		{job, "other: 1"},
		{job, "description: ''"},
		{job, "description: 5"},
		{job, "description: null"},
		{job, "activation: both"},
		{job, "code_version: 1.0"},
		{job, "bootstrap: {}"},
		{job, "bootstrap: { reset_outputs: 1 }"},
		{job, "outputs: 17"},
		{job, "outputs: -1"},
		{job, "outputs: [A]"},
		{job, "outputs: { a: 1 }"},
		{job, "outputs: null"},
		{job, "partition_by: day"},
		{job, "partition_by: {}"},
		{job, "partition_by: { time: decade }"},
		{job, "partition_by: { time: day, cursor: id }"},
		{job, "partition_by: { column: at, cursor: id }"},
		{job, "partition_by: { range: 5 }"},
		{job, "partition_by: { range: 0, column: id }"},
		{job, "partition_by: { timezone: UTC, cursor: id }"},
		{job, "storage: s3"},
		{job, "storage: { postgres: null }"},
		{job, "storage: { postgres: { indexes: id } }"},
		{job, "storage: [{ parquet: {} }]"},
		{job, "storage: [[parquet]]"},
		{job, "effect: none"},
		{job, "config: []"},
		{job, "config: null"},
		{job, "max_attempts: 0"},
		{job, "max_attempts: 1.5"},
		{job, "max_attempts: many"},
		{job, "timeout_seconds: 0"},
		{job, "retry: 5"},
		{job, "retry: { multiplier: 0.5 }"},
		{job, "retry: { max: 5 }"},
		{job, "priority: 1001"},
		{job, "scaling: {}"},
		{job, "scaling: { max_concurrency: 0 }"},
		{job, "enqueues: []"},
		{job, "enqueues: a"},
		{job, "task_retention: 30"},
		{job, "task_retention: soon"},
		{job, "unique_key: []"},
		{job, "unique_key: { a: b }"},
		{job, "update_strategy: merge"},
		{job, "udf: { entrypoint: a }"},
		{job, "udf: { bundle: a }"},
		{job, "udf: { bundle: a, folder: b, entrypoint: c }"},
		{job, "payload_schema: text"},
		{job, "checks: {}"},
		{job, "checks: [{}]"},
		{job, "checks: [{ not_null: [] }]"},
		{job, "checks: [{ not_null: a, unique: a }]"},
		{job, "checks: [{ severity: warn }]"},
		{job, "checks: [{ not_null: a, severity: bad }]"},
		{job, "checks: [{ sql: SELECT 1 }]"},
		{job, "checks: [{ row_count: 5 }]"},
		{job, "checks: [{ row_count: { min: -1 } }]"},
		{job, "checks: [{ accepted_values: { column: a, values: [null] } }]"},
		{job, "checks: [{ accepted_values: { column: a, values: [] } }]"},
		{job, "checks: [{ freshness: { column: a } }]"},
		{job, "checks: [{ relationships: { column: a, to: b } }]"},
		{reactive, ""},
		{reactive, "b"},
		{reactive, "{ from: b }"},
		{reactive, "{ from: {} }"},
		{reactive, "{ from: { job: b, dataset: c } }"},
		{reactive, "{ from: { dataset: c, output: 1 } }"},
		{reactive, "{ from: { job: b }, as: a-b }"},
		{reactive, "{ from: { job: b }, map: all }"},
		{reactive, "{ from: { job: b }, map: {} }"},
		{reactive, "{ from: { job: b }, map: { window: decade } }"},
		{reactive, "{ from: { job: b }, map: { window: { last: 1 } } }"},
		{reactive, "{ from: { job: b }, map: { window: day, require: some } }"},
		{reactive, "{ from: { job: b }, where: { a: [] } }"},
		{reactive, "{ from: { job: b }, where: { a: null } }"},
		{reactive, "{ from: { job: b }, where: [a] }"},
		{reactive, "{ from: { job: b }, refresh: sometimes }"},
		{reactive, "{ from: { job: b }, read: old }"},
		{"name: a\njobs: [{ name: a, operator: file_source, source: { kind: manual }, config: { path: a, %s } }]",
			"other: 1"},
		{"name: a\njobs: [{ name: a, operator: file_source, source: { kind: manual }, config: { path: a, %s } }]",
			"format: xml"},
		{"name: a\njobs: [{ name: a, operator: file_source, source: { kind: manual }, config: { path: a, %s } }]",
			"batch: { secret: A }"},
		{"name: a\njobs: [{ name: a, operator: file_source, source: { kind: manual }, config: { %s } }]", "path: 5"},
	} {
		text := []byte(strings.Replace(c.frame, "%s", c.hole, 1))
		_, problems := Parse(File{Text: text}, testCatalog())
		require.NotEmpty(t, problems, "Parse: %s", text)
		require.False(t, accepts(t, schema, text), "schema: %s", text)
	}
}

// TestRulesBeyondTheSchema lists, with one example each, the rules of Parse that a schema cannot express. Both must
// refuse every other file of the gallery that is YAML.
func TestRulesBeyondTheSchema(t *testing.T) {
	t.Parallel()
	beyond := map[string]string{
		"append_without_key":            "rules over several fields",
		"config_meaning":                "what an operator finds in its config",
		"cycle":                         "other jobs",
		"dangling_job":                  "other jobs",
		"dangling_output":               "other jobs",
		"dataset_without_partitioning":  "other jobs",
		"day_to_month":                  "partitionings",
		"duplicate_jobs":                "other jobs",
		"enqueues":                      "other jobs",
		"field_of_the_other_activation": "rules over several fields",
		"files":                         "files",
		"mappings":                      "partitionings",
		"never":                         "whether a schedule has dates",
		"nothing_triggers":              "other inputs",
		"null_character":                "characters",
		"operator_not_on_runtime":       "what an operator can do",
		"operator_of_the_other_kind":    "what an operator can do",
		"payload":                       "whether a schema is one",
		"renames":                       "other jobs",
		"webhook":                       "rules over several fields",
		"time_units":                    "partitionings",
		"variables":                     "what a variable resolves to",
	}

	schema := editorSchema(t)
	files, err := filepath.Glob("testdata/broken/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		root := load(text, newReport("", text))
		if root == nil {
			continue // an editor itself reports that it is not YAML
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		_, cannot := beyond[name]
		require.Equal(t, cannot, accepts(t, schema, text), name)
	}
}
