package docs_test

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

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
	if strings.HasSuffix(b.info, "page") {
		c.follow(t, strings.TrimSpace(string(output)), s.prints)
		return
	}
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

// follow opens the address of a page with a statement, as a browser does that dev has signed in, and presses the button
// that runs it. The address is the one that the page of the docs shows, but for the port. The rows must be a line
// chart.
func (c *console) follow(t *testing.T, address string, prints []string) {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(c.dir, ".dagctl", "token"))
	require.NoError(t, err)
	get := func(method string, form url.Values) *html.Node {
		request, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, http.StatusOK, response.StatusCode, address)
		page, err := html.Parse(response.Body)
		require.NoError(t, err)
		return page
	}

	require.Len(t, prints, 1)
	require.Equal(t, prints[0][strings.Index(prints[0], "/query?"):], address[strings.Index(address, "/query?"):])
	statement := textOf(get(http.MethodGet, nil), "textarea")
	address = address[:strings.Index(address, "?")]
	require.Contains(t, textOf(get(http.MethodPost, url.Values{"sql": {statement}}), "desc"), "Line chart of")
}

// textOf returns the text of the first element of a kind; empty: there is none.
func textOf(page *html.Node, kind string) string {
	for n := range page.Descendants() {
		if n.Type == html.ElementNode && n.Data == kind && n.FirstChild != nil {
			return n.FirstChild.Data
		}
	}
	return ""
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
