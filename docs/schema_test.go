package docs_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// properties are the fields of a JSON Schema.
func properties(t *testing.T, schema json.RawMessage) []string {
	t.Helper()
	var s struct {
		Properties map[string]any `json:"properties"`
	}
	require.NoError(t, json.Unmarshal(schema, &s))
	return slices.Collect(maps.Keys(s.Properties))
}

// TestEveryFieldIsDescribed checks that docs/yaml.md mentions every field of a DAG file.
func TestEveryFieldIsDescribed(t *testing.T) {
	t.Parallel()
	text := pageAt(t, "docs/yaml.md").text
	var schema any
	require.NoError(t, json.Unmarshal(schemaOf(t), &schema))
	fields := map[string]bool{}
	collectFields(schema, fields)
	require.Contains(t, fields, "heartbeat_timeout_seconds")
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		assert.True(t, regexp.MustCompile(`\b`+regexp.QuoteMeta(field)+`\b`).MatchString(text),
			"docs/yaml.md does not mention the field %s", field)
	}
}

// collectFields finds the fields that the schema allows, apart from operators' configs.
func collectFields(node any, into map[string]bool) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			collectFields(child, into)
		}
	case map[string]any:
		for key, child := range n {
			if key == "if" || key == "then" || key == "else" {
				continue // operators' configs, by operator
			}
			if fields, ok := child.(map[string]any); ok && key == "properties" {
				for name, field := range fields {
					into[name] = true
					collectFields(field, into)
				}
				continue
			}
			collectFields(child, into)
		}
	}
}

// machine is one life cycle of docs/state_machines.md.
type machine struct {
	heading, table, column string
}

var machines = []machine{
	{"Task", "tasks", "status"},
	{"DAG version", "dag_versions", "status"},
	{"Revision", "partition_versions", "state"},
	{"Source", "sources", "state"},
	{"Outbox row", "outbox", "status"},
}

type transition struct{ from, to string }

var arrow = regexp.MustCompile(`(?m)^\s+(\w+|\[\*\]) --> (\w+|\[\*\])`)

func TestStateMachinesAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	text := pageAt(t, "docs/state_machines.md").text
	statements := sqlOf(t, "dispatcher", "registry")
	for _, m := range machines {
		t.Run(m.heading, func(t *testing.T) {
			t.Parallel()
			_, section, found := strings.Cut(text, "\n## "+m.heading+"\n")
			require.True(t, found)
			section, _, _ = strings.Cut(section, "\n## ")
			drawn, states := map[transition]bool{}, map[string]bool{}
			for _, match := range arrow.FindAllStringSubmatch(section, -1) {
				drawn[transition{match[1], match[2]}] = true
				states[match[1]], states[match[2]] = true, true
			}
			delete(states, "[*]")
			if _, unused, ok := strings.Cut(section, "Not used yet: "); ok {
				unused, _, _ = strings.Cut(unused, ".")
				for _, state := range strings.Split(unused, ", ") {
					require.NotContains(t, states, state)
					states[state] = true
				}
			}
			require.ElementsMatch(t, statesOf(t, m), slices.Collect(maps.Keys(states)),
				"states drawn, and those that the schema allows")
			for _, tr := range m.transitions(statements) {
				require.Contains(t, drawn, tr, "a transition of the code's SQL that is not drawn")
			}
		})
	}
	require.NotEmpty(t, machines[1].transitions(statements), "the code's SQL is not found any more")
	require.NotEmpty(t, machines[2].transitions(statements), "the code's SQL is not found any more")
}

// statesOf returns the states that the column's CHECK allows: that of the table, or the last that takes its place.
func statesOf(t *testing.T, m machine) (states []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "migrations", "*.sql"))
	require.NoError(t, err)
	allowed := regexp.MustCompile(`(?:CREATE TABLE|ALTER TABLE) ` + m.table + ` (?:ADD CONSTRAINT \w+\s+|\((?s:.*?))` +
		`CHECK \(` + m.column + ` IN \(([^)]*)\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, check := range allowed.FindAllStringSubmatch(string(text), -1) {
			states = quoted(check[1])
		}
	}
	require.NotEmpty(t, states, "no migration makes table "+m.table)
	return states
}

func quoted(list string) []string {
	var all []string
	for _, match := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(list, -1) {
		all = append(all, match[1])
	}
	return all
}

// transitions returns the transitions that the statements spell out: UPDATE table SET column = 'to' ... WHERE
// column = 'from', or IN. It cannot see states that are parameters.
func (m machine) transitions(statements []string) []transition {
	update := regexp.MustCompile(`(?s)UPDATE ` + m.table + `\b[^;]*?\bSET\b[^;]*?\b` + m.column + ` = '(\w+)'(.*)`)
	from := regexp.MustCompile(`(?s)\bWHERE\b.*?\b` + m.column + ` (?:= '(\w+)'|IN \(([^)]*)\))`)
	var all []transition
	for _, statement := range statements {
		found := update.FindStringSubmatch(statement)
		if found == nil {
			continue
		}
		condition := from.FindStringSubmatch(found[2])
		if condition == nil {
			continue
		}
		for _, state := range append(quoted(condition[2]), condition[1]) {
			if state != "" {
				all = append(all, transition{state, found[1]})
			}
		}
	}
	return all
}

// sqlOf returns every string in the product code of the folders and of the packages below them.
func sqlOf(t *testing.T, folders ...string) []string {
	t.Helper()
	var texts []string
	for _, name := range folders {
		files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
		require.NoError(t, err)
		below, err := filepath.Glob(filepath.Join(root, name, "*", "*.go"))
		require.NoError(t, err)
		for _, file := range append(files, below...) {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(syntax, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						texts = append(texts, text)
					}
				}
				return true
			})
		}
	}
	return texts
}
