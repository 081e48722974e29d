//go:build soak

package kills_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// part is a process of the installation. What it is told to do stays the same when it starts again.
type part struct {
	name, url string // a server's address
	command   func() *exec.Cmd
	process   *exec.Cmd
	ended     chan struct{}
	said      *bytes.Buffer
	kills     int
	stops     int
}

func (p *part) start(t *testing.T) {
	t.Helper()
	p.process, p.said, p.ended = p.command(), new(bytes.Buffer), make(chan struct{})
	p.process.Stderr = p.said
	require.NoError(t, p.process.Start())
	process, ended := p.process, p.ended
	go func() {
		_ = process.Wait() // how it ended is in ProcessState
		close(ended)
	}()
}

// end kills the process.
func (p *part) end() {
	_ = p.process.Process.Kill() // it may have ended by itself
	<-p.ended
}

// fleet is an installation: three servers, two workers elsewhere and two in Python, on one database and one storage.
type fleet struct {
	servers []*part
	all     []*part
	token   string // an admin's
	landing string
}

const config = `
limits: { requests_per_second: 100000, burst: 100000 }
engines: { idle_seconds: 5 }
runtimes: { dispatcher: in-process, elsewhere: poll, python: poll }
tasks: { key_files: [%q] }
base_url: %s
`

func newFleet(t *testing.T) *fleet {
	t.Helper()
	database, files := testdb.URL(t), t.TempDir()
	f := &fleet{landing: t.TempDir()}
	secret := func(args ...string) string {
		args = append(args, "--database-url", database)
		return strings.TrimSpace(processtest.Must(t, files, args...))
	}
	token := secret("admin", "bootstrap", "--org", "acme")
	f.token = token
	worker := secret("admin", "create-worker-token", "fleet", "--org", "acme", "--runtime", "elsewhere",
		"--runtime", "python")

	addresses := make([]string, 3)
	for i := range addresses {
		addresses[i] = processtest.FreeAddress(t)
	}
	key, settings := filepath.Join(files, "task.pem"), filepath.Join(files, "config.yaml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, config, key, "http://"+addresses[0]), 0o600))
	_, err := authz.EnsureTaskKey(key)
	require.NoError(t, err)
	for i, address := range addresses {
		f.add(t, &part{name: fmt.Sprint("server ", i), url: "http://" + address, command: func() *exec.Cmd {
			return processtest.Command(t, files, nil, "serve", "--database-url", database, "--listen", address,
				"--config", settings, "--storage-root", filepath.Join(files, "storage"),
				"--file-root", "acme="+f.landing)
		}})
	}
	f.servers = f.all[:len(addresses):len(addresses)]
	f.ready(t)

	for i, address := range addresses[:2] {
		env := []string{"DAGCTL_TOKEN=" + worker, "DAGCTL_URL=http://" + address}
		f.add(t, &part{name: fmt.Sprint("worker ", i), command: func() *exec.Cmd {
			return processtest.Command(t, files, env, "worker", "--runtime", "elsewhere")
		}})
		f.add(t, &part{name: fmt.Sprint("python ", i), command: func() *exec.Cmd { return python(t, env) }})
	}
	return f
}

// python is a worker with the handler of the ledger.
func python(t *testing.T, env []string) *exec.Cmd {
	t.Helper()
	sdk, err := filepath.Abs("../../sdk/python")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "python3", filepath.Join("testdata", "score.py"))
	cmd.Env = append(processtest.Environment(t), append(env, "PYTHONPATH="+sdk)...)
	return cmd
}

func (f *fleet) add(t *testing.T, p *part) {
	t.Helper()
	p.start(t)
	f.all = append(f.all, p)
	t.Cleanup(p.end)
}

// ready waits until all servers are.
func (f *fleet) ready(t *testing.T) {
	t.Helper()
	for _, s := range f.servers {
		processtest.Within(t, 5*time.Minute, s.name+" is ready", func() bool {
			return get(t, s.url+"/readyz", "", nil) == nil
		})
	}
}

// disturb kills a part and starts it again, or stops it for a while.
func (f *fleet) disturb(t *testing.T, random *rand.Rand) {
	t.Helper()
	p := f.all[random.IntN(len(f.all))]
	select {
	case <-p.ended: // a worker that nobody answered for long, or a server without its database
		t.Logf("%s has ended: %s", p.name, tail(p.said))
		p.start(t)
		return
	default:
	}
	if random.IntN(4) > 0 {
		p.end()
		p.start(t)
		p.kills++
		return
	}

	process := p.process.Process
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	p.stops++
	time.AfterFunc(time.Duration(1+random.IntN(14))*time.Second, func() { _ = process.Signal(syscall.SIGCONT) })
}

// some returns a server.
func (f *fleet) some(random *rand.Rand) string { return f.servers[random.IntN(len(f.servers))].url }

// run runs a command as an admin.
func (f *fleet) run(t *testing.T, url string, args ...string) processtest.Result {
	t.Helper()
	return processtest.RunWith(t, t.TempDir(), []string{"DAGCTL_URL=" + url, "DAGCTL_TOKEN=" + f.token}, args...)
}

// tail returns the end of what a process said.
func tail(said *bytes.Buffer) string {
	text := said.String()
	return text[max(0, len(text)-300):]
}
