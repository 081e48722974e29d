//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/internal/testdb"
)

// quietFor is how long the plans and tasks of another org may take while attacks run. Tests share their machine, so
// that it is generous; `make attacks` expects a second on an idle machine.
var quietFor = flag.Duration("attacks-quiet", 20*time.Second,
	"the longest that another org's plan may take, and half of what a task may take to start")

var allAttacks = flag.Bool("attacks-all", false, "send all statements as queries, too, and all files in all formats")

// arena is a real server, and workers, in processes of their own. Org acme attacks; umbrella goes on with its work.
type arena struct {
	url       string
	roots     string // that acme's sources may read
	secret    string // a file that nobody may read
	server    *process
	tokens    map[string]string // of an admin, by org
	canaries  []string          // what no answer may contain
	count     sync.Map          // attacks by class: *atomic.Int64
	mu        sync.Mutex
	quiet     map[string][]time.Duration // what umbrella's plans and tasks took
	quietOver chan struct{}
}

const quietDAG = `name: quiet
jobs:
  - { name: vault, operator: file_source, source: { kind: poll, every: 1h }, config: { path: vault.csv, format: csv } }
  - { name: kept, operator: sql, inputs: [{ from: { job: vault } }], config: { query: "SELECT secret FROM vault" } }
  - { name: note, operator: command, source: { kind: manual }, outputs: 0, config: { argv: [/bin/true] } }
publish:
  vault: { from: { job: kept } }
`

const preyDAG = `name: prey
jobs:
  - { name: landing, operator: file_source, source: { kind: poll, every: 1h }, config: { path: sales.csv,
	format: csv } }
publish:
  sales: { from: { job: landing } }
`

// newArena starts a server, which takes so many requests a second of each caller, and workers: one that has the
// machine's namespaces, if there are any, and one without.
func newArena(t *testing.T, requests int) *arena {
	t.Helper()
	a := &arena{roots: t.TempDir(), tokens: map[string]string{}, quiet: map[string][]time.Duration{},
		quietOver: make(chan struct{})}
	dir, vault := t.TempDir(), t.TempDir()
	canary := func() string {
		a.canaries = append(a.canaries, "canary"+strings.ToLower(rand.Text()))
		return a.canaries[len(a.canaries)-1]
	}
	a.secret = filepath.Join(dir, "secret.csv")
	key, _, err := newTaskKey(filepath.Join(dir, "task.pem"))
	require.NoError(t, err)
	vaultKey := authz.NewVaultKey()
	a.canaries = append(a.canaries, vaultKey, key, "root:x:0:0", "BEGIN PRIVATE KEY")
	require.NoError(t, os.WriteFile(a.secret, []byte("secret\n"+canary()+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(vault, "vault.csv"), []byte("secret\n"+canary()+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(a.roots, "sales.csv"),
		[]byte("name,n,day\none,1,2026-01-01\ntwo,2,2026-01-02\n"), 0o600))

	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `# %s
storage: { root: %s }
file_roots: { acme: [%s], umbrella: [%s] }
operators: { allow_command: [acme, umbrella], command_memory_mb: 128, command_output_mb: 64, memory_mb: 128,
	threads: 1 }
queries: { timeout_seconds: 2, memory_mb: 128, threads: 1 }
limits: { requests_per_second: %d, burst: %d, worker_requests_per_second: 10000, worker_burst: 10000 }
tasks: { key_files: [%s] }
runtimes: { dispatcher: in-process, spaces: poll, bare: poll }
log: { format: text }
`, canary(), t.TempDir(), a.roots, vault, requests, 4*requests, filepath.Join(dir, "task.pem")), 0o600))
	database, address := testdb.Empty(t), processtest.FreeAddress(t)
	a.canaries = append(a.canaries, database)
	a.url = "http://" + address
	a.server = startProcess(t, []string{"DAGCTL_SECRETS_KEY=" + vaultKey, "CANARY=" + canary()}, "serve", "--config",
		config, "--database-url", database, "--listen", address, "--migrate")

	env := map[string]string{"DAGCTL_URL": a.url, "DAGCTL_DATABASE_URL": database, "HOME": t.TempDir()}
	eventually(t, "the schema", func() (bool, error) {
		return strings.Contains(dagctl(t, env, "doctor").out, "needs a token"), nil
	})
	a.tokens["acme"] = strings.TrimSpace(must(t, env, "admin", "bootstrap", "--org", "acme"))
	a.tokens["umbrella"] = strings.TrimSpace(must(t, env, "admin", "bootstrap", "--org", "umbrella",
		"--another-org"))
	eventually(t, "ready", func() (bool, error) { return dagctl(t, a.env(t, "acme"), "doctor").code == 0, nil })
	for org, text := range map[string]string{"acme": preyDAG, "umbrella": quietDAG} {
		must(t, a.env(t, org), "deploy", writeDAG(t, t.TempDir(), "x", text))
	}
	a.startWorkers(t)
	return a
}

// newTaskKey makes a key of tasks, and returns a line of it.
func newTaskKey(path string) (line string, key authz.TaskKey, err error) {
	if key, err = authz.EnsureTaskKey(path); err != nil {
		return "", key, err
	}
	text, err := os.ReadFile(path)
	return strings.Split(string(text), "\n")[1], key, err
}

// startWorkers starts a worker for users' code with the walls that the machine gives, and one that has no namespaces.
func (a *arena) startWorkers(t *testing.T) {
	t.Helper()
	for _, runtime := range []string{"spaces", "bare"} {
		token := decode[authz.CreatedToken](t, a.env(t, "acme"), "tokens", "create", runtime, "--kind", "worker",
			"--runtime", runtime)
		path, err := binary()
		require.NoError(t, err)
		cmd := exec.Command(path, "worker", "--url", a.url, "--runtime", runtime, "--scratch-dir", t.TempDir())
		if runtime == "bare" {
			withoutNamespaces(t, cmd)
		}
		log := new(output)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = append(os.Environ(), "DAGCTL_TOKEN="+token.Secret)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Log(log.String())
			}
		})
	}
}

// withoutNamespaces lets a program and all that it starts make no namespaces of users, as in an ordinary container.
// Where the machine gives none, there is nothing to do.
func withoutNamespaces(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if sandbox.Namespaces() != nil {
		return
	}
	cmd.Args = append([]string{"/bin/sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$0" "$@"`},
		cmd.Args...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
}

// env returns the environment for command lines of an org's admin.
func (a *arena) env(t *testing.T, org string) map[string]string {
	return map[string]string{"DAGCTL_URL": a.url, "DAGCTL_TOKEN": a.tokens[org], "HOME": t.TempDir()}
}

// send sends a request of acme. Whatever it asks for, the answer is not the server's failure, says what is wrong, and
// contains nothing of others.
func (a *arena) send(t *testing.T, class, name, method, path, contentType string, body io.Reader) (int, string) {
	t.Helper()
	a.add(class, 1)
	request, err := http.NewRequestWithContext(t.Context(), method, a.url+path, body)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+a.tokens["acme"])
	request.Header.Set("Content-Type", contentType)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err, "%s: %.300s", class, name)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	text := string(answer)
	require.Less(t, response.StatusCode, 500, "%s: %.300s\n%.2000s", class, name, text)
	a.clean(t, class+": "+name, text)
	if response.StatusCode >= 400 {
		var problem struct{ Detail string }
		require.NoError(t, json.Unmarshal(answer, &problem), "%s: %.300s\n%.2000s", class, name, text)
		require.NotEmpty(t, problem.Detail, "%s: %.300s", class, name)
	}
	return response.StatusCode, text
}

// add counts attacks of a class.
func (a *arena) add(class string, n int) {
	counter, _ := a.count.LoadOrStore(class, new(atomic.Int64))
	counter.(*atomic.Int64).Add(int64(n))
}

// post is send with a value as JSON.
func (a *arena) post(t *testing.T, class, name, path string, value any) (int, string) {
	t.Helper()
	body, err := json.Marshal(value)
	require.NoError(t, err)
	return a.send(t, class, name, http.MethodPost, path, "application/json", bytes.NewReader(body))
}

// clean requires that a text contains nothing of others or of the machine.
func (a *arena) clean(t *testing.T, what, text string) {
	t.Helper()
	for _, canary := range a.canaries {
		require.NotContains(t, text, canary, "%.300s", what)
	}
}

// watchQuiet plans and runs in umbrella until the attacks are over. It keeps how long that took.
func (a *arena) watchQuiet(t *testing.T) (over func()) {
	ctx, done := t.Context(), make(chan error, 1)
	client := cli.NewClient(cli.Target{Name: "umbrella", URL: a.url, Token: a.tokens["umbrella"]})
	took := func(what string, ask func() error) error {
		began := time.Now()
		err := ask()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.quiet[what] = append(a.quiet[what], time.Since(began))
		return err
	}
	look := func(i int) error {
		changed := strings.Replace(quietDAG, "SELECT secret", fmt.Sprintf("SELECT %d AS n, secret", i), 1)
		if err := took("plan", func() error {
			return client.Post(ctx, "/v1/dags/quiet/plan", map[string]string{"yaml": changed}, nil)
		}); err != nil {
			return err
		}
		return took("task", func() error {
			var made struct{ Items []struct{ ID string } }
			err := client.Post(ctx, "/v1/jobs/quiet/note/tasks", map[string]any{"items": []any{
				map[string]any{"payload": map[string]any{}}}}, &made)
			if err != nil {
				return err
			}
			return startedSoon(t, client, made.Items[0].ID)
		})
	}
	go func() {
		for i := 0; ; i++ {
			err := look(i)
			select {
			case <-a.quietOver:
				done <- err
				return
			default:
			}
			if err == nil {
				err = cli.Sleep(ctx, 50*time.Millisecond)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	return func() {
		close(a.quietOver)
		require.NoError(t, <-done, "umbrella's plans and tasks")
		for what, times := range a.quiet {
			slices.Sort(times)
			t.Logf("umbrella's %4d %ss took %s in the median, %s at most", len(times), what,
				times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
			bound := *quietFor
			if what == "task" {
				bound *= 2
			}
			require.Less(t, times[len(times)-1], bound, what)
		}
	}
}

// startedSoon waits until a task was claimed.
func startedSoon(t *testing.T, client *cli.Client, id string) error {
	for {
		var task struct{ Status string }
		if err := client.Get(t.Context(), "/v1/tasks/"+id, nil, &task); err != nil {
			return err
		}
		switch task.Status {
		case "Running", "Completed":
			return nil
		case "Failed":
			return fault.New(fault.Internal, "task %s of umbrella is %s", id, task.Status)
		}
		if err := cli.Sleep(t.Context(), 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// alive requires that the server is the one that was started, and that it never panicked.
func (a *arena) alive(t *testing.T) {
	t.Helper()
	must(t, a.env(t, "umbrella"), "doctor")
	require.Nil(t, a.server.cmd.ProcessState)
	log := a.server.log.String()
	require.NotRegexp(t, regexp.MustCompile(`(?i)panic|goroutine \d+ \[`), log)
	rows := must(t, a.env(t, "umbrella"), "query", "SELECT count(*) AS n FROM vault", "-o", "csv")
	require.Equal(t, "n\n1\n", rows)
}

func (a *arena) client(org string) *cli.Client {
	return cli.NewClient(cli.Target{Name: org, URL: a.url, Token: a.tokens[org]})
}

// each calls a function for each of a list, so many at once.
func each[T any](atOnce int, list []T, f func(T)) {
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, one := range list {
		all.Go(func() error { f(one); return nil })
	}
	_ = all.Wait()
}

// yamlText returns a text as YAML may have it anywhere.
func yamlText(text string) string { return jsonText(text) }

func jsonText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestAttacks lets one org attack a real server in every way that its users have, while another org works on.
func TestAttacks(t *testing.T) {
	a := newArena(t, 10_000)
	over := a.watchQuiet(t)
	t.Run("SQL", a.attackBySQL)
	t.Run("bombs", a.attackByBombs)
	t.Run("config", a.attackByConfig)
	t.Run("files", a.attackByFiles)
	t.Run("programs", a.attackByPrograms)
	over()
	a.alive(t)
	total := int64(0)
	a.count.Range(func(class, n any) bool {
		t.Logf("%5d attacks: %s", n.(*atomic.Int64).Load(), class)
		total += n.(*atomic.Int64).Load()
		return true
	})
	if only := flag.Lookup("test.run").Value.String(); !strings.Contains(only, "/") {
		require.Greater(t, total, int64(800))
	}
}
