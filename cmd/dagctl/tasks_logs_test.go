package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/tasklogs"
)

const talkativeDAG = `name: talkative
jobs:
  - name: say
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 2
    retry: { initial_seconds: 1, max_seconds: 1, multiplier: 1 }
    config: { argv: [/bin/sh, -c, %s] }
`

// TestATaskHasALog: callers who may read a task's outputs see what it printed, attempt by attempt, in order.
func TestATaskHasALog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writers := w.env(t, writer)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	script := `echo one; echo two >&2; printf 'no end of line'; test -e "$MARK" && exit 0; touch "$MARK"; exit 1`
	script = strings.ReplaceAll(script, "$MARK", filepath.Join(t.TempDir(), "mark"))
	text, err := json.Marshal(script)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, talkativeDAG, text), 0o600))
	must(t, writers, "deploy", file)
	id := strings.TrimSpace(must(t, writers, "run", "talkative/say"))

	out := must(t, writers, "tasks", "logs", id, "--follow")
	require.Equal(t, 6, strings.Count(out, "\n"), out)
	require.Contains(t, out, " #1 info one\n")
	require.Contains(t, out, " #1 warn two\n")
	require.Contains(t, out, " #2 info no end of line\n")
	require.Equal(t, 1, strings.Count(must(t, writers, "tasks", "logs", id, "--attempt", "2", "--tail", "1"), "\n"))
	var first tasklogs.Line
	require.NoError(t, json.NewDecoder(strings.NewReader(must(t, writers, "tasks", "logs", id, "--output",
		"json"))).Decode(&first))
	require.Equal(t, 1, first.Attempt)
	require.EqualValues(t, 1, first.Seq)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/tasks/"+id+"/logs/stream", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+w.tokens[writer])
	request.Header.Set("Last-Event-ID", "1.3")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var events []string
	for scan := bufio.NewScanner(response.Body); scan.Scan(); {
		if name, ok := strings.CutPrefix(scan.Text(), "event: "); ok {
			events = append(events, name)
		}
	}
	require.Equal(t, []string{"line", "line", "line", "end"}, events)

	status, page := w.send(t, writer, "GET", "/tasks/"+id, "", nil)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, page, "no end of line")
	for path, want := range map[string]int{"/v1/tasks/" + id + "/logs?cursor=x": 422,
		"/v1/tasks/" + id + "/logs?cursor=eyJhIjo5OTk5OTk5OTk5OX0": 422,
		"/v1/tasks/0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69/logs":      404,
		"/v1/tasks/none/logs/stream":                               404, "/v1/tasks/none/logs": 422} {
		status, body := w.send(t, writer, "GET", path, "", nil)
		require.Equal(t, want, status, "%s: %s", path, body)
	}
}

func TestOldLinesGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writers := w.env(t, writer)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, talkativeDAG, `"echo one"`), 0o600))
	must(t, writers, "deploy", file)
	id := strings.TrimSpace(must(t, writers, "run", "talkative/say"))
	require.Contains(t, must(t, writers, "tasks", "logs", id, "-f"), "one")
	require.NoError(t, w.app.Logs.Sweep(t.Context(), time.Now().Add(29*24*time.Hour)))
	require.Contains(t, must(t, writers, "tasks", "logs", id), "one")
	require.NoError(t, w.app.Logs.Sweep(t.Context(), time.Now().Add(31*24*time.Hour)))
	require.Empty(t, must(t, writers, "tasks", "logs", id))
}
