package examples_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
)

// said keeps the lines that a program prints.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) read(from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		s.mu.Lock()
		s.lines = append(s.lines, lines.Text())
		s.mu.Unlock()
	}
}

func (s *said) sorted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.lines))
}

// TestAlertsExample runs the commands of the README and compares what the receiver prints with what stands there. The
// server is killed on its way.
func TestAlertsExample(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alerts")
	root := t.TempDir() // in which a reader of the README is
	require.NoError(t, os.Mkdir(filepath.Join(root, "examples"), 0o700))
	require.NoError(t, os.Rename(w.dir, filepath.Join(root, "examples", "alerts")))
	w.dir = filepath.Join(root, "examples", "alerts")
	port := strings.TrimPrefix(processtest.FreeAddress(t), "127.0.0.1:")
	file := filepath.Join(w.dir, "dag.yaml")
	dag, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(dag), ":9093", ":"+port)), 0o600))
	commands := shellBlocks(t, filepath.Join("alerts", "README.md"))
	require.Equal(t, "dagctl dev examples/alerts\n", commands["server"])

	shell := func(name string) *exec.Cmd {
		text := strings.TrimSpace(commands[name])
		require.NotEmpty(t, text, name)
		text = "dagctl() { command dagctl \"$@\" --data " + w.data + "; }\n" + text
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", text)
		cmd.Dir, cmd.Env = root, append(processtest.Environment(t), "PYTHONDONTWRITEBYTECODE=1")
		return cmd
	}
	printed := &said{}
	receiver := exec.CommandContext(t.Context(), "sh", "-ec",
		"exec "+strings.TrimSpace(commands["receiver"])+" --port "+port)
	receiver.Dir, receiver.Env = root, processtest.Environment(t)
	out, err := receiver.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, receiver.Start())
	read := make(chan struct{})
	go func() { defer close(read); printed.read(out) }()
	t.Cleanup(func() {
		_ = receiver.Process.Kill()
		<-read
		_ = receiver.Wait()
	})

	server := w.serve(t)
	w.settle(t)
	readme, err := os.ReadFile(filepath.Join("alerts", "README.md"))
	require.NoError(t, err)
	var want []string
	for _, step := range []string{"second", "third", "fourth"} {
		_, text, _ := strings.Cut(string(readme), "```sh "+step+"\n")
		_, text, _ = strings.Cut(text, "```\n")
		_, text, _ = strings.Cut(text, "```\n")
		text, _, _ = strings.Cut(text, "```")
		want = append(want, strings.Split(strings.TrimSpace(text), "\n")...)
		slices.Sort(want)

		out, err := shell(step).CombinedOutput()
		require.NoError(t, err, string(out))
		processtest.Eventually(t, "the receiver hears of the "+step, func() bool {
			return len(printed.sorted()) >= len(want)
		})
		require.Equal(t, want, printed.sorted(), step)
		if step == "third" {
			server.Kill()
			server = w.serve(t)
		}
	}
	w.settle(t)
	require.Equal(t, want, printed.sorted())

	look, err := shell("look").CombinedOutput()
	require.NoError(t, err, string(look))
	require.Contains(t, string(look), "2026-03-04")
	require.Contains(t, string(look), "resolved")
	cleaned, err := shell("clean").CombinedOutput()
	require.NoError(t, err, string(cleaned))
	server.Stop(t)
}
