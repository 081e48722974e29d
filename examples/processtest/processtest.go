// Package processtest runs dagctl as people do: the real binary, in processes of its own.
package processtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/freeport"
	"github.com/dagctl/dagctl/internal/pgdev"
)

// binary is the path of the dagctl that Main has built.
var binary string

// Main builds dagctl, runs a package's tests and removes dagctl again. It builds without the race detector, even for
// tests that use it: these tests are about processes, and the packages' own tests look for races. In their environment,
// DAGCTL_CLOCK_SKEW sets a process's clock wrong.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "dagctl-binary-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "dagctl")
	if err := build(binary); err != nil {
		fmt.Fprintf(os.Stderr, "build dagctl: %v", err)
		return 1
	}
	return m.Run()
}

// build builds dagctl. Of packages that are tested at the same moment, the second waits for what the first leaves in
// Go's cache, where both would compile everything.
func build(binary string) error {
	lock, err := os.Create(filepath.Join(os.TempDir(), fmt.Sprintf("dagctl-build-%d.lock", os.Getuid())))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}

	cmd := exec.Command("go", "build", "-ldflags=-w", "-tags=clockskew", "-o", binary,
		"github.com/dagctl/dagctl/cmd/dagctl")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
}

// Result is what a command printed and how it ended.
type Result struct {
	Out, Err string
	Code     int
	CPU      time.Duration // user and system time of the process
}

// Run runs a command to its end, without the settings in the environment of the tests.
func Run(t testing.TB, dir string, args ...string) Result {
	t.Helper()
	return RunWith(t, dir, nil, args...)
}

// RunWith is like Run, with more environment variables.
func RunWith(t testing.TB, dir string, env []string, args ...string) Result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := Command(t, dir, env, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		require.IsType(t, new(exec.ExitError), err)
	}
	state := cmd.ProcessState
	return Result{out.String(), errs.String(), state.ExitCode(), state.UserTime() + state.SystemTime()}
}

// Must runs a command that has to succeed, and returns what it printed.
func Must(t testing.TB, dir string, args ...string) string {
	t.Helper()
	r := Run(t, dir, args...)
	require.Zero(t, r.Code, "dagctl %s\n%s%s", strings.Join(args, " "), r.Out, r.Err)
	return r.Out
}

// Decode runs a command that has to succeed and decodes its JSON output.
func Decode[T any](t testing.TB, dir string, args ...string) T {
	t.Helper()
	var v T
	text := Must(t, dir, append(args, "--output", "json")...)
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// Command returns a dagctl command in a folder, with more environment variables, for whoever starts it more than once.
func Command(t testing.TB, dir string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := command(t, dir, args...)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// command returns a dagctl command in a folder.
func command(t testing.TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	require.NotEmpty(t, binary, "the package's TestMain does not call processtest.Main")
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir, cmd.Env = dir, Environment(t)
	return cmd
}

// Environment returns an environment with dagctl on the PATH and without settings.
func Environment(t testing.TB) []string {
	t.Helper()
	env := []string{"PATH=" + filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + t.TempDir(), "LANG=C.UTF-8"}
	for _, name := range []string{"TMPDIR", "GOGC"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// DataFolder returns a data folder for `dagctl dev`. It is removed with the test.
func DataFolder(t testing.TB) string {
	t.Helper()
	data := filepath.Join(t.TempDir(), ".dagctl")
	RemoveCluster(t, data)
	return data
}

// RemoveCluster removes the PostgreSQL cluster of a data folder when the test has ended, wherever `dagctl dev` has put
// it: as root, that is outside the folder.
func RemoveCluster(t testing.TB, data string) {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, pgdev.Remove(filepath.Join(data, "postgres"))) })
}

// Server is a running `dagctl dev`.
type Server struct {
	Data string // its data folder, which other commands need to find it
	URL  string // its address for browsers, which signs them in
	cmd  *exec.Cmd
	out  *bytes.Buffer
	done chan struct{}
}

// Dev starts `dagctl dev` on a free port and returns when it serves. It ends with the test, if not before.
func Dev(t testing.TB, dir, data string, args ...string) *Server {
	t.Helper()
	cmd := command(t, dir, append([]string{"dev", dir, "--addr", "127.0.0.1:0", "--data", data}, args...)...)
	// Like Ctrl-C, so that its own PostgreSQL ends with it.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGINT) }, time.Minute
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)

	s := &Server{Data: data, cmd: cmd, out: new(bytes.Buffer), done: make(chan struct{})}
	cmd.Stderr = s.out
	require.NoError(t, cmd.Start())

	serves := make(chan string, 1)
	go func() {
		defer close(s.done)
		defer close(serves)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if url, ok := strings.CutPrefix(lines.Text(), "dagctl dev: "); ok && strings.HasPrefix(url, "http") {
				serves <- url
			}
		}
	}()

	t.Cleanup(func() { s.end(syscall.SIGINT) })
	s.URL = <-serves
	require.NotEmpty(t, s.URL, "dagctl dev has ended: %s", s.out)
	return s
}

// PID returns the id of the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Start starts a command with more environment variables, and ends it with the test.
func Start(t testing.TB, env []string, args ...string) {
	t.Helper()
	cmd := command(t, t.TempDir(), args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, time.Minute
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		_ = cmd.Wait()                          // how it ended is in ProcessState
	})
}

// Kill ends the server as a crash does.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server as Ctrl-C does.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.end(syscall.SIGINT)
	require.Contains(t, []int{0, 130}, s.cmd.ProcessState.ExitCode(), s.out)
}

func (s *Server) end(signal os.Signal) {
	if s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Signal(signal) // it may have ended by itself
	<-s.done                         // until all of its output is read
	_ = s.cmd.Wait()                 // how it ended is in ProcessState
}

// Eventually waits until a condition holds, and fails after two minutes.
func Eventually(t testing.TB, what string, ask func() bool) {
	t.Helper()
	eventually(t, what, 50*time.Millisecond, patience, ask)
}

// Often is like Eventually, and asks more often.
func Often(t testing.TB, what string, ask func() bool) {
	t.Helper()
	eventually(t, what, 5*time.Millisecond, patience, ask)
}

// Within is like Eventually, for what may take longer than two minutes.
func Within(t testing.TB, limit time.Duration, what string, ask func() bool) {
	t.Helper()
	eventually(t, what, 50*time.Millisecond, limit, ask)
}

const patience = 2 * time.Minute

func eventually(t testing.TB, what string, every, limit time.Duration, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	deadline := time.After(limit)
	for !ask() {
		select {
		case <-tick.C:
		case <-deadline:
			require.Fail(t, "never happened: "+what)
		}
	}
}

// FreeAddress returns an address of this machine where nothing listens, for a server that must have the same address
// after it was killed.
func FreeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.Find()
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}
