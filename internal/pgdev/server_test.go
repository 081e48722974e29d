package pgdev

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// asChild makes this test binary a process that starts a server and is then killed by the test that started it.
const asChild = "DAGCTL_PGDEV_TEST_CHILD"

func TestMain(m *testing.M) {
	if dataDir, ok := os.LookupEnv(asChild); ok {
		child(dataDir)
	}
	os.Exit(m.Run())
}

func child(dataDir string) {
	s, err := Start(context.Background(), Config{DataDir: dataDir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(s.URL(), s.folder.dir)
	select {} // until killed
}

func TestDataOutlivesACleanStop(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	exec1(t, s.URL(), "CREATE TABLE kept (n int)")
	exec1(t, s.LoopbackURL(), "INSERT INTO kept VALUES (7)")
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()), "stopping twice is the same as once")
	<-s.Done()
	require.NoDirExists(t, s.sockets)
	require.NoFileExists(t, filepath.Join(s.folder.cluster, "postmaster.pid"), "a clean stop removes it")

	s = start(t, dir)
	require.Equal(t, 7, queryInt(t, s.URL(), "SELECT n FROM kept"))
}

func TestOnlyThePasswordsOwnerConnects(t *testing.T) {
	t.Parallel()
	s := start(t, filepath.Join(t.TempDir(), "data"))
	for _, open := range []string{s.URL(), s.LoopbackURL()} {
		u, err := url.Parse(open)
		require.NoError(t, err)
		for _, user := range []*url.Userinfo{url.User(superuser), url.UserPassword(superuser, "guess"),
			url.UserPassword("postgres", "")} {
			u.User = user
			_, err = pgx.Connect(t.Context(), u.String())
			require.ErrorContains(t, err, "28P01", "%s must be refused", user.Username())
		}
	}

	for path, mode := range map[string]os.FileMode{
		s.sockets:                     0o700 | os.ModeDir,
		s.folder.cluster:              0o700 | os.ModeDir,
		s.folder.path("lock"):         0o600,
		s.folder.path("password"):     0o600,
		s.folder.path("postgres.log"): 0o600,
	} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode.String(), info.Mode().String(), path)
	}
	require.Equal(t, "127.0.0.1", queryText(t, s.URL(), "SHOW listen_addresses"))
	require.Equal(t, "on", queryText(t, s.URL(), "SHOW fsync"))
}

func TestOneProcessPerDataFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	_, err := Start(t.Context(), Config{DataDir: dir})
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.ErrorContains(t, err, fmt.Sprintf("in use by process %d", os.Getpid()))
	require.Equal(t, fault.Conflict, fault.KindOf(Remove(dir)))
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, Remove(dir))
	require.NoDirExists(t, dir)
	require.NoDirExists(t, s.folder.cluster)
	require.NoError(t, Remove(dir), "nothing to remove is fine")
}

func TestRecoversFromTheServersDeath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	exec1(t, s.URL(), "CREATE TABLE kept AS SELECT 7 AS n")
	require.NoError(t, s.cmd.Process.Kill())
	<-s.Done()
	require.NoError(t, s.Stop(t.Context()))
	require.FileExists(t, filepath.Join(s.folder.cluster, "postmaster.pid"), "a killed server leaves it")

	s = start(t, dir)
	require.Equal(t, 7, queryInt(t, s.URL(), "SELECT n FROM kept"))
}

func TestStalePidFileOfAnUnrelatedProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	require.NoError(t, s.Stop(t.Context()))
	// PostgreSQL accepts a pid file if its process is alive and belongs to the same user.
	stranger := s.account.command(exec.Command("/bin/cat"), "/")
	stdin, err := stranger.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, stranger.Start())
	pidFile := filepath.Join(s.folder.cluster, "postmaster.pid")
	require.NoError(t, os.WriteFile(pidFile, fmt.Appendf(nil, "%d\n%s\n", stranger.Process.Pid, s.folder.cluster),
		0o600))
	require.NoError(t, s.account.own(pidFile))

	start(t, dir)
	require.NoError(t, stdin.Close())
	require.NoError(t, stranger.Wait(), "the stranger was left alone and ended by itself")
}

func TestKilledParentLeavesNoServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	cmd, url, _ := startChild(t, dir)
	exec1(t, url, "CREATE TABLE kept AS SELECT 7 AS n")
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()

	s := start(t, dir) // at once, while the guard still stops the old server
	require.Equal(t, 7, queryInt(t, s.URL(), "SELECT n FROM kept"))
}

func TestThrowawayServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	cmd, url, dir := startChild(t, "")
	exec1(t, url, "SELECT 1")
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}, time.Minute, 10*time.Millisecond, "the guard removes the data")
	_, err := pgx.Connect(t.Context(), url)
	require.Error(t, err)
}

func TestThrowawayServer(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Config{Settings: map[string]string{"work_mem": "9MB"}})
	require.NoError(t, err)
	require.Equal(t, "off", queryText(t, s.URL(), "SHOW fsync"))
	require.Equal(t, "9MB", queryText(t, s.URL(), "SHOW work_mem"))
	require.Empty(t, queryText(t, s.URL(), "SHOW listen_addresses"))
	require.Empty(t, s.LoopbackURL())
	require.NoError(t, s.Stop(t.Context()))
	require.NoDirExists(t, s.folder.dir)
	require.NoDirExists(t, s.sockets)
}

func TestInterruptedInitIsRepeated(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	acct, err := unprivileged()
	require.NoError(t, err)
	f, err := openFolder(dir, acct)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(f.cluster+".new", "base"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(f.cluster+".new", "PG_VERSION"), []byte("15\n"), 0o600))
	require.NoError(t, f.close())
	require.Equal(t, 1, queryInt(t, start(t, dir).URL(), "SELECT 1"))
}

func TestDeletedDataFolderStartsEmpty(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	exec1(t, s.URL(), "CREATE TABLE gone (n int)")
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, os.RemoveAll(dir))
	s = start(t, dir)
	require.Equal(t, 0, queryInt(t, s.URL(), "SELECT count(*) FROM pg_class WHERE relname = 'gone'"))
}

func TestALostPasswordKeepsTheCluster(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, dir)
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, os.Remove(s.folder.path("password")))
	_, err := Start(t.Context(), Config{DataDir: dir})
	require.ErrorContains(t, err, "password")
	require.DirExists(t, filepath.Join(s.folder.cluster, "base"))
}

func TestStartReportsTheServersError(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{Settings: map[string]string{"shared_buffers": "lots"}})
	require.ErrorContains(t, err, `invalid value for parameter "shared_buffers"`)
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		installed []binaries
		major     int
		want      string
		err       string
	}{
		"the newest":            {[]binaries{{"a", 15}, {"b", 17}, {"c", 16}}, 0, "b", ""},
		"the PATH's, of equals": {[]binaries{{"path", 16}, {"place", 16}}, 0, "path", ""},
		"the cluster's own":     {[]binaries{{"a", 15}, {"b", 17}}, 15, "a", ""},
		"the cluster's is gone": {[]binaries{{"b", 17}}, 15, "", "made by PostgreSQL 15, which is not installed"},
		"too old": {[]binaries{{"a", 13}}, 0, "",
			"PostgreSQL 13 is installed, but 15 or newer is needed"},
		"nothing": {nil, 0, "", "PostgreSQL 15 or newer is not installed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := choose(c.installed, c.major)
			require.Equal(t, c.want, got.dir)

			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.err)
			var f *fault.Error
			require.ErrorAs(t, err, &f)
			require.Contains(t, f.Hint, "install")
		})
	}
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{DataDir: dir})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Stop(context.Background()))
		if s.folder.cluster != s.folder.path("cluster") {
			require.NoError(t, os.RemoveAll(s.folder.cluster)) // beyond t.TempDir's reach
		}
	})
	return s
}

// startChild runs this binary as a process of its own with a server, and returns the server's URL and data folder.
func startChild(t *testing.T, dataDir string) (*exec.Cmd, string, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asChild+"="+dataDir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
	require.True(t, strings.HasPrefix(url, "postgres://"), line)
	return cmd, url, dir
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	_, err := connect(t, url).Exec(t.Context(), sql)
	require.NoError(t, err)
}

func queryInt(t *testing.T, url, sql string) (n int) {
	t.Helper()
	require.NoError(t, connect(t, url).QueryRow(t.Context(), sql).Scan(&n))
	return n
}

func queryText(t *testing.T, url, sql string) (text string) {
	t.Helper()
	require.NoError(t, connect(t, url).QueryRow(t.Context(), sql).Scan(&text))
	return text
}
