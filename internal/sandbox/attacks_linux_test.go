//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox/attacks"
)

// bareProgram is this test's binary behind the walls that need no namespaces.
type bareProgram struct {
	work, code, secret string
	walls              Walls
	out                bytes.Buffer
}

func newBare(t *testing.T) *bareProgram {
	t.Helper()
	dir := t.TempDir()
	p := &bareProgram{work: filepath.Join(dir, "work"), code: filepath.Join(dir, "code"),
		secret: filepath.Join(dir, "secret")}
	for _, d := range []string{p.work, p.code} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	require.NoError(t, os.WriteFile(p.secret, []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(p.code, "input"), []byte("input"), 0o600))
	self, err := os.Executable()
	require.NoError(t, err)
	p.walls = Walls{Read: []string{p.code}, Write: []string{p.work}, Exec: []string{self}, Disk: 1 << 20,
		Memory: 256 << 20, Processes: 200}
	return p
}

// run runs this binary with arguments until it ends.
func (p *bareProgram) run(ctx context.Context, args ...string) (exceeded, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return p.start(exec.CommandContext(ctx, self, args...))
}

func (p *bareProgram) start(cmd *exec.Cmd) (exceeded, err error) {
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.work, &p.out, &p.out
	passed := make(chan error, 1)
	release, err := Start(cmd, p.walls, func(err error) { passed <- err })
	if err != nil {
		return nil, err
	}
	err = cmd.Wait()
	release()
	select {
	case exceeded = <-passed:
	default:
	}
	return exceeded, err
}

// What users run comes after the server where both want the processor, and cannot change that.
func TestABareProgramHasALowerPriority(t *testing.T) {
	t.Parallel()
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	require.NoError(t, err)
	mine := 20 - raw // as the kernel counts
	p := newBare(t)
	cmd := exec.Command("/bin/sh", "-c", "nice; nice -n -5 nice 2>/dev/null || nice")
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	exceeded, err := p.start(cmd)
	require.NoError(t, err, p.out.String())
	require.NoError(t, exceeded)
	lower := min(mine+5, 19)
	require.Equal(t, fmt.Sprintf("%d\n%d\n", lower, lower), p.out.String())
}

func TestABareProgramReachesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	p := newBare(t)
	cmd := exec.Command("/bin/sh", "-c", `set -e
cat `+p.code+`/input; echo made > made; mkdir sub; mv made sub/; cat sub/made; cp -p sub/made copy; touch copy
echo "$A" > /dev/null; [ "$(id -u)" = `+strconv.Itoa(os.Getuid())+` ]; kill -0 $$; sh -c 'exit 0' | cat; env`)
	cmd.Env = []string{"A=b", "PATH=/usr/bin:/bin"}
	exceeded, err := p.start(cmd)
	require.NoError(t, err, p.out.String())
	require.NoError(t, exceeded)
	require.Contains(t, p.out.String(), "inputmade\n")
	require.Contains(t, p.out.String(), "A=b\n")
}

func TestABareProgramDoesNotStartWithoutItsFiles(t *testing.T) {
	t.Parallel()
	p := newBare(t)
	_, err := p.start(exec.Command("/no/such/program"))
	require.ErrorContains(t, err, "no such file")
	p.walls.Read = []string{"/no/such/folder"}
	_, err = p.start(exec.Command("/bin/true"))
	require.ErrorContains(t, err, "/no/such/folder")
}

// attacked returns what a program of a test may try, beside a server of the machine and one of its abstract sockets.
func attacked(t *testing.T, p *bareProgram) map[string][]string {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	name := fmt.Sprintf("@dagctl-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	abstract, err := net.Listen("unix", name)
	require.NoError(t, err)
	t.Cleanup(func() { abstract.Close() })
	return attacks.List(attacks.Target{Secret: p.secret, Input: filepath.Join(p.code, "input"), Work: p.work,
		Address: server.Addr().String(), Abstract: name, PID: os.Getpid()})
}

// TestAttacksOnBareWalls lets one program try all of them, and no one may be possible.
func TestAttacksOnBareWalls(t *testing.T) {
	t.Parallel()
	p := newBare(t)
	list := attacked(t, p)
	require.Greater(t, len(list), 80)
	asked, err := json.Marshal(list)
	require.NoError(t, err)
	for range 3 { // not every library opens its files so that they end with an exec
		fd, err := unix.Open(p.secret, unix.O_RDONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
	}

	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "attack")
	cmd.Stdin = bytes.NewReader(asked)
	exceeded, err := p.start(cmd)
	require.NoError(t, err, p.out.String())
	require.NoError(t, exceeded)
	answers := map[string]string{}
	require.NoError(t, json.Unmarshal(p.out.Bytes(), &answers), p.out.String())
	require.Len(t, answers, len(list))
	for name, answer := range answers {
		assert.NotEmpty(t, answer, name)
		assert.NotContains(t, answer, attacks.ErrUnknown.Error(), name)
		if strings.HasPrefix(name, "calls: ") {
			assert.Contains(t, []string{unix.EPERM.Error(), unix.ENOSYS.Error()}, answer, name)
		}
	}
	text, err := os.ReadFile(p.secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))
}

func TestABareProgramKeepsToItsLimits(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]string{"memory": "MiB of memory", "shared-memory": "MiB of memory",
		"fork": "processes and threads"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newBare(t)
			p.walls.Memory, p.walls.Processes = 128<<20, 60
			if what == "fork" {
				p.walls.Memory = 0
			}
			exceeded, err := p.run(t.Context(), "stranger", what)
			require.Error(t, err)
			if what == "fork" && exceeded == nil { // an ordinary user is stopped before
				require.Contains(t, p.out.String(), "resource temporarily unavailable")
				return
			}
			require.ErrorContains(t, exceeded, want)
			require.True(t, fault.Is(exceeded, fault.TooLarge))
		})
	}
}

// 600 MB in files that have no names any more are more than 200 MB, and so are as many in files that are only mapped,
// and in those of a process that would hide them.
func TestABareProgramKeepsToItsScratch(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]string{"removed": "more than 200 MiB", "mapped": "more than 200 MiB",
		"hidden": "more than 200 MiB", "entries": "more than 1000 files"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newBare(t)
			p.walls.Disk, p.walls.Written, p.walls.Files = 200<<20, 200<<20, 1000
			p.walls.Scratch = p.walls.Write
			exceeded, err := p.run(t.Context(), "stranger", what)
			require.Error(t, err)
			require.ErrorContains(t, exceeded, want, p.out.String())
			require.ErrorIs(t, exceeded, ErrWritten)
			require.True(t, fault.Is(exceeded, fault.TooLarge))
		})
	}
}

// All that a program has started ends with it, even what tried to leave its group.
func TestABareProgramLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	p := newBare(t)
	_, err := p.start(exec.Command("/bin/sh", "-c", "setsid sleep 3600 & (sleep 3600 &) ; echo $$; exit 0"))
	require.NoError(t, err, p.out.String())
	group, err := strconv.Atoi(strings.TrimSpace(p.out.String()))
	require.NoError(t, err)
	requireGone(t, group)
}

func requireGone(t *testing.T, group int) {
	t.Helper()
	require.Eventually(t, func() bool { return unix.Kill(-group, 0) == unix.ESRCH }, 20*time.Second,
		5*time.Millisecond, "something of group %d is left", group)
}

// The program of a process that is killed ends with it, and so does all that it has started.
func TestABareProgramEndsWithItsSupervisor(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	supervisor := exec.Command(self, "supervise", t.TempDir())
	out, err := supervisor.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, supervisor.Start())
	var group int
	_, err = fmt.Fscan(out, &group)
	require.NoError(t, err)
	require.NoError(t, unix.Kill(-group, 0))
	require.NoError(t, supervisor.Process.Kill())
	_ = supervisor.Wait()
	requireGone(t, group)
}

// beSupervisor starts a program with children, says its group, and waits to be killed.
func beSupervisor(work string) {
	cmd := exec.Command("/bin/sh", "-c", "sleep 3600 & setsid sleep 3600 & echo $$; wait")
	cmd.Dir, cmd.Stdout = work, os.Stdout
	if _, err := Start(cmd, Walls{Write: []string{work}, Disk: 1 << 20}, func(error) {}); err != nil {
		panic(err)
	}
	select {}
}

// Code of users runs where nobody may make namespaces, as in an ordinary container.
func TestAProgramRunsWithoutNamespaces(t *testing.T) {
	t.Parallel()
	p, out := newProgram(t)
	p.Bare, p.Command = true, []string{"run.sh"}
	require.NoError(t, os.WriteFile(filepath.Join(p.Code, "run.sh"),
		[]byte("#!/bin/sh\necho said\ncat in > out\ncat /etc/passwd && echo read\nexit 3\n"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(p.Work, "in"), []byte("given"), 0o600))
	var exit *ExitError
	require.ErrorAs(t, Run(t.Context(), p), &exit, out)
	require.Equal(t, 3, exit.Code)
	require.Contains(t, out.String(), "said\n")
	require.NotContains(t, out.String(), "read")
	made, err := os.ReadFile(filepath.Join(p.Work, "out"))
	require.NoError(t, err)
	require.Equal(t, "given", string(made))

	for what, want := range map[string]string{"memory": "MiB of memory", "wait": "longer than"} {
		p, out := newProgram(t, what)
		p.Bare, p.Limits = true, Limits{Memory: 64 << 20, Wall: 2 * time.Second}
		if what == "memory" {
			p.Limits.Wall = time.Minute
		}
		require.ErrorContains(t, Run(t.Context(), p), want, out)
	}
}

func TestWhatStands(t *testing.T) {
	t.Parallel()
	stand := map[string]bool{}
	for _, wall := range Standing() {
		require.NotEmpty(t, wall.Detail)
		stand[wall.Name] = wall.Stands
	}
	require.True(t, stand["privileges"])
	require.Equal(t, landlockABI() > 0, stand["files"])
	require.Equal(t, Namespaces() == nil, stand["namespaces"])
}
