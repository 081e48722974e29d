package docs_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/examples/processtest"
)

func schemaOf(t *testing.T) []byte { return dag.Schema(catalog(t)) }

// TestConsoleBlocks runs the commands that the pages ask readers to run.
func TestConsoleBlocks(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, p := range pages(t) {
		session := &console{page: p}
		for _, b := range p.blocks {
			if !strings.HasPrefix(b.info, "console run") {
				continue
			}
			if session.dir == "" {
				session.dir, session.env = t.TempDir(), processtest.Environment(t)
				processtest.RemoveCluster(t, filepath.Join(session.dir, ".dagctl"))
			}
			for _, step := range stepsOf(b) {
				session.do(t, step, b)
				ran++
			}
		}
	}
	require.Positive(t, ran)
}

// console runs the commands of one page.
type console struct {
	page page
	dir  string
	env  []string
}

// step is one command, and lines of its output.
type step struct {
	command string
	prints  []string
}

func stepsOf(b block) []step {
	var steps []step
	for _, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, step{command: command})
			continue
		}
		last := &steps[len(steps)-1]
		last.prints = append(last.prints, line)
	}
	return steps
}

// do runs a command. Its output must contain the lines that the page shows, in that order. A line on the page may show
// only some of the words, in their order, and columns may be wider.
func (c *console) do(t *testing.T, s step, b block) {
	t.Helper()
	if strings.HasSuffix(b.info, "background") {
		args := strings.Fields(s.command)
		require.Equal(t, []string{"dagctl", "dev"}, args[:2], "%s:%d: only dagctl dev runs in the background",
			c.page.path, b.line)
		processtest.Dev(t, filepath.Join(c.dir, args[2]), filepath.Join(c.dir, ".dagctl"))
		return
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", s.command)
	cmd.Dir, cmd.Env = c.dir, c.env
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s:%d: %s\n%s", c.page.path, b.line, s.command, output)
	lines := strings.Split(string(output), "\n")
	for _, want := range s.prints {
		i := 0
		for ; i < len(lines) && !hasWords(lines[i], want); i++ {
		}
		require.Less(t, i, len(lines), "%s:%d: `%s` does not print %q, but\n%s", c.page.path, b.line, s.command, want,
			output)
		lines = lines[i+1:]
	}
}

func hasWords(line, want string) bool {
	have := strings.Fields(line)
	for _, word := range strings.Fields(want) {
		i := 0
		for ; i < len(have) && have[i] != word; i++ {
		}
		if i == len(have) {
			return false
		}
		have = have[i+1:]
	}
	return true
}
