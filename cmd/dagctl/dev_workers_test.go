package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/testdb"
)

const greetDAG = `name: mail
defaults: { runtime: python, max_attempts: 1 }
jobs:
  - { name: greet, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: greet } }
  - { name: crash, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: crash } }
`

const greetWorker = `import os
import dagctl

worker = dagctl.Worker(runtime="python")

@worker.handler("greet")
def greet(ctx):
    return {"says": "one", "pid": os.getpid(), "mood": os.environ.get("MOOD", "")}

@worker.handler("crash")
def crash(ctx):
    print("about to crash")
    os._exit(3)

worker.run()
`

// devFolder is a folder of a DAG with a worker, and the dev servers that run there one after the other.
type devFolder struct {
	dir, data, database, sdk string
}

// devProcess is a dev server in a process of its own.
type devProcess struct {
	*devFolder
	cmd *exec.Cmd
	log *output
}

func newDevFolder(t *testing.T, files map[string]string) *devFolder {
	t.Helper()
	sdk, err := filepath.Abs("../../sdk/python")
	require.NoError(t, err)
	d := &devFolder{dir: t.TempDir(), data: t.TempDir(), database: testdb.URL(t), sdk: sdk}
	for name, text := range files {
		d.save(t, name, text)
	}
	return d
}

func (d *devFolder) save(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600))
}

// start starts a dev server, and waits until it has done its first deploy.
func (d *devFolder) start(t *testing.T) *devProcess {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	cmd := exec.Command(path, "dev", d.dir, "--addr", "127.0.0.1:0", "--data", d.data, "--database-url", d.database)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+d.sdk, "PYTHONDONTWRITEBYTECODE=1", "DAGCTL_TOKEN=of-another-server")
	p := &devProcess{d, cmd, new(output)}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("dev said:\n%s", p.log)
		}
	})
	p.says(t, "mail v1 is Active")
	return p
}

func (p *devProcess) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, text, func() (bool, error) { return strings.Contains(p.log.String(), text), nil })
}

// greeting is the result of the job greet.
type greeting struct {
	Says, Mood string
	PID        int
}

// task runs a job and returns its task once that has ended.
func (p *devProcess) task(t *testing.T, job string) (task views.TaskDetail) {
	t.Helper()
	made := decode[[]dispatcher.Enqueued](t, nil, "run", job, "--data", p.data)
	eventually(t, "the end of "+job, func() (bool, error) {
		task = decode[views.TaskDetail](t, nil, "tasks", "get", made[0].ID.String(), "--data", p.data)
		return task.Status == "Completed" || task.Waiting == "dead", nil
	})
	return task
}

func (p *devProcess) greet(t *testing.T) (r greeting) {
	t.Helper()
	task := p.task(t, "mail/greet")
	require.Equal(t, "Completed", task.Status, task.Error)
	require.NoError(t, json.Unmarshal(task.Result, &r))
	return r
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the end of process %d", pid), func() (bool, error) {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z "), nil
	})
}

func TestDevRunsDeclaredWorkers(t *testing.T) {
	t.Parallel()
	d := newDevFolder(t, map[string]string{"dag.yaml": greetDAG, "worker.py": greetWorker,
		"dev.yaml": "workers: [{command: [python3, worker.py], env: {MOOD: fine}}]\n"})
	p := d.start(t)
	first := p.greet(t)
	require.Equal(t, greeting{"one", "fine", first.PID}, first)
	require.NotContains(t, p.log.String(), "for a worker of yours", "dev runs it")

	// A save starts it anew, and nothing else does.
	d.save(t, "notes.txt", "not code")
	d.save(t, "worker.py", strings.Replace(greetWorker, `"one"`, `"two"`, 1))
	p.says(t, "saved worker.py")
	second := p.greet(t)
	require.Equal(t, "two", second.Says)
	require.NotEqual(t, first.PID, second.PID)
	gone(t, first.PID)

	// A crash is shown, and it is started again.
	require.Equal(t, "Failed", p.task(t, "mail/crash").Status)
	p.says(t, "failed worker worker.py: exit status 3; it starts again in 1s, or at the next save\n")
	p.says(t, "  about to crash\n")
	third := p.greet(t)
	require.Equal(t, "two", third.Says)
	log, err := os.ReadFile(filepath.Join(d.data, "dagctl.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), `msg="about to crash" worker=worker.py`)

	d.save(t, "worker.py", "import dagctl\nworker = \n")
	p.says(t, "  SyntaxError: invalid syntax\n")
	d.save(t, "worker.py", greetWorker)
	fourth := p.greet(t)
	require.Equal(t, "one", fourth.Says)

	// A dev.yaml with problems leaves the worker as it is.
	d.save(t, "dev.yaml", "workers: [{comand: [python3, worker.py]}]\n")
	p.says(t, `dev.yaml:1:12: a worker has no field "comand" [unknown]`)
	require.Equal(t, fourth.PID, p.greet(t).PID)
	d.save(t, "dev.yaml", "workers: [{command: [python3, worker.py], env: {MOOD: better}}]\n")
	eventually(t, "the worker of the new dev.yaml", func() (bool, error) { return p.greet(t).Mood == "better", nil })
	last := p.greet(t)

	// The workers of a dev server that is killed end with it, and the token stays.
	token, err := os.ReadFile(filepath.Join(d.data, "worker-token"))
	require.NoError(t, err)
	require.NoError(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // it says: killed
	gone(t, last.PID)

	p = d.start(t)
	again := p.greet(t)
	require.Equal(t, "better", again.Mood)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	_ = p.cmd.Wait() // it says: interrupted
	gone(t, again.PID)
	kept, err := os.ReadFile(filepath.Join(d.data, "worker-token"))
	require.NoError(t, err)
	require.Equal(t, string(token), string(kept))
}

// A worker whose dev server ends gives its task back at once.
func TestDevEndsWithoutWaitingForTasks(t *testing.T) {
	t.Parallel()
	d := newDevFolder(t, map[string]string{"dag.yaml": greetDAG,
		"dev.yaml":  "workers: [{command: [python3, worker.py]}]\n",
		"worker.py": strings.Replace(greetWorker, "    print(", "    ctx.wait(3600)\n    print(", 1)})
	p := d.start(t)
	made := decode[[]dispatcher.Enqueued](t, nil, "run", "mail/crash", "--data", d.data)
	get := func() views.TaskDetail {
		return decode[views.TaskDetail](t, nil, "tasks", "get", made[0].ID.String(), "--data", d.data)
	}
	eventually(t, "it runs", func() (bool, error) { return get().Status == "Running", nil })
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	_ = p.cmd.Wait() // it says: interrupted

	p = d.start(t)
	eventually(t, "it runs again", func() (bool, error) {
		task := get()
		return task.Status == "Running" && task.Attempt == 2, nil
	})
	require.Zero(t, get().Failures)
	require.NotContains(t, p.log.String(), "failed worker")
}

// A worker that never runs ends `dev --once`, which has tasks for it.
func TestDevOnceGivesUpAWorkerThatDoesNotRun(t *testing.T) {
	t.Parallel()
	d := newDevFolder(t, map[string]string{"worker.py": "import no_such_sdk\n",
		"dev.yaml": "workers: [{command: [python3, worker.py]}]\n",
		"dag.yaml": `name: mail
jobs:
  - { name: greet, operator: handler, runtime: python, source: { kind: poll, every: 1h }, config: { handler: greet } }
publish:
  greetings: { from: { job: greet } }
`})
	r := dagctl(t, nil, "dev", d.dir, "--once", "--addr", "127.0.0.1:0", "--data", d.data, "--database-url", d.database)
	require.Equal(t, 1, r.code, r.out+r.err)
	require.Contains(t, r.err, "worker worker.py failed 4 times in a row: exit status 1; it printed last:\n")
	require.Contains(t, r.err, "ModuleNotFoundError: No module named 'no_such_sdk'")
}
