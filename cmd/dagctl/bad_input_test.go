package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// badInput reads what a golden file asks, one line each after "$ ".
func badInput(t *testing.T, name string) (asked []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/bad", name))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if ask, found := strings.CutPrefix(line, "$ "); found {
			asked = append(asked, strings.TrimSuffix(ask, "\n"))
		}
	}
	return asked
}

// requireBad compares a golden file with what was asked and answered.
func requireBad(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata/bad", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// TestBadCommands compares what is said to command lines that are wrong with the exact text that their author reads.
func TestBadCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env, dir := w.env(t, writer), t.TempDir()
	for name, text := range map[string]string{"empty.yaml": "", "dag.yaml": readingsDAG, "broken.ndjson": "{}\n{\n",
		"twice.yaml": "name: a\nname: b\n", "broken.yaml": "name: [a\n", "elsewhere/README.md": "nothing\n"} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}

	var got strings.Builder
	word := regexp.MustCompile(`'[^']*'|\S+`)
	changing := regexp.MustCompile(regexp.QuoteMeta(w.url) + `|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}`)
	for _, line := range badInput(t, "commands.txt") {
		var args []string
		for _, arg := range word.FindAllString(strings.ReplaceAll(line, "$DIR", dir), -1)[1:] {
			args = append(args, strings.Trim(arg, "'"))
		}
		r := dagctl(t, env, args...)
		assert.NotZero(t, r.code, line)
		assert.NotContains(t, r.err, "goroutine", line)

		said := changing.ReplaceAllString(strings.ReplaceAll(r.out+r.err, dir, "$DIR"), "…")
		fmt.Fprintf(&got, "$ %s\n%s[%d]\n\n", line, said, r.code)
	}
	requireBad(t, "commands.txt", got.String())
}

// TestBadRequests compares what is answered to requests that are wrong with the exact text that their author reads.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")

	var got strings.Builder
	for _, line := range badInput(t, "requests.txt") {
		method, rest, _ := strings.Cut(line, " ")
		path, body, _ := strings.Cut(rest, " ")
		status, text := w.send(t, writer, method, path, "application/json", strings.NewReader(body))
		assert.GreaterOrEqual(t, status, http.StatusBadRequest, line)
		assert.Less(t, status, http.StatusInternalServerError, line)

		var pretty bytes.Buffer
		assert.NoError(t, json.Indent(&pretty, []byte(text), "", "  "), line)
		said := regexp.MustCompile(`(?m)^  "(request_id|\$schema)": .*\n`).ReplaceAllString(pretty.String(), "")
		fmt.Fprintf(&got, "$ %s\n%s\n\n", line, strings.TrimSpace(said))
	}
	requireBad(t, "requests.txt", got.String())
}
