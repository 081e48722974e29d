package python_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/worker/protocol"
)

func TestMain(m *testing.M) { os.Exit(processtest.Main(m)) }

// world is a server in a process of its own, with a database of its own, and tokens for people and for workers.
type world struct {
	url    string
	binary string
	env    []string // of commands
	admin  string
	token  string // worker's
	files  string // folder that file sources may read
}

// newWorld starts a server. more are lines of its config, such as further runtimes.
func newWorld(t *testing.T, runtimes ...string) *world {
	t.Helper()
	w := &world{env: processtest.Environment(t), files: t.TempDir()}
	path, _, _ := strings.Cut(strings.TrimPrefix(w.env[0], "PATH="), string(os.PathListSeparator))
	w.binary = filepath.Join(path, "dagctl")
	database, address := testdb.URL(t), processtest.FreeAddress(t)
	w.url = "http://" + address
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`
database_url: %q
listen: %s
base_url: %s
storage: { root: %q }
tasks: { key_files: [%q] }
file_roots: { acme: [%q] }
limits: { requests_per_second: 10000, burst: 10000 }
log: { format: text }
runtimes:
  dispatcher: in-process
  python: poll
  %s
`, database, address, w.url, t.TempDir(), taskKey(t), w.files, strings.Join(runtimes, "\n  "))
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))

	server := w.command(t, "serve", "--config", config)
	server.Env = append(server.Env, "DAGCTL_SECRETS_KEY="+authz.NewVaultKey(), "AWS_ACCESS_KEY_ID=AKIATEST",
		"AWS_SECRET_ACCESS_KEY=secret")
	start(t, server).until(t, func() bool {
		answer, err := http.Get(w.url + "/readyz")
		if err != nil {
			return false
		}
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})

	var first struct{ Secret string }
	w.decode(t, &first, "admin", "bootstrap", "--org", "acme", "--database-url", database)
	w.admin = first.Secret
	w.env = append(w.env, "DAGCTL_URL="+w.url, "DAGCTL_TOKEN="+w.admin)
	var made authz.CreatedToken
	w.post(t, "/v1/tokens", authz.CreateTokenRequest{Name: "workers", Kind: authz.KindWorker,
		Runtimes: []string{"python", "queue", "lambda"}}, &made)
	w.token = made.Secret
	return w
}

func taskKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "task.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), 0o600))
	return file
}

func (w *world) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(w.binary, args...)
	cmd.Env = append([]string{}, w.env...)
	return cmd
}

// must runs a command that has to succeed, and returns what it printed.
func (w *world) must(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := w.command(t, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "dagctl %s\n%s%s", strings.Join(args, " "), &out, &errs)
	return out.String()
}

func (w *world) decode(t *testing.T, into any, args ...string) {
	t.Helper()
	text := w.must(t, append(args, "--output", "json")...)
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}

func (w *world) post(t *testing.T, path string, body, into any) {
	t.Helper()
	w.call(t, w.admin, path, body, into)
}

// asWorker makes a call with a worker's token.
func (w *world) asWorker(t *testing.T, path string, body any) (answer map[string]any) {
	t.Helper()
	w.call(t, w.token, path, body, &answer)
	return answer
}

func (w *world) call(t *testing.T, token, path string, body, into any) {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, bytes.NewReader(text))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(protocol.VersionHeader, "1")
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()

	said, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Less(t, answer.StatusCode, 300, "%s", said)
	require.NoError(t, json.Unmarshal(said, into), "%s", said)
}

// serve deploys a DAG and waits until it serves.
func (w *world) serve(t *testing.T, document string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(document), 0o600))
	w.must(t, "deploy", file)
}

// run enqueues a task of a manual job.
func (w *world) run(t *testing.T, job, payload string) string {
	t.Helper()
	var made []dispatcher.Enqueued
	w.decode(t, &made, "run", job, "--payload", payload)
	require.Len(t, made, 1)
	return made[0].ID.String()
}

func (w *world) task(t *testing.T, id string) views.TaskDetail {
	t.Helper()
	var task views.TaskDetail
	w.decode(t, &task, "tasks", "get", id)
	return task
}

// reach waits until a task is as it should be.
func (w *world) reach(t *testing.T, id, what string, is func(views.TaskDetail) bool) views.TaskDetail {
	t.Helper()
	var task views.TaskDetail
	defer func() {
		if t.Failed() {
			t.Logf("task %s is %s at attempt %d: %s %s", id, task.Status, task.Attempt, task.Reason, task.Error)
		}
	}()
	processtest.Eventually(t, what, func() bool {
		task = w.task(t, id)
		return is(task)
	})
	return task
}

// ended waits until a task has come to its end, and says that it is this one.
func (w *world) ended(t *testing.T, id, status string) views.TaskDetail {
	t.Helper()
	task := w.reach(t, id, "the task's end", func(task views.TaskDetail) bool {
		return task.Status == "Completed" || task.Status == "Canceled" || task.Status == "Failed" &&
			task.NextRetryAt == nil
	})
	require.Equal(t, status, task.Status, task.Error)
	return task
}

// worker starts a Python program as a worker: a file of testdata, or any other by its full name.
func (w *world) worker(t *testing.T, program string, env ...string) *process {
	t.Helper()
	return w.workerOf(t, "python3", program, env...)
}

// workerOf starts a worker with a Python of the test's choice.
func (w *world) workerOf(t *testing.T, python, program string, env ...string) *process {
	t.Helper()
	here, err := filepath.Abs(".")
	require.NoError(t, err)

	if !filepath.IsAbs(program) {
		program = filepath.Join(here, "testdata", program)
	}
	cmd := exec.Command(python, "-u", program)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1", "DAGCTL_URL="+w.url,
		"DAGCTL_TOKEN="+w.token)
	cmd.Env = append(cmd.Env, env...)
	p := start(t, cmd)
	t.Cleanup(func() {
		for _, secret := range []string{w.token, "eyJ"} { // what a JWT begins with
			require.NotContains(t, p.said(), secret, "a worker tells no token")
		}
	})
	return p
}

// python runs a program to its end, without any token, and returns what it printed.
func (w *world) python(t *testing.T, program, input string) string {
	t.Helper()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	var out, errs bytes.Buffer
	cmd := exec.Command("python3", "-c", program)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = t.TempDir(), strings.NewReader(input), &out, &errs
	cmd.Env = append(os.Environ(), "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1")
	require.NoError(t, cmd.Run(), "%s", &errs)
	return out.String()
}

// process is a program that runs, and what it has said so far.
type process struct {
	cmd   *exec.Cmd
	mu    sync.Mutex
	text  bytes.Buffer
	ended chan struct{}
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)

	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())

	go func() {
		defer close(p.ended)
		for lines := bufio.NewReader(out); ; {
			line, err := lines.ReadString('\n')
			p.mu.Lock()
			p.text.WriteString(line)
			p.mu.Unlock()
			if err != nil {
				break
			}
		}
		_ = cmd.Wait() // how it ended is in ProcessState
	}()

	t.Cleanup(func() {
		p.signal(t, syscall.SIGCONT)
		p.signal(t, syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-p.ended
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(cmd.Args[len(cmd.Args)-1]), p.said())
		}
	})
	return p
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Signal(s) // it may have ended since
	}
}

// says waits until the program has said a text.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	p.until(t, func() bool { return strings.Contains(p.said(), text) })
}

func (p *process) until(t *testing.T, ask func() bool) {
	t.Helper()
	processtest.Eventually(t, "what is waited for", func() bool {
		select {
		case <-p.ended:
			require.True(t, ask(), "the program has ended:\n%s", p.said())
			return true
		default:
			return ask()
		}
	})
}

// ends waits for the program's end and returns how it exited.
func (p *process) ends(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		require.Fail(t, "the program does not end", p.said())
	}
	return p.cmd.ProcessState.ExitCode()
}

func decoded(t *testing.T, text []byte) (value map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(text, &value), "%s", text)
	return value
}

func touch(file string) error { return os.WriteFile(file, nil, 0o600) }
