package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// same are the folders and files of the same pipelines in several tools, as the table in comparison.md has them.
var same = []struct {
	pipeline string
	tools    [4][]string // dagctl, dbt, SQLMesh, Dagster
}{
	{"weather", [4][]string{{"examples/pipelines/weather"}, {"docs/comparison/dbt/models/weather"},
		{"docs/comparison/sqlmesh/models/weather"}, {"docs/comparison/dagster/pipelines/defs/weather.py"}}},
	{"quakes", [4][]string{{"examples/pipelines/quakes"}, {"docs/comparison/dbt/models/quakes"},
		{"docs/comparison/sqlmesh/models/quakes"}, {"docs/comparison/dagster/pipelines/defs/quakes.py"}}},
	{"flights", [4][]string{{"examples/pipelines/flights", "examples/pipelines/delays"},
		{"docs/comparison/dbt/models/flights"}, {"docs/comparison/sqlmesh/models/flights"},
		{"docs/comparison/dagster/pipelines/defs/flights.py"}}},
	{"project", [4][]string{{}, {"docs/comparison/dbt/dbt_project.yml", "docs/comparison/dbt/profiles.yml"},
		{"docs/comparison/sqlmesh/config.yaml"},
		{"docs/comparison/dagster/pyproject.toml", "docs/comparison/dagster/pipelines/definitions.py"}}},
}

// The table of the page says how many lines the files have.
func TestThePageCountsTheLines(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/comparison.md"))
	require.NoError(t, err)

	var sums [4]lines
	row := func(name string, counted [4]lines) string {
		cells := ""
		for _, l := range counted {
			cells += fmt.Sprintf(" | %d + %d", l.other, l.sql)
		}
		return "| " + name + cells + " |\n"
	}
	table := ""
	for _, s := range same {
		var counted [4]lines
		for i, paths := range s.tools {
			for _, path := range paths {
				counted[i].add(countedIn(t, path))
			}
			sums[i].add(counted[i])
		}
		table += row(s.pipeline, counted)
	}
	require.Contains(t, string(page), table+row("together", sums), "docs/comparison.md has to have these rows")
}

func TestLinesOfFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]lines{
		"# remark\n\nname: x # the name\n":                             {1, 0},
		"a:\n  query: |\n    SELECT\n\n      1\n  b: 2\n":              {3, 2},
		"config: { query: \"SELECT 1\" }\n":                            {0, 1},
		"{{ config(database='pg') }}\n-- remark\nSELECT 1\n":           {1, 1},
		"MODEL (name a, kind FULL);\nSELECT 1\n":                       {1, 1},
		"MODEL (\n  name a\n);\nSELECT 1\n":                            {3, 1},
		"\"\"\"What it is.\"\"\"\nrun(\"\"\"\n  SELECT 1\n\"\"\")\n":   {2, 1},
		"rows = q(f\"\"\"SELECT 1\n  FROM a\"\"\")\nprint(rows)\n":     {2, 1},
		"import os\n\n\ndef f():\n    return 1 # one\n# that was it\n": {3, 0},
	} {
		require.Equal(t, want, linesOf(text), text)
	}
}

// lines are the lines of files that are neither empty nor remarks.
type lines struct{ other, sql int }

func (l *lines) add(more lines) { l.other, l.sql = l.other+more.other, l.sql+more.sql }

// countedIn counts the lines of a file, or of all files of a pipeline in a folder.
func countedIn(t *testing.T, path string) (all lines) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(filepath.Join(root, path), func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !regexp.MustCompile(`\.(ya?ml|sql|py|toml)$`).MatchString(file) {
			return err
		}
		text, err := os.ReadFile(file)
		all.add(linesOf(string(text)))
		return err
	}))
	require.NotZero(t, all, path)
	return all
}

var (
	remark  = regexp.MustCompile(`^\s*(#|--|"""[^"]*"""$)`)
	queryAt = regexp.MustCompile(`^(\s*)query: \|`)
	inline  = regexp.MustCompile(`query: "?SELECT`)
	sqlFile = regexp.MustCompile(`(?m)^(SELECT|WITH) `)
)

// linesOf tells the lines of SQL from all others. SQL is what stands in the query of a YAML file, in a text of several
// lines of a Python file, and in an SQL file below its configuration.
func linesOf(text string) (l lines) {
	inSQL, python, indent := false, false, -1
	inFile := sqlFile.MatchString(text)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.TrimSpace(line) == "" || remark.MatchString(line) {
			continue
		}
		quoted := strings.Count(line, `"""`)%2 == 1
		depth := len(line) - len(strings.TrimLeft(line, " "))

		switch {
		case indent >= 0 && depth > indent: // of a query in YAML
			l.sql++
			continue
		case python && quoted:
			python = false
			if strings.HasPrefix(strings.TrimSpace(line), `"""`) {
				l.other++
			} else {
				l.sql++
			}
			continue
		case python, inline.MatchString(line):
			l.sql++
			continue
		case quoted:
			python = true
		case inFile && sqlFile.MatchString(line):
			inSQL = true
		}

		indent = -1
		if at := queryAt.FindStringSubmatch(line); at != nil {
			indent = len(at[1])
		}
		if inSQL {
			l.sql++
		} else {
			l.other++
		}
	}
	return l
}
