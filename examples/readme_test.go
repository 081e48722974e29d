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

// TestReadmes runs the commands of READMEs as they stand there: a server, a worker beside it, and the commands of
// people. What differs is where the server listens and keeps its data, so that several run at once.
func TestReadmes(t *testing.T) {
	t.Parallel()
	for example, want := range map[string]string{
		"task-queue":     "4 Completed 1 dead", // two of the mails are one, one of four backups cannot succeed
		"planner-worker": "7 Completed 0 dead",
		"workflow-tasks": "1 Completed 0 dead",
		"birthdays":      "1 Completed 0 dead", // the others have their birthdays to come
	} {
		t.Run(example, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, example)
			commands := shellBlocks(t, filepath.Join(example, "README.md"))
			dev, config := "dagctl dev examples/"+example, filepath.Join(w.dir, "server.yaml")
			var flags []string
			if _, err := os.Stat(config); err == nil {
				dev, flags = dev+" --config examples/"+example+"/server.yaml", []string{"--config", config}
			}
			require.Equal(t, dev+"\n", commands["server"])
			receiver := strings.TrimPrefix(processtest.FreeAddress(t), "127.0.0.1:")
			w.replace(t, "7171", receiver)
			server := w.serve(t, flags...)
			address, _, _ := strings.Cut(server.URL, "/?")

			shell := func(name string) *exec.Cmd {
				text := strings.ReplaceAll(commands[name], "http://127.0.0.1:7070", address)
				text = strings.ReplaceAll(text, ".dagctl/", w.data+"/")
				text = strings.ReplaceAll(text, "7171", receiver)
				require.NotEmpty(t, text, name)
				cmd := exec.Command("sh", "-e", "-c", "dagctl() { command dagctl \"$@\" --data "+w.data+"; }\n"+text)
				cmd.Dir = ".."
				cmd.Env = append(processtest.Environment(t), "PYTHONDONTWRITEBYTECODE=1",
					"GOCACHE="+goEnv(t, "GOCACHE"), "GOMODCACHE="+goEnv(t, "GOMODCACHE"))
				return cmd
			}
			start(t, shell("worker"))
			processtest.Eventually(t, "the DAG serves", func() bool {
				return w.count(t, `SELECT count(*) FROM dag_versions WHERE status = 'Active'`) == 1
			})
			said, err := shell("run").CombinedOutput()
			require.NoError(t, err, string(said))

			processtest.Eventually(t, want, func() bool {
				var got string
				require.NoError(t, w.owner.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE status = 'Completed')
					|| ' Completed ' || (SELECT count(*) FROM waiting WHERE reason = 'dead') || ' dead'
					FROM tasks`).Scan(&got))
				return got == want
			})
			server.Stop(t)
		})
	}
}

// replace changes the copy of the example's DAG file.
func (w *world) replace(t *testing.T, old, changed string) {
	t.Helper()
	file := filepath.Join(w.dir, "dag.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, changed)), 0o600))
}

var shellBlock = regexp.MustCompile("(?ms)^```sh ([a-z]+)\n(.*?)^```$")

// shellBlocks returns the commands of a page, by what stands behind "sh" where their block begins.
func shellBlocks(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	found := map[string]string{}
	for _, match := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		found[match[1]] += match[2]
	}
	return found
}

// goEnv returns a setting of the go command, which looks below HOME where nothing else is said.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	value, err := exec.Command("go", "env", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(value))
}
