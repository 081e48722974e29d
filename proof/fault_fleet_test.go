package proof_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/pgdev"
)

// postgres is a PostgreSQL of the test's own that is killed and comes back. Servers reach it through a proxy that
// misbehaves, the test through one that does not.
type postgres struct {
	t             *testing.T
	parent        string   // of the data folders
	folders       []string // the data folders; those of servers that were lost, too
	dir           string   // data folder of the server
	faulty, plain *proxy

	mu     sync.Mutex
	server *pgdev.Server
	upAt   time.Time // zero while it is down

	// A standby that has every commit before its caller hears of it; nil: there is none.
	standby    *pgdev.Server
	standbyDir string
}

func startPostgres(t *testing.T) *postgres {
	t.Helper()
	p := &postgres{t: t, parent: t.TempDir(), faulty: startProxy(t), plain: startProxy(t)}
	p.dir = p.folder()
	p.start()
	t.Cleanup(func() {
		require.NoError(t, p.server.Stop(context.Background()))
		for _, dir := range p.folders {
			require.NoError(t, pgdev.Remove(dir))
		}
	})
	return p
}

// folder returns a data folder for one more server.
func (p *postgres) folder() string {
	p.t.Helper()
	dir, err := os.MkdirTemp(p.parent, "server")
	require.NoError(p.t, err)
	p.folders = append(p.folders, dir)
	return dir
}

// start starts it with the data that it left.
func (p *postgres) start() {
	p.t.Helper()
	p.lead(p.run(p.dir, nil))
}

// run starts a server on a data folder. What a killed process has written is in the machine's memory, so a commit must
// wait for the write, but not for the disk.
func (p *postgres) run(dir string, settings map[string]string) (server *pgdev.Server) {
	p.t.Helper()
	all := map[string]string{"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off",
		"log_min_messages": "fatal", "wal_level": "replica", "max_wal_senders": "4"}
	maps.Copy(all, settings)
	// A new one cannot start before the last process has noticed that the first is gone.
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		var err error
		server, err = pgdev.Start(context.Background(), pgdev.Config{DataDir: dir, Settings: all})
		require.NoError(c, err)
	}, time.Minute, 100*time.Millisecond)
	return server
}

// lead lets everybody talk to a server.
func (p *postgres) lead(server *pgdev.Server) {
	p.t.Helper()
	parsed, err := url.Parse(server.LoopbackURL())
	require.NoError(p.t, err)
	p.faulty.upstream.Store(&parsed.Host)
	p.plain.upstream.Store(&parsed.Host)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server, p.upAt = server, time.Now()
}

// through returns the database's address behind a proxy.
func (p *postgres) through(proxy *proxy) string {
	parsed, err := url.Parse(p.server.LoopbackURL())
	require.NoError(p.t, err)
	parsed.Host = proxy.address()
	return parsed.String()
}

func (p *postgres) since() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upAt
}

func (p *postgres) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upAt = time.Time{}
}

// kill kills PostgreSQL's first process and lets it recover.
func (p *postgres) kill() {
	p.t.Helper()
	p.end()
	p.start()
}

// end kills PostgreSQL's first process.
func (p *postgres) end() {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "cluster", "postmaster.pid"))
	require.NoError(p.t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(p.t, err)
	p.down()
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
	<-p.server.Done()
	require.NoError(p.t, p.server.Stop(context.Background()))
}

// crash kills a process that serves a connection: PostgreSQL ends all of them and recovers by itself.
func (p *postgres) crash(ctx context.Context) {
	p.t.Helper()
	conn, err := pgx.Connect(ctx, p.server.LoopbackURL())
	require.NoError(p.t, err)

	var pid int
	err = conn.QueryRow(ctx,
		`SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY random() LIMIT 1`).Scan(&pid)
	require.NoError(p.t, err)

	p.down()
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
	_, err = conn.Exec(ctx, `SELECT pg_sleep(60)`)
	require.Error(p.t, err, "the crash ends every connection")

	_ = conn.Close(ctx)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		conn, err := pgx.Connect(ctx, p.server.LoopbackURL())
		require.NoError(c, err)
		require.NoError(c, conn.Close(ctx))
	}, time.Minute, 20*time.Millisecond)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.upAt = time.Now()
}

// member is a server or a worker in a process of its own. It is restarted whenever it ends, as by a service manager.
type member struct {
	address string
	ready   string // path that answers 200 once the member works; empty: it works from its start
	args    []string
	env     []string
	log     *os.File

	mu      sync.Mutex
	cmd     *exec.Cmd
	killed  bool // by the test
	stopped bool // by SIGSTOP
	readyAt time.Time
	resumed time.Time
	deaths  int // not caused by the test
	last    string
}

// fleet is a number of servers on one database, or of workers.
type fleet struct {
	t       *testing.T
	members []*member
	stop    func()
}

// servers returns the members of a fleet of servers.
func servers(t *testing.T, n int, args ...string) (members []*member) {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	for range n {
		address := processtest.FreeAddress(t)
		members = append(members, &member{address: address, ready: "/readyz",
			args: append([]string{path, "serve", "--listen", address}, args...)})
	}
	return members
}

func startFleet(t *testing.T, members []*member) *fleet {
	t.Helper()
	f := &fleet{t: t, members: members}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	for i, m := range members {
		var err error
		m.log, err = os.Create(filepath.Join(t.TempDir(), fmt.Sprintf("process%d.log", i)))
		require.NoError(t, err)
		all.Go(func() { m.keep(ctx) })
	}

	f.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
		for _, m := range f.members {
			if t.Failed() {
				t.Logf("the end of what %s %s logged:\n%s", strings.Join(m.args[:min(len(m.args), 4)], " "), m.address,
					m.tail(4000))
			}
			_ = m.log.Close()
		}
	})

	t.Cleanup(f.stop)
	return f
}

// keep runs the process until ctx ends.
func (m *member) keep(ctx context.Context) {
	for ctx.Err() == nil {
		cmd := exec.Command(m.args[0], m.args[1:]...)
		cmd.Stdout, cmd.Stderr = m.log, m.log
		cmd.Env = append(append(os.Environ(), "HOME="+os.TempDir(), "DAGCTL_LOG_FORMAT=text"), m.env...)
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(m.log, "start:", err)
			return
		}

		m.mu.Lock()
		m.cmd, m.killed, m.stopped = cmd, false, false
		m.mu.Unlock()
		ended, done := context.WithCancel(ctx)
		var others sync.WaitGroup
		others.Go(func() { m.awaitReady(ended) })
		others.Go(func() {
			<-ended.Done()
			if ctx.Err() != nil {
				_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			}
		})

		_ = cmd.Wait() // the code below looks at how it ended
		done()
		others.Wait()
		m.mu.Lock()
		if !m.killed && ctx.Err() == nil {
			m.deaths++
			m.last = fmt.Sprintf("%v: %s", cmd.ProcessState, m.tail(400))
		}

		m.readyAt = time.Time{}
		m.mu.Unlock()
	}
}

func (m *member) tail(most int) []byte {
	text, _ := os.ReadFile(m.log.Name()) // a missing log is no failure
	return text[max(0, len(text)-most):]
}

func (m *member) awaitReady(ctx context.Context) {
	if m.ready == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.readyAt = time.Now()
		return
	}

	for ctx.Err() == nil {
		answer, err := http.Get("http://" + m.address + m.ready)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				m.mu.Lock()
				m.readyAt = time.Now()
				m.mu.Unlock()
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// since returns when the member began to work; zero: it does not work.
func (m *member) since() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return time.Time{}
	}
	return m.readyAt
}

func (m *member) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.killed, m.readyAt = true, time.Time{}
	_ = m.cmd.Process.Kill() // it may have ended
}

// halt stops the process with SIGSTOP; resume lets it go on, unaware of the time lost.
func (m *member) halt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	_ = m.cmd.Process.Signal(syscall.SIGSTOP)
}

func (m *member) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped, m.readyAt, m.resumed = false, time.Now(), time.Now()
	_ = m.cmd.Process.Signal(syscall.SIGCONT)
}

func (m *member) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cmd.Process.Pid
}

// working returns since when some server has worked without a break and without a stopped one beside it, which may hold
// locks that others wait for. It also reports whether a server is stopped now.
func (f *fleet) working() (since time.Time, stopped bool) {
	var resumed time.Time
	for _, m := range f.members {
		if s := m.since(); !s.IsZero() && (since.IsZero() || s.Before(since)) {
			since = s
		}
		m.mu.Lock()
		stopped = stopped || m.stopped
		if m.resumed.After(resumed) {
			resumed = m.resumed
		}
		m.mu.Unlock()
	}

	if !since.IsZero() && resumed.After(since) {
		since = resumed
	}
	return since, stopped
}
