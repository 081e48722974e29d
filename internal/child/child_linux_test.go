//go:build linux && (amd64 || arm64)

package child_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/child"
)

func TestMain(m *testing.M) {
	child.Main("stranger", func(in io.Reader, out io.Writer) int {
		return serve(in, out)
	})
	if len(os.Args) == 3 && os.Args[1] == "parent" {
		beParent(os.Args[2])
	}
	os.Exit(m.Run())
}

// deed is what a child is asked to do, and done what came of it.
type (
	deed struct {
		What string
		Args []string
	}
	done struct{ Said, Error string }
)

func serve(in io.Reader, out io.Writer) int {
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var d deed
		if from.Decode(&d) != nil {
			return 0
		}
		said, err := try(d)
		answer := done{Said: said}
		if err != nil {
			answer.Error = err.Error()
		}
		if to.Encode(answer) != nil {
			return 1
		}
	}
}

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func try(d deed) (said string, err error) {
	switch d.What {
	case "read":
		text, err := os.ReadFile(d.Args[0])
		return string(text), err
	case "write":
		return "", os.WriteFile(d.Args[0], []byte("x"), 0o600)
	case "list":
		_, err = os.ReadDir(d.Args[0])
	case "rename":
		err = os.Rename(d.Args[0], d.Args[1])
	case "link":
		err = os.Link(d.Args[0], d.Args[1])
	case "remove":
		err = os.Remove(d.Args[0])
	case "truncate":
		err = os.Truncate(d.Args[0], 0)
	case "chmod":
		err = os.Chmod(d.Args[0], 0o777)
	case "chtimes":
		err = os.Chtimes(d.Args[0], time.Unix(1, 0), time.Unix(1, 0))
	case "xattr":
		err = unix.Setxattr(d.Args[0], "user.x", []byte("x"), 0)
	case "watch":
		_, err = unix.InotifyInit1(0)
	case "run":
		err = exec.Command(d.Args[0]).Run()
	case "fork":
		err = call(unix.SYS_CLONE, uintptr(unix.SIGCHLD))
	case "socket":
		var family int
		_, err = fmt.Sscan(d.Args[0], &family)
		if err == nil {
			_, err = unix.Socket(family, unix.SOCK_STREAM, 0)
		}
	case "pair":
		_, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	case "kill-parent":
		err = unix.Kill(os.Getppid(), 0)
	case "kill-all":
		err = unix.Kill(-1, 0)
	case "kill-thread":
		err = unix.Tgkill(os.Getppid(), os.Getppid(), 0)
	case "trace":
		err = unix.PtraceAttach(os.Getppid())
	case "priority":
		err = unix.Setpriority(unix.PRIO_PROCESS, os.Getppid(), 19)
	case "limit":
		err = unix.Prlimit(os.Getppid(), unix.RLIMIT_NOFILE, nil, &unix.Rlimit{})
	case "memory-file":
		_, err = unix.MemfdCreate("x", 0)
	case "unshare":
		err = unix.Unshare(unix.CLONE_NEWUSER)
	case "leave-group":
		err = call(unix.SYS_SETSID)
	case "capability":
		header, rights := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err = unix.Capget(&header, &rights[0]); err == nil && rights[0].Permitted|rights[1].Permitted == 0 {
			err = fmt.Errorf("none")
		}
	case "environment":
		return strings.Join(os.Environ(), "\n"), nil
	case "descriptors":
		for fd := 3; fd < 1024; fd++ {
			if flags, none := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); none == nil && flags&unix.FD_CLOEXEC == 0 {
				said += fmt.Sprintln(fd)
			}
		}
	case "given":
		text, err := io.ReadAll(os.NewFile(4, "given"))
		return string(text), err
	case "pid":
		return fmt.Sprint(os.Getpid()), nil
	case "memory", "shared-memory":
		kind := unix.MAP_PRIVATE
		if d.What == "shared-memory" {
			kind = unix.MAP_SHARED
		}
		var all []byte
		for size := 900 << 20; size > 128<<20; size /= 2 { // the race detector leaves less of what may be asked for
			all, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, kind|unix.MAP_ANONYMOUS)
			if err == nil {
				break
			}
		}
		for i := 0; i < len(all); i += 4096 {
			all[i] = 1
		}
		if err == nil {
			select {}
		}
	case "compute":
		for !time.Now().IsZero() {
		}
	}
	return said, err
}

func start(t *testing.T, c child.Config) *child.Process {
	c.Kind = "stranger"
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	p, err := child.Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

func ask(t *testing.T, p *child.Process, what string, args ...string) done {
	t.Helper()
	var answer done
	require.NoError(t, p.Ask(deed{what, args}, &answer), what)
	return answer
}

func TestAChildReachesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	dir, inputs, secret := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "secret")
	input := filepath.Join(inputs, "in")
	for _, file := range []string{input, secret} {
		require.NoError(t, os.WriteFile(file, []byte("text"), 0o600))
	}
	require.NoError(t, os.Symlink(secret, filepath.Join(inputs, "link")))
	given, err := os.Open(secret)
	require.NoError(t, err)
	t.Cleanup(func() { given.Close() })

	p := start(t, child.Config{Dir: dir, Read: []string{inputs}, Write: []string{dir}, Files: []*os.File{given},
		Disk: 1 << 20})
	require.Equal(t, done{Said: "text"}, ask(t, p, "read", input))
	require.Equal(t, done{Said: "text"}, ask(t, p, "given"))
	out, sub := filepath.Join(dir, "out"), filepath.Join(dir, "sub")
	require.Empty(t, ask(t, p, "write", out).Error)
	require.NoError(t, os.Mkdir(sub, 0o700))
	require.Empty(t, ask(t, p, "rename", out, filepath.Join(sub, "out")).Error)
	require.Equal(t, done{Said: "x"}, ask(t, p, "read", filepath.Join(sub, "out")))
	require.Equal(t, "GOGC=400\nGOMAXPROCS=1", ask(t, p, "environment").Said, "and nothing of this process's")
	require.Empty(t, ask(t, p, "write", "/dev/null").Error)
	require.NoError(t, p.Leave())
}

func TestAChildReachesNothingElse(t *testing.T) {
	t.Parallel()
	dir, inputs, others := t.TempDir(), t.TempDir(), t.TempDir()
	secret, input := filepath.Join(others, "secret"), filepath.Join(inputs, "in")
	for _, file := range []string{secret, input} {
		require.NoError(t, os.WriteFile(file, []byte("text"), 0o666))
	}
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "link")))
	for range 3 { // not every library opens its files so that they end with an exec
		fd, err := unix.Open(secret, unix.O_RDONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
	}

	p := start(t, child.Config{Dir: dir, Read: []string{inputs}, Write: []string{dir}, Disk: 1 << 20})
	require.Empty(t, ask(t, p, "descriptors").Said)
	for _, attack := range [][]string{
		{"read", secret}, {"read", filepath.Join(dir, "link")}, {"read", "/etc/passwd"}, {"read", "/etc/hostname"},
		{"read", fmt.Sprintf("/proc/%d/environ", os.Getpid())}, {"read", fmt.Sprintf("/proc/%d/cmdline", os.Getpid())},
		{"read", fmt.Sprintf("/proc/%d/mem", os.Getpid())}, {"read", "/usr/bin/env"},
		{"list", others}, {"list", "/"}, {"list", "/proc"}, {"list", "/tmp"}, {"list", "/usr"},
		{"write", secret}, {"write", input}, {"write", filepath.Join(others, "new")}, {"write", "/tmp/dagctl-was-here"},
		{"write", "/dev/shm/dagctl-was-here"}, {"write", "/dev/full"},
		{"rename", secret, filepath.Join(dir, "mine")}, {"link", secret, filepath.Join(dir, "mine")},
		{"link", input, filepath.Join(dir, "mine")}, {"remove", secret}, {"remove", input}, {"truncate", secret},
		{"truncate", input}, {"chmod", secret}, {"chmod", input}, {"chtimes", secret}, {"xattr", secret}, {"watch"},
		{"run", "/bin/true"}, {"run", "/proc/self/exe"}, {"fork"},
		{"socket", fmt.Sprint(unix.AF_UNIX)}, {"socket", fmt.Sprint(unix.AF_INET)},
		{"socket", fmt.Sprint(unix.AF_INET6)}, {"socket", fmt.Sprint(unix.AF_NETLINK)},
		{"socket", fmt.Sprint(unix.AF_PACKET)}, {"socket", fmt.Sprint(unix.AF_VSOCK)},
		{"socket", fmt.Sprint(unix.AF_ALG)}, {"pair"},
		{"kill-parent"}, {"kill-all"}, {"kill-thread"}, {"trace"}, {"priority"}, {"limit"}, {"memory-file"},
		{"unshare"}, {"leave-group"}, {"capability"},
	} {
		answer := ask(t, p, attack[0], attack[1:]...)
		require.NotEmpty(t, answer.Error, "%v", attack)
		require.NotContains(t, answer.Error, "no such file", "%v", attack)
	}
	text, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
}

// Memory that processes could share counts like any other.
func TestAChildThatHoldsTooMuchIsEnded(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"memory", "shared-memory"} {
		p := start(t, child.Config{Memory: 64 << 20})
		require.Error(t, p.Ask(deed{What: what}, &done{}), what)
		how := p.Leave()
		require.ErrorIs(t, how, child.ErrMemory, what)
		signal, died := child.Died(how)
		require.True(t, died)
		require.Equal(t, syscall.SIGKILL, signal)
	}
}

func TestAChildEndsWhenAsked(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := child.Start(ctx, child.Config{Kind: "stranger", Dir: t.TempDir()})
	require.NoError(t, err)
	require.NoError(t, p.Tell(deed{What: "compute"}))
	cancel()
	<-p.Gone()
	require.Error(t, p.Leave())

	p = start(t, child.Config{CPU: time.Second})
	require.Error(t, p.Ask(deed{What: "compute"}, &done{}))
	signal, died := child.Died(p.Leave())
	require.True(t, died)
	require.Contains(t, []syscall.Signal{syscall.SIGXCPU, syscall.SIGKILL}, signal)
}

// beParent starts a child that computes, says its number on stdout, and waits to be killed.
func beParent(dir string) {
	p, err := child.Start(context.Background(), child.Config{Kind: "stranger", Dir: dir})
	if err != nil {
		panic(err)
	}
	if err := p.Tell(deed{What: "compute"}); err != nil {
		panic(err)
	}
	fmt.Println(p.PID())
	select {}
}

func TestAChildEndsWithItsParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command("/proc/self/exe", "parent", t.TempDir())
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	process, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(process) })

	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 10_000)
	require.NoError(t, err)
	require.Equal(t, 1, ready, "the child is still there")
}

// What a thread of the parent takes from itself stays with that thread.
func TestAParentStaysFree(t *testing.T) {
	t.Parallel()
	for range 8 {
		p := start(t, child.Config{})
		ask(t, p, "pid")
	}
	for range 64 {
		_, err := os.ReadFile("/etc/passwd")
		require.NoError(t, err)
		server, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, server.Close())
		require.NoError(t, exec.Command("/bin/true").Run())
	}
}

// BenchmarkStart measures what walls add to the start of a process.
func BenchmarkStart(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("/proc/self/exe", "-test.run=^$")
			require.NoError(b, cmd.Run())
		}
	})
	b.Run("behind walls", func(b *testing.B) {
		dir := b.TempDir()
		for b.Loop() {
			p, err := child.Start(b.Context(), child.Config{Kind: "stranger", Dir: dir, Write: []string{dir}})
			require.NoError(b, err)
			require.NoError(b, p.Leave())
		}
	})
}
