package examples_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
)

// crew is an example with servers and workers of its own, which a test may kill. Commands and workers talk to a front,
// which passes each request to a server that lives.
type crew struct {
	*fleet
	servers []*process
	admin   string                  // token
	live    atomic.Pointer[url.URL] // where the front passes requests to
	journal string                  // file where the workers say what they do
	config  string                  // of the servers, but for their addresses
}

// newCrew starts servers of an example whose workers serve the runtime.
func newCrew(t *testing.T, example, runtime string, servers int) *crew {
	t.Helper()
	c := &crew{fleet: &fleet{world: newWorld(t, example)}, journal: filepath.Join(t.TempDir(), "journal")}
	c.open(t, servers, fmt.Sprintf("runtimes: { dispatcher: in-process, %s: poll }", runtime))
	var made struct{ Secret string }
	c.decode(t, &made, "tokens", "create", "workers", "--kind", "worker", "--runtime", runtime)
	c.worker = made.Secret
	var deployed any
	c.decode(t, &deployed, "deploy", c.dir, "--yes")
	return c
}

// open starts servers, with more lines of their config and variables of their environment, and makes an admin's token.
func (c *crew) open(t *testing.T, servers int, config string, env ...string) {
	t.Helper()
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(c.live.Load()) },
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, _ error) { rw.WriteHeader(http.StatusBadGateway) },
	})
	t.Cleanup(front.Close)
	c.url = front.URL
	c.env = append(processtest.Environment(t), "DAGCTL_URL="+c.url, "DAGCTL_SECRETS_KEY="+authz.NewVaultKey())
	c.env = append(c.env, env...)

	key := filepath.Join(t.TempDir(), "task.pem")
	_, err := authz.EnsureTaskKey(key)
	require.NoError(t, err)
	c.config = fmt.Sprintf(`
database_url: %q
base_url: %s
storage: { root: %q }
tasks: { key_files: [%q] }
limits: { requests_per_second: 10000, burst: 10000, worker_requests_per_second: 20000, worker_burst: 20000 }
log: { format: text }
%s
`, c.dbURL, c.url, filepath.Join(c.data, "storage"), key, config)
	for range servers {
		c.serve(t) // each on the database as the one before has left it
	}

	var first struct{ Secret string }
	c.decode(t, &first, "admin", "bootstrap", "--org", "local", "--database-url", c.dbURL)
	c.admin = first.Secret
	c.env = append(c.env, "DAGCTL_TOKEN="+c.admin)
}

// serve starts one more server, to which the front passes requests from then on.
func (c *crew) serve(t *testing.T) *process {
	t.Helper()
	address := processtest.FreeAddress(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte(c.config+"listen: "+address+"\n"), 0o600))

	server := start(t, c.dagctl(t, "serve", "--config", config))
	server.url = &url.URL{Scheme: "http", Host: address}
	c.live.Store(server.url)
	processtest.Eventually(t, "a server is ready", func() bool {
		answer, err := http.Get(c.url + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
	c.servers = append(c.servers, server)
	return server
}

// process is one that a test may kill.
type process struct {
	*exec.Cmd
	url   *url.URL // of a server
	ended chan struct{}
}

// start starts a process in a group of its own. It stops with the test.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())

	p := &process{Cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT) // it may be stopped
		p.signal(syscall.SIGTERM)
		<-p.ended
		if t.Failed() {
			t.Logf("%s\n%s", cmd, &said)
		}
	})
	return p
}

// signal sends a signal to the process and to all that it has started.
func (p *process) signal(signal syscall.Signal) {
	_ = syscall.Kill(-p.Process.Pid, signal) // it may have ended by itself
}

// kill ends the process as the loss of its machine does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// work starts a worker: a program with arguments. env are settings of it, NAME=VALUE.
func (c *crew) work(t *testing.T, program []string, env ...string) *process {
	t.Helper()
	sdk, err := filepath.Abs("../sdk/python")
	require.NoError(t, err)
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(append(append([]string{}, c.env...), "DAGCTL_TOKEN="+c.worker, "PYTHONPATH="+sdk,
		"PYTHONDONTWRITEBYTECODE=1"), env...)
	return start(t, cmd)
}

// enqueue makes tasks of a job and returns their ids.
func (c *crew) enqueue(t *testing.T, job string, items []dispatcher.EnqueueItem) (made []dispatcher.Enqueued) {
	t.Helper()
	var lines bytes.Buffer
	for _, item := range items {
		require.NoError(t, json.NewEncoder(&lines).Encode(item))
	}
	file := filepath.Join(t.TempDir(), "batch.ndjson")
	require.NoError(t, os.WriteFile(file, lines.Bytes(), 0o600))
	c.decode(t, &made, "run", job, "--batch", file)
	require.Len(t, made, len(items))
	return made
}

// run makes one task, as `dagctl run` does, and returns its id.
func (c *crew) run(t *testing.T, args ...string) string {
	t.Helper()
	var made []dispatcher.Enqueued
	c.decode(t, &made, append([]string{"run"}, args...)...)
	require.Len(t, made, 1)
	return made[0].ID.String()
}

// must runs a command that must succeed, and returns what it said.
func (c *crew) must(t *testing.T, args ...string) string {
	t.Helper()
	said, err := c.dagctl(t, args...).CombinedOutput()
	require.NoError(t, err, "dagctl %s\n%s", strings.Join(args, " "), said)
	return string(said)
}

// refused runs a command that must fail, and returns what it said.
func (c *crew) refused(t *testing.T, args ...string) string {
	t.Helper()
	said, err := c.dagctl(t, args...).CombinedOutput()
	require.Error(t, err, string(said))
	return string(said)
}

// call posts a body with a token, decodes what a call that succeeded was answered, and returns the status.
func (c *crew) call(t *testing.T, token, path string, body, into any) (status int) {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+path, bytes.NewReader(text))
	require.NoError(t, err)
	request.Header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"},
		"X-Dagctl-Protocol": {"1"}}

	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	if answer.StatusCode < 300 {
		require.NoError(t, json.NewDecoder(answer.Body).Decode(into))
	}
	return answer.StatusCode
}

func (c *crew) task(t *testing.T, id string) (task views.TaskDetail) {
	t.Helper()
	c.decode(t, &task, "tasks", "get", id)
	return task
}

// becomes waits until a condition holds for a task, and returns it.
func (c *crew) becomes(t *testing.T, id, what string, is func(views.TaskDetail) bool) (task views.TaskDetail) {
	t.Helper()
	processtest.Eventually(t, "the task is "+what, func() bool {
		task = c.task(t, id)
		return is(task)
	})
	return task
}

// ended waits until a task is Completed, Canceled, or Failed for good.
func (c *crew) ended(t *testing.T, id string) views.TaskDetail {
	t.Helper()
	return c.becomes(t, id, "ended", func(task views.TaskDetail) bool {
		return task.Status == "Completed" || task.Status == "Canceled" ||
			task.Status == "Failed" && task.Waiting == "dead"
	})
}

// workers returns the processes that the servers know.
func (c *crew) workers(t *testing.T) (all []dispatcher.Worker) {
	t.Helper()
	c.decode(t, &all, "workers", "list")
	return all
}

// entry is a line of the workers' journal.
type entry struct {
	Task    string
	Attempt int
	Of      string // a type of task, or an entity
	Event   string // begin or end
	At      int64  // Unix nanoseconds
	PID     int
}

// entries reads the journal.
func (c *crew) entries(t *testing.T) (all []entry) {
	t.Helper()
	file, err := os.Open(c.journal)
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e entry
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		all = append(all, e)
	}
	return all
}

// completed counts the tasks that are.
func (c *crew) completed(t *testing.T) int {
	t.Helper()
	return c.count(t, `SELECT count(*) FROM tasks WHERE status = 'Completed'`)
}

// requireOnce requires that no task was completed twice, and that each that was completed has the trail of that.
func (c *crew) requireOnce(t *testing.T) {
	t.Helper()
	require.Zero(t, c.count(t, `SELECT count(*) FROM tasks t WHERE status = 'Completed' AND 1 <> (
		SELECT count(*) FROM task_events e WHERE e.task_id = t.id AND e.to_status = 'Completed')`))
	require.Zero(t, c.count(t, `SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM leases)
		+ (SELECT count(*) FROM waiting WHERE reason <> 'dead')`))
}

// built builds a program of the repository, and returns its path.
func built(t *testing.T, source string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	said, err := exec.Command("go", "build", "-ldflags=-w", "-o", program, source).CombinedOutput()
	require.NoError(t, err, string(said))
	return program
}

// payload returns a payload in JSON.
func payload(format string, args ...any) json.RawMessage {
	return json.RawMessage(strings.TrimSpace(fmt.Sprintf(format, args...)))
}
