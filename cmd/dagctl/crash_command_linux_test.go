package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// running lists the processes whose arguments have a text.
func running(t *testing.T, argument string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range all {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), argument) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// The program of a killed server and what it has started are gone long before another server may take its lease: a job
// of max_concurrency 1 never runs twice at once. So are the folders of its attempt, once a server starts beside them.
func TestTheProgramOfAKilledServerEndsWithIt(t *testing.T) {
	t.Parallel()
	mark := "86400." + strconv.Itoa(os.Getpid())
	dir, root := t.TempDir(), t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("operators: { allow_command: [acme] }\n"), 0o600))
	database, address := testdb.Empty(t), processtest.FreeAddress(t)
	args := []string{"--database-url", database, "--listen", address, "--storage-root", root, "--migrate", "--config",
		config}
	server := startServer(t, args...)
	env := map[string]string{"DAGCTL_URL": "http://" + address, "DAGCTL_DATABASE_URL": database, "HOME": t.TempDir()}
	eventually(t, "the schema", func() (bool, error) {
		return strings.Contains(dagctl(t, env, "doctor").out, "needs a token"), nil
	})
	env["DAGCTL_TOKEN"] = strings.TrimSpace(must(t, env, "admin", "bootstrap", "--org", "acme"))
	eventually(t, "ready", func() (bool, error) { return dagctl(t, env, "doctor").code == cli.ExitOK, nil })

	file := filepath.Join(dir, "dag.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `name: long
jobs:
  - name: alone
    operator: command
    source: { kind: manual }
    scaling: { max_concurrency: 1 }
    config: { argv: [sh, -c, "sleep %[1]s & exec sleep %[1]s"] }
publish:
  alone: { from: { job: alone } }
`, mark), 0o600))
	must(t, env, "deploy", file)
	must(t, env, "run", "long/alone")
	eventually(t, "the program and its child run", func() (bool, error) {
		found := running(t, mark)
		return len(found) >= 2, fmt.Errorf("%v", found)
	})
	folders, err := filepath.Glob(filepath.Join(root, ".scratch", "run-*"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)

	server.kill(t)
	eventually(t, "they are gone, with nobody to end them", func() (bool, error) {
		found := running(t, mark)
		return len(found) == 0, fmt.Errorf("%v", found)
	})
	startServer(t, args...)
	eventually(t, "the folders are gone", func() (bool, error) {
		for _, folder := range folders {
			if _, err := os.Stat(folder); err == nil {
				return false, fmt.Errorf("%s", folder)
			}
		}
		return true, nil
	})
}
