package dev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadDevFile(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	folder := filepath.Join(root, "shop")
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "code"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "code", "price.py"), nil, 0o600))
	read := func(text string) ([]declared, string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, devFileName), []byte(text), 0o600))
		workers, problems, err := readDevFile(root, folder)
		require.NoError(t, err)
		return workers, strings.ReplaceAll(problems.Error(), folder+string(filepath.Separator), "")
	}

	workers, problems := read(`workers:
  - command: [python3, -m, price.py]
    dir: code
    env: { LOG_LEVEL: debug, RETRIES: 3 }
    watch: ["*.py", "*.json"]
  - command: [make, worker]
`)
	require.Empty(t, problems)
	require.Equal(t, []declared{
		{Name: "shop/code/price.py", Command: []string{"python3", "-m", "price.py"}, Dir: filepath.Join(folder, "code"),
			Env: []string{"LOG_LEVEL=debug", "RETRIES=3"}, Watch: []string{"*.py", "*.json"}, folder: folder},
		{Name: "shop/make", Command: []string{"make", "worker"}, Dir: folder, Watch: codeFiles, folder: folder},
	}, workers)

	for text, want := range map[string]string{
		"":                        `dev.yaml:1:1: dev.yaml declares no workers (` + devExample + `)`,
		"workers: [":              `dev.yaml:1:1: did not find expected node content`,
		"- a":                     "dev.yaml:1:1: dev.yaml is an object with the field `workers` (" + devExample + ")",
		"workers: 3":              "dev.yaml:1:10: `workers` is a list of workers (" + devExample + ")",
		"workers: [python3]":      "dev.yaml:1:11: a worker is an object with the field `command` (" + devExample + ")",
		"worker: []":              `dev.yaml:1:1: dev.yaml has no field "worker" (use one of: workers)`,
		"workers: [{dir: code}]":  "dev.yaml:1:11: a worker needs the field `command` (" + devExample + ")",
		"workers: [{command: x}]": "dev.yaml:1:21: `command` is a list of texts (write the program and each of its",
		"workers: [{command: [x], dir: ../other}]":          "dev.yaml:1:31: `dir` \"../other\" is not below",
		"workers: [{command: [x], env: {A-B: 1}}]":          `dev.yaml:1:32: "A-B" cannot name a variable (`,
		"workers: [{command: [x], env: {DAGCTL_TOKEN: a}}]": `dev.yaml:1:32: the dev server sets DAGCTL_TOKEN itself (`,
		"workers: [{command: [x], watch: ['a/*.py']}]":      `dev.yaml:1:34: "a/*.py" is not a pattern of file names (`,
	} {
		workers, problems := read(text)
		require.Empty(t, workers, text)
		require.Contains(t, problems, want, text)
	}

	workers, told, err := readDevFile(root, root)
	require.NoError(t, err)
	require.Empty(t, workers)
	require.Empty(t, told)
}

// The examples of the documentation and of `dagctl init` declare workers.
func TestExamplesOfDevFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/workers.md")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(page), "```dev.yaml\n")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	template, err := os.ReadFile("../dagfile/templates/worker/dev.yaml")
	require.NoError(t, err)

	for _, text := range []string{block, string(template)} {
		folder := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(folder, devFileName), []byte(text), 0o600))
		workers, problems, err := readDevFile(folder, folder)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Equal(t, []string{"python3", "worker.py"}, workers[0].Command)
	}
}
