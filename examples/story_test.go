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

// story is an example whose README is run as it stands there: its commands, and what they print.
type story struct {
	*world
	root     string            // the folder in which a reader of the README is
	commands map[string]string // by what stands behind "sh" where their block begins
	answers  map[string]string // what the README says that they print
	other    *strings.Replacer // for what differs here: where servers listen, and who logs in
}

// newStory returns the story of an example, in whose copy of the DAG file is what differs, too: pairs of old and new.
func newStory(t *testing.T, example string, differs ...string) *story {
	t.Helper()
	s := &story{world: newWorld(t, example), root: t.TempDir(), other: strings.NewReplacer(differs...)}
	page := filepath.Join(example, "README.md")
	s.commands, s.answers = shellBlocks(t, page), answerBlocks(t, page)
	require.Equal(t, "dagctl dev examples/"+example+"\n", s.commands["server"])

	dir := filepath.Join(s.root, "examples", example)
	require.NoError(t, os.Mkdir(filepath.Dir(dir), 0o700))
	require.NoError(t, os.Rename(s.dir, dir))
	s.dir = dir
	file := filepath.Join(dir, "dag.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(s.other.Replace(string(text))), 0o600))
	return s
}

var answerBlock = regexp.MustCompile("(?ms)^```sh ([a-z]+)\n[^`]*^```\n```\n(.*?)^```$")

// answerBlocks returns what stands right below the commands of a page.
func answerBlocks(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	found := map[string]string{}
	for _, match := range answerBlock.FindAllStringSubmatch(string(text), -1) {
		found[match[1]] = match[2]
	}
	return found
}

// shell returns a block of commands, to be run in the reader's folder.
func (s *story) shell(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	text := s.other.Replace(s.commands[name])
	require.NotEmpty(t, text, name)
	text = strings.ReplaceAll(text, ".dagctl/", s.data+"/")
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", "dagctl() { command dagctl \"$@\" --data "+s.data+"; }\n"+text)
	cmd.Dir, cmd.Env = s.root, append(processtest.Environment(t), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// do runs commands that have to succeed.
func (s *story) do(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		said, err := s.shell(t, name).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, said)
	}
}

// shows runs commands until they print what the README says.
func (s *story) shows(t *testing.T, name string) {
	t.Helper()
	want := s.answers[name]
	require.NotEmpty(t, want, "the README does not say what the commands of %q print", name)
	var got []byte
	defer func() {
		if t.Failed() {
			t.Logf("%s printed\n%s", name, got)
		}
	}()

	processtest.Eventually(t, name+" prints\n"+want, func() bool {
		got, _ = s.shell(t, name).CombinedOutput() // until there is something to show, it fails
		return trimmed(string(got)) == trimmed(want)
	})
}

// tasks returns how many tasks a job has had.
func (s *story) tasks(t *testing.T, job string) int {
	t.Helper()
	return s.count(t, `SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1`, job)
}

// trimmed returns lines without the spaces at their ends, which editors remove.
func trimmed(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}
