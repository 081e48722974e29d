package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
)

// TestDeployStory runs the story and compares its output with docs/deploys.md.
func TestDeployStory(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs(filepath.Join("us-flights", "deploy-story.sh"))
	require.NoError(t, err)

	cmd := exec.CommandContext(t.Context(), "sh", script)
	cmd.Env = processtest.Environment(t)
	var errs strings.Builder
	cmd.Stderr = &errs
	printed, err := cmd.Output()
	require.NoError(t, err, errs.String())

	page, err := os.ReadFile(filepath.Join("..", "docs", "deploys.md"))
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(page), "```console story\n")
	require.True(t, found, "docs/deploys.md does not show the story")
	shown, _, _ = strings.Cut(shown, "```")
	require.Equal(t, plainly(shown), plainly(string(printed)))
}

// changing matches what differs from run to run: hashes, times, sizes.
var changing = regexp.MustCompile(`\([0-9a-f]{7}\)|<1s|~[0-9hms.]+|Critical path .*?s\.|[0-9.]+ [kM]?B\b`)

// plainly returns a text without what differs from run to run, and without the widths of columns.
func plainly(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(changing.ReplaceAllString(line, "")), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
