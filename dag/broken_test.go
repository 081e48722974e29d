package dag

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

var update = flag.Bool("update", false, "write golden files")

// TestBroken compares the problems of every file of the gallery with the exact text that its author would read.
func TestBroken(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/broken/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 40)

	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			doc, problems := Parse(File{Name: filepath.Base(file), Text: text, Files: os.DirFS("testdata/broken")},
				testCatalog())
			require.Nil(t, doc)
			require.NotEmpty(t, problems)
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", problems.Pretty())
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// An empty word of a list is told which words there are.
func TestAnEmptyWordOfAList(t *testing.T) {
	t.Parallel()
	_, problems := Parse(File{Name: "dag.yaml", Text: []byte("name: a\njobs:\n  - name: a\n    operator: sql\n" +
		"    partition_by: { time: \"\" }\n    config: { query: SELECT 1 }\n")}, testCatalog())
	require.Contains(t, problems.Error(), "dag.yaml:5:27: `time` is empty (use minute, hour, day, week, month, ")
}

func TestProblemForms(t *testing.T) {
	t.Parallel()
	_, problems := Parse(File{Name: "dag.yaml", Text: []byte("name: a\njbs: []\njobs: []\n")}, testCatalog())

	require.Equal(t, "dag.yaml:2:1: a DAG has no field \"jbs\" (did you mean \"jobs\"?)\n"+
		"dag.yaml:3:7: `jobs` needs at least 1 entry", problems.Error())

	text, err := json.Marshal(problems)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"file": "dag.yaml", "line": 2, "column": 1, "code": "unknown", "message": "a DAG has no field \"jbs\"",
		 "suggestion": "did you mean \"jobs\"?", "source": "jbs: []"},
		{"file": "dag.yaml", "line": 3, "column": 7, "code": "value", "message": "`+"`jobs`"+` needs at least 1 entry",
		 "source": "jobs: []"}
	]`, string(text))

	err = problems.Fault()
	require.True(t, fault.Is(err, fault.Invalid))
	require.EqualError(t, err, "the DAG file has 2 problems")
	require.Equal(t, fault.Problem{
		Location: "dag.yaml:2:1", Message: "a DAG has no field \"jbs\"", Suggestion: "did you mean \"jobs\"?",
		Code: "unknown",
	}, problems.Fault().Problems[0])
	require.Nil(t, Problems(nil).Fault())
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	_, problems := Parse(File{Name: "dag.yaml", Text: make([]byte, MaxFileBytes+1)}, testCatalog())
	require.Equal(t, "dag.yaml:1:1: the file has 2097153 bytes; at most 2097152 are allowed", problems.Error())
}

func TestTooManyProblems(t *testing.T) {
	t.Parallel()
	_, problems := Parse(File{Name: "dag.yaml",
		Text: []byte("name: a\njobs:\n" + strings.Repeat("  - {}\n", MaxProblems))}, testCatalog())
	require.Len(t, problems, MaxProblems+1)
	require.Equal(t, CodeLimit, problems[MaxProblems].Code)
	require.Contains(t, problems[MaxProblems].Message, "and 400 more problems")
}

// TestHostile checks that Parse refuses large texts that are built to be slow, and does so in time.
func TestHostile(t *testing.T) {
	t.Parallel()
	for name, piece := range map[string]string{
		"lists": "[", "mappings": "{a:", "entries": "- ", "keys": "? ", "anchors": "&a [", "documents": "---\n",
		"tabs": "\t\n", "comments": "#\n", "breaks": "\u2028",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := []byte(strings.Repeat(piece, MaxFileBytes/16/len(piece)))
			_, problems := Parse(File{Text: text}, testCatalog())
			require.NotEmpty(t, problems)
			_, problems = Format(text)
			require.NotEmpty(t, problems)
		})
	}
}
