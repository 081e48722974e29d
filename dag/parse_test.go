package dag

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestValid compares the canonical form of each valid file, which shows every default, with its golden file.
func TestValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/valid/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			doc, problems := Parse(File{Name: file, Text: text, Files: os.DirFS("testdata/valid")}, testCatalog())
			require.Empty(t, problems.Pretty())
			var pretty bytes.Buffer
			require.NoError(t, json.Indent(&pretty, doc.Canonical(), "", "  "))
			golden(t, strings.TrimSuffix(file, ".yaml")+".json", pretty.String()+"\n")

			again, problems := Parse(File{Name: file, Text: text, Files: InMemory(doc.Files)}, testCatalog())
			require.Empty(t, problems.Pretty())
			require.Equal(t, doc, again, "the server sees what the client saw")
		})
	}
}

// TestEveryField checks that everything.yaml has every field of the grammar.
func TestEveryField(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/valid/everything.yaml")
	require.NoError(t, err)

	var missing []string
	var walk func(s shape)
	walk = func(s shape) {
		switch s := s.(type) {
		case objectShape:
			for _, f := range s.fields {
				if !strings.Contains(string(text), f.name+":") {
					missing = append(missing, f.name)
				}
				walk(f.of)
			}
		case listShape:
			walk(s.of)
		case tableShape:
			walk(s.of)
		case choiceShape:
			for _, o := range s.options {
				walk(o)
			}
		}
	}

	walk(documentShape)
	require.Empty(t, missing)
}

func TestVariables(t *testing.T) {
	t.Parallel()
	const text = `
name: "${var.name}"
vars: { name: {}, n: { default: 4 }, path: { default: "a: b # c" }, flag: { default: yes } }
jobs:
  - name: raw
    operator: command
    source: { kind: manual }
    scaling: { max_concurrency: "${var.n}" }
    config:
      unquoted: ${var.n}
      quoted: "${var.n}"
      both: ${var.n}-${var.path}
      literal: $${var.n}
      other: ${HOME}
      list: [a, "${var.flag}"]
`
	doc, problems := Parse(File{Text: []byte(text), Vars: map[string]string{"name": "first", "n": "7"}}, testCatalog())
	require.Empty(t, problems.Error())
	require.Equal(t, "first", doc.Name)
	require.Equal(t, map[string]string{"name": "first", "n": "7", "path": "a: b # c", "flag": "yes"}, doc.Vars)
	require.Equal(t, 7, doc.Jobs[0].MaxConcurrency)
	require.Equal(t, Config{
		"unquoted": json.Number("7"), "quoted": "7", "both": "7-a: b # c", "literal": "${var.n}", "other": "${HOME}",
		"list": []any{"a", "yes"},
	}, doc.Jobs[0].Config)

	other, problems := Parse(File{Text: []byte(text), Vars: map[string]string{"name": "first"}}, testCatalog())
	require.Empty(t, problems)
	require.NotEqual(t, Hash(doc, nil, nil), Hash(other, nil, nil), "variables are hashed")

	_, problems = Parse(File{Text: []byte(text), Vars: map[string]string{"name": "first", "pth": "x",
		"n": strings.Repeat("1", MaxVariableBytes+1)}}, testCatalog())
	require.Contains(t, problems.Error(),
		`:3:1: variable "pth" was given a value, but the file does not declare it (did you mean "path"?)`)
	require.Contains(t, problems.Error(), `the value of variable "n" has 4097 bytes`)
}

// TestRuntimes checks that a server that lists its runtimes refuses others.
func TestRuntimes(t *testing.T) {
	t.Parallel()
	catalog := testCatalog()
	catalog.Runtimes = []string{"lambda", "ecs_platform"}
	_, problems := Parse(File{Name: "dag.yaml",
		Text: []byte("name: a\njobs:\n  - { name: a, operator: command, source: { kind: manual } }\n")}, catalog)
	require.Equal(t, `dag.yaml:3:5: this server maps no runtime "dispatcher" (use one of: lambda, ecs_platform)`,
		problems.Error())

	command := catalog.Operators["command"]
	command.Runtimes = []string{"ecs_platform"}
	catalog.Operators["command"] = command
	_, problems = Parse(File{Text: []byte(
		"name: a\njobs:\n  - { name: a, operator: command, runtime: x, source: { kind: manual } }\n")}, catalog)
	require.Len(t, problems, 1, "that the operator does not run there either says nothing more")
}

func TestStrategies(t *testing.T) {
	t.Parallel()
	const sources = `
name: strategies
jobs:
  - { name: whole, operator: command, source: { kind: manual } }
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: rows, operator: command, source: { kind: manual }, partition_by: { cursor: id } }
  - { name: job, operator: command, %s }
`

	for text, want := range map[string]struct {
		strategy ExecutionStrategy
		trigger  Trigger
		by       string
	}{
		"inputs: [{ from: { job: whole } }]": {
			PerUpdate, TriggerAny, "no partitions",
		},
		"inputs: [{ from: { job: days } }]": {
			PerPartition, TriggerAll, "day partitions",
		},
		"inputs: [{ from: { job: whole }, map: latest }, { from: { job: days } }]": {
			PerPartition, TriggerAll, "day partitions",
		},
		"inputs: [{ from: { job: days }, map: { window: month } }]": {
			PerPartition, TriggerAll, "month partitions",
		},
		"inputs: [{ from: { job: days } }], partition_by: none": {
			PerUpdate, TriggerAny, "no partitions",
		},
		"inputs: [{ from: { job: rows } }]": {
			PerUpdate, TriggerAny, "no partitions",
		},
		"inputs: [{ from: { job: rows } }], partition_by: { range: 10, column: id }": {
			PerUpdate, TriggerAny, "ranges of 10 of id",
		},
		"inputs: [{ from: { dataset: other } }]": {
			PerUpdate, TriggerAny, "no partitions",
		},
		"inputs: [{ from: { dataset: other } }], partition_by: { time: day }": {
			PerPartition, TriggerAll, "day partitions",
		},
		"inputs: [{ from: { job: days } }], execution_strategy: PerUpdate, trigger: all": {
			PerUpdate, TriggerAll, "no partitions",
		},
		"inputs: [{ from: { job: whole } }], execution_strategy: PerPartition, update_strategy: replace": {
			PerPartition, TriggerAll, "no partitions",
		},
	} {

		doc, problems := Parse(File{Text: []byte(strings.Replace(sources, "%s", text, 1))}, testCatalog())
		require.Empty(t, problems.Error(), text)
		job, _ := doc.Job("job")
		require.Equal(t, want.strategy, job.ExecutionStrategy, text)
		require.Equal(t, want.trigger, job.Trigger, text)
		require.Equal(t, want.by, job.PartitionBy.String(), text)
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "1h30m": 90 * time.Minute,
		"1.5h": 90 * time.Minute, "30d": 720 * time.Hour, "1w": 168 * time.Hour, "5ms": 5 * time.Millisecond} {
		got, err := ParseDuration(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "5", "-5s", "5 s", "s", "1y", "5s!", "999999999999w"} {
		_, err := ParseDuration(text)
		require.Error(t, err, text)
	}
}

// TestLarge checks that nothing grows with the square of the number of jobs.
func TestLarge(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("name: large\njobs:\n  - { name: j0, operator: command, source: { kind: manual } }\n")
	const jobs = 1500
	for i := 1; i < jobs; i++ {
		b.WriteString("  - { name: j" + strconv.Itoa(i) + ", operator: sql, inputs: [{ from: { job: j" +
			strconv.Itoa(i-1) + " } }], config: { query: select 1 } }\n")
	}
	doc, problems := Parse(File{Text: []byte(b.String())}, testCatalog())
	require.Empty(t, problems.Error())
	require.Len(t, doc.Jobs, jobs)
	require.Len(t, slices.Collect(maps.Keys(prints(t, doc, nil))), jobs)
}
