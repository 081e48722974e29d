package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/registry"
)

// binary is the program itself, built once for the tests that kill it.
var binary = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../../bin/dagctl-test") // bin is not part of the repository
	if err != nil {
		return "", err
	}
	if text, err := exec.Command("go", "build", "-ldflags=-w", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, text)
	}
	return path, nil
})

// process is a server or a worker that runs in a process of its own.
type process struct {
	cmd *exec.Cmd
	log *output
}

func startServer(t *testing.T, args ...string) *process {
	t.Helper()
	return startProcess(t, []string{"DAGCTL_LOG_FORMAT=text"}, append([]string{"serve"}, args...)...)
}

func startProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(path, args...), log: new(output)}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.Env = append(os.Environ(), env...)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

// kill ends the process as a power cut would.
func (p *process) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // it says: killed
}

// signal sends the process a signal.
func (p *process) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(signal))
}

const slowDAG = `name: slow
jobs:
` + landingJob + `  - name: copied
    operator: sql
    inputs:
      - from: { job: landing }
    execution_strategy: PerPartition
    update_strategy: replace
    heartbeat_timeout_seconds: 5
    config: { query: "SELECT n, (SELECT sum(sqrt(r.range * n)) > 0 FROM range(3000000) AS r) AS busy FROM landing" }
publish:
  copied: { from: { job: copied } }
`

// TestKilledServerLosesAndRepeatsNothing kills the server twice while tasks run, and compares the result with that of a
// run without kills.
func TestKilledServerLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const days = 31
	b := newBuilt(t, "")
	require.NoError(t, os.Mkdir(filepath.Join(b.roots, "landing"), 0o700))
	for day := 1; day <= days; day++ {
		name := filepath.Join(b.roots, "landing", fmt.Sprintf("2026-01-%02d.csv", day))
		require.NoError(t, os.WriteFile(name, fmt.Appendf(nil, "n\n%d\n", day), 0o600))
	}
	env := b.env(t, admin)

	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(slowDAG), 0o600))
	must(t, env, "deploy", file, "--wait=false")
	completed := func() int {
		r := dagctl(t, env, "tasks", "list", "--job", "copied", "--dag", "slow", "--status", "Completed",
			"--limit", "1000", "-o", "json")
		return strings.Count(r.out, `"id"`)
	}
	for _, share := range []int{days / 4, days / 2} {
		eventually(t, "some tasks done", func() (bool, error) { return completed() >= share, nil })
		b.crash(t)
	}
	eventually(t, "everything done", func() (bool, error) {
		status := decode[views.DAGDetail](t, env, "status", "slow")
		return status.Active != nil && status.Tasks.Open() == 0, nil
	})

	partitions := decode[[]registry.Revision](t, env, "datasets", "partitions", "copied")
	require.Len(t, partitions, days, "none is missing")
	for _, p := range partitions {
		require.EqualValues(t, 1, p.Revision, "partition %s was committed once", p.Key)
		require.EqualValues(t, 1, p.Rows)
	}
	require.Zero(t, decode[views.DAGDetail](t, env, "status", "slow").Tasks.Dead)

	b.process.signal(t, syscall.SIGTERM)
	require.NoError(t, b.process.cmd.Wait(), "a server that is asked to stop exits without an error")
}

// TestServeWaitsForTheSchema starts a server on an empty database.
func TestServeWaitsForTheSchema(t *testing.T) {
	t.Parallel()
	database, address := testdb.Empty(t), processtest.FreeAddress(t)
	server := startServer(t, "--database-url", database, "--listen", address, "--storage-root", t.TempDir())
	env := map[string]string{"DAGCTL_URL": "http://" + address, "DAGCTL_DATABASE_URL": database}
	eventually(t, "not ready, and says why", func() (bool, error) {
		return strings.Contains(dagctl(t, env, "whoami").err, "run `dagctl migrate`"), nil
	})
	require.Contains(t, dagctl(t, env, "doctor").out, "lacks")
	must(t, env, "migrate")
	eventually(t, "ready without a restart", func() (bool, error) {
		return strings.Contains(dagctl(t, env, "whoami").err, "needs a token"), nil
	})
	server.signal(t, syscall.SIGINT)
	_ = server.cmd.Wait() // the exit code is read below
	require.Equal(t, cli.ExitInterrupted, server.cmd.ProcessState.ExitCode())
	require.Contains(t, server.log.String(), "msg=stopped", "it ended cleanly all the same")
}
