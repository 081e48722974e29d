//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"context"
	"fmt"
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

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox/attacks"
)

// The test binary is both the stage and the untrusted program, whose second argument says what to try.
func TestMain(m *testing.M) {
	Stage()
	if len(os.Args) > 2 && os.Args[1] == "stranger" {
		os.Exit(strange(os.Args[2], os.Args[3:]))
	}
	if len(os.Args) == 2 && os.Args[1] == "attack" {
		os.Exit(attacks.Main(os.Stdin, os.Stdout))
	}
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		beSupervisor(os.Args[2])
	}
	os.Exit(m.Run())
}

// strange does one thing that untrusted code may try. It returns 0 if that worked, and 1 if it was refused, and prints
// the refusal.
func strange(what string, args []string) int {
	var err error
	switch what {
	case "read":
		_, err = os.ReadFile(args[0])
	case "write":
		err = os.WriteFile(args[0], []byte("x"), 0o644)
	case "dial":
		var c net.Conn
		if c, err = net.DialTimeout("tcp", args[0], 2*time.Second); err == nil {
			c.Close()
		}
	case "mount":
		err = unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "")
	case "unshare":
		err = unix.Unshare(unix.CLONE_NEWUSER)
	case "namespace":
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		err = cmd.Run()
	case "ptrace":
		err = unix.PtraceAttach(os.Getppid())
	case "packet":
		_, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	case "vsock":
		_, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	case "crypto":
		_, err = unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	case "vsock-pair":
		_, err = unix.Socketpair(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	case "memory-file":
		_, err = unix.MemfdCreate("held", 0)
	case "secret-memory":
		if _, _, errno := unix.RawSyscall(unix.SYS_MEMFD_SECRET, 0, 0, 0); errno != 0 {
			err = errno
		}
	case "segment":
		if _, _, errno := unix.RawSyscall(unix.SYS_SHMGET, unix.IPC_PRIVATE, 1<<20, unix.IPC_CREAT|0o600); errno != 0 {
			err = errno
		}
	case "messages":
		if _, _, errno := unix.RawSyscall(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600, 0); errno != 0 {
			err = errno
		}
	case "unknown-call":
		if _, _, errno := unix.RawSyscall(4000, 0, 0, 0); errno != 0 {
			err = errno
		}
	case "inherited": // descriptors that this program opened itself end at an exec
		for fd := 3; fd < 1024; fd++ {
			if flags, none := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); none == nil && flags&unix.FD_CLOEXEC == 0 {
				fmt.Println("descriptor", fd)
			}
		}
	case "chown":
		err = os.Chown("/task", 2, 2)
	case "setuid":
		_, _, errno := unix.RawSyscall(unix.SYS_SETUID, 1000, 0, 0)
		if errno != 0 {
			err = errno
		}
	case "keys":
		_, err = unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, false)
	case "environment":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	case "who":
		host, _ := os.Hostname()
		fmt.Print(os.Getpid(), " ", host)
	default:
		err = attacks.Exhaust(what)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// confines reports whether this machine can confine programs. If it cannot, it checks that nothing runs, at once and
// with an error that names what is missing.
func confines(t *testing.T) bool {
	t.Helper()
	if Namespaces() == nil {
		return true
	}
	if AvailableBare() == nil {
		return false // see the tests of bare walls
	}
	p, out := newProgram(t, "environment")
	err := Run(t.Context(), p)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "this machine cannot confine programs: ")
	require.Empty(t, out.String())
	if unix.Unshare(unix.CLONE_NEWUSER) != nil {
		require.ErrorContains(t, err, "it gives no user namespaces")
	}
	return false
}

func newProgram(t *testing.T, what ...string) (Program, *bytes.Buffer) {
	dir := filepath.Join(t.TempDir(), "private")
	require.NoError(t, os.Mkdir(dir, 0o700)) // the program's user cannot reach folders below it
	var out bytes.Buffer
	p := Program{Command: append([]string{"program", "stranger"}, what...), Code: filepath.Join(dir, "code"),
		Work:   filepath.Join(dir, "work"),
		Stdout: &out, Stderr: &out, Limits: Limits{Wall: time.Minute}}
	for _, d := range []string{p.Code, p.Work} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(p.Code, "program"), self, 0o755))
	return p, &out
}

func TestAProgramReadsItsCodeAndWritesItsFolder(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	p, out := newProgram(t)
	require.NoError(t, os.WriteFile(filepath.Join(p.Code, "run.sh"),
		[]byte("#!/bin/sh\necho said\ncat /task/in > out\ntouch /tmp/x\n"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(p.Work, "in"), []byte("given"), 0o600))
	p.Command = []string{"run.sh"}
	require.NoError(t, Run(t.Context(), p), out)
	require.Equal(t, "said\n", out.String())
	made, err := os.ReadFile(filepath.Join(p.Work, "out"))
	require.NoError(t, err)
	require.Equal(t, "given", string(made))
}

func TestAProgramHasTheEnvironmentItIsGiven(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	p, out := newProgram(t, "environment")
	p.Env = []string{"A=b"}
	require.NoError(t, Run(t.Context(), p), out)
	require.Equal(t, "A=b", out.String())
	p, out = newProgram(t, "who")
	require.NoError(t, Run(t.Context(), p), out)
	require.Equal(t, "1 sandbox", out.String())
}

// Not every library of this process opens its files so that they end with an exec.
func TestAProgramInheritsNoDescriptors(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	for range 3 {
		fd, err := unix.Open("/proc/self/status", unix.O_RDONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
	}
	p, out := newProgram(t, "inherited")
	require.NoError(t, Run(t.Context(), p), out)
	require.Empty(t, out.String())
}

func TestAProgramSaysHowItEnded(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	for command, want := range map[string]ExitError{"exit 3": {Code: 3}, "kill -9 $$; exit 4": {Code: 4},
		"kill -SEGV $(sh -c 'echo $PPID'); exit 5": {Code: 5}} {
		p, out := newProgram(t)
		p.Command = []string{"/bin/sh", "-c", command}
		var exit *ExitError
		require.ErrorAs(t, Run(t.Context(), p), &exit, out)
		require.Equal(t, want, *exit, command)
	}
	p, _ := newProgram(t)
	p.Command = []string{"none-such"}
	require.ErrorContains(t, Run(t.Context(), p), `there is no program "none-such"`)
}

func TestAProgramHarmsNothing(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s"), 0o644))
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	t.Cleanup(func() { server.Close() })
	for name, attack := range map[string][]string{
		"files of others":          {"read", secret},
		"accounts":                 {"read", "/etc/passwd"},
		"passwords":                {"read", "/etc/shadow"},
		"the supervisor's memory":  {"read", "/proc/2/mem"},
		"the kernel's memory":      {"read", "/dev/mem"},
		"the system's programs":    {"write", "/usr/bin/dagctl-was-here"},
		"its own code":             {"write", "/code/program2"},
		"the root":                 {"write", "/x"},
		"the kernel's settings":    {"write", "/proc/sys/kernel/hostname"},
		"a server on this machine": {"dial", server.Addr().String()},
		"mounts":                   {"mount"},
		"namespaces by unshare":    {"unshare"},
		"namespaces by clone":      {"namespace"},
		"tracing":                  {"ptrace"},
		"packets":                  {"packet"},
		"sockets of the host":      {"vsock"},
		"pairs of them":            {"vsock-pair"},
		"the kernel's ciphers":     {"crypto"},
		"uncounted memory files":   {"memory-file"},
		"uncounted secret memory":  {"secret-memory"},
		"uncounted segments":       {"segment"},
		"uncounted messages":       {"messages"},
		"calls of later kernels":   {"unknown-call"},
		"giving files away":        {"chown"},
		"becoming another":         {"setuid"},
		"keys":                     {"keys"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, out := newProgram(t, attack...)
			var exit *ExitError
			require.ErrorAs(t, Run(t.Context(), p), &exit, out)
			require.Equal(t, 1, exit.Code, out)
			t.Log(strings.TrimSpace(out.String()))
		})
	}
}

func TestAProgramKeepsToItsLimits(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	for name, c := range map[string]struct {
		what   string
		limits Limits
		want   string
	}{
		"memory":        {"memory", Limits{Memory: 64 << 20}, "more than 64 MiB of memory"},
		"shared memory": {"shared-memory", Limits{Memory: 64 << 20}, "more than 64 MiB of memory"},
		"time":          {"wait", Limits{Wall: time.Second}, "longer than 1s"},
		"many files":    {"files", Limits{Disk: 16 << 20}, "more than 16 MiB"},
		"removed files": {"removed", Limits{Disk: 200 << 20}, "more than 200 MiB"},
		"mapped files":  {"mapped", Limits{Disk: 200 << 20}, "more than 200 MiB"},
		"hidden files":  {"hidden", Limits{Disk: 200 << 20}, "more than 200 MiB"},
		"entries":       {"entries", Limits{Files: 1000}, "more than 1000 files"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, out := newProgram(t, c.what)
			p.Limits = c.limits
			err := Run(t.Context(), p)
			require.ErrorContains(t, err, c.want, out)
			require.True(t, fault.Is(err, fault.TooLarge))
		})
	}

	t.Run("one file", func(t *testing.T) {
		t.Parallel()
		p, out := newProgram(t, "file")
		p.Limits = Limits{Disk: 8 << 20}
		require.Error(t, Run(t.Context(), p), out)
		info, err := os.Stat(filepath.Join(p.Work, "large"))
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(8<<20))
	})

	t.Run("processes", func(t *testing.T) {
		t.Parallel()
		p, out := newProgram(t, "fork")
		p.Limits = Limits{Processes: 32}
		require.Error(t, Run(t.Context(), p), out)
		require.Contains(t, out.String(), "resource temporarily unavailable")
	})
}

// The processes that a program started end with the program, and the program ends with the process that ran it.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}

	p, out := newProgram(t)
	p.Command = []string{"/bin/sh", "-c", "sleep 3600 & echo started; exit 0"}
	require.NoError(t, Run(t.Context(), p), out)

	p, out = newProgram(t, "wait")
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := fmt.Errorf("stopped")
	time.AfterFunc(200*time.Millisecond, func() { cancel(stopped) })
	require.ErrorIs(t, Run(ctx, p), stopped, out)
}
