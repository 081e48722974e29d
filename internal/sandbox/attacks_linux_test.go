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
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// attack does one thing that a program behind walls may try, and returns nil if it was possible. Its arguments are
// paths, addresses and numbers of the test.
func attack(what string, args []string) error {
	number := func(i int) int { n, _ := strconv.Atoi(args[i]); return n }
	call := func(trap uintptr, a ...uintptr) error {
		var all [6]uintptr
		copy(all[:], a)
		if _, _, errno := unix.RawSyscall6(trap, all[0], all[1], all[2], all[3], all[4], all[5]); errno != 0 {
			return errno
		}
		return nil
	}
	switch what {
	case "read":
		_, err := os.ReadFile(args[0])
		return err
	case "write":
		return os.WriteFile(args[0], nil, 0o600)
	case "inherited":
		for fd := 3; fd < 1024; fd++ {
			if flags, none := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); none == nil && flags&unix.FD_CLOEXEC == 0 {
				return nil
			}
		}
		return fmt.Errorf("none")
	case "list":
		_, err := os.ReadDir(args[0])
		return err
	case "open-to-write":
		f, err := os.OpenFile(args[0], os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	case "truncate":
		return os.Truncate(args[0], 0)
	case "remove":
		return os.Remove(args[0])
	case "mkdir":
		return os.Mkdir(args[0], 0o755)
	case "rename":
		return os.Rename(args[0], args[1])
	case "link":
		return os.Link(args[0], args[1])
	case "symlink":
		if err := os.Symlink(args[0], args[1]); err != nil {
			return err
		}
		_, err := os.ReadFile(args[1])
		return err
	case "mode":
		return changed(args[0], func() { _ = os.Chmod(args[0], 0o777) })
	case "mode-open":
		return changed(args[0], func() {
			if f, err := os.Open(args[0]); err == nil {
				_ = f.Chmod(0o777)
			}
		})
	case "times":
		return changed(args[0], func() { _ = os.Chtimes(args[0], time.Unix(1, 0), time.Unix(1, 0)) })
	case "attribute":
		return unix.Setxattr(args[0], "user.x", []byte("x"), 0)
	case "watch":
		fd, err := unix.InotifyInit1(0)
		if err == nil {
			_, err = unix.InotifyAddWatch(fd, args[0], unix.IN_ALL_EVENTS)
		}
		return err
	case "device":
		return unix.Mknod(args[0], unix.S_IFCHR|0o600, 1<<8|1)
	case "run":
		return exec.Command(args[0]).Run()
	case "socket":
		_, err := unix.Socket(number(0), number(1), number(2))
		return err
	case "pair":
		_, err := unix.Socketpair(unix.AF_UNIX, number(0), 0)
		return err
	case "abstract":
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: args[0]})
		}
		return err
	case "connect":
		c, err := net.DialTimeout("tcp", args[0], time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	case "bind":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			err = l.Close()
		}
		return err
	case "signal":
		return unix.Kill(number(0), syscall.Signal(number(1)))
	case "signal-thread":
		return unix.Tgkill(number(0), number(0), syscall.Signal(number(1)))
	case "queue-signal":
		var info [128]byte
		return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(number(0)), 0, uintptr(unsafe.Pointer(&info)))
	case "trace":
		return unix.PtraceAttach(number(0))
	case "priority":
		return unix.Setpriority(unix.PRIO_PROCESS, number(0), 19)
	case "limit":
		return unix.Prlimit(number(0), unix.RLIMIT_NOFILE, nil, &unix.Rlimit{})
	case "affinity":
		var set unix.CPUSet
		set.Set(0)
		return unix.SchedSetaffinity(number(0), &set)
	case "leave-group": // what ends the group must still end this process
		before, _ := unix.Getpgid(0)
		_, _ = unix.Setsid()
		_ = unix.Setpgid(0, 0)
		if group, _ := unix.Getpgid(0); group == before {
			return fmt.Errorf("it is still in group %d", group)
		}
		return nil
	case "dump":
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Max == 0 {
			return fmt.Errorf("core dumps: %d", limit.Max)
		}
		return nil
	case "raise-limit":
		return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	case "call":
		return call(uintptr(number(0)), 0, 0, 0)
	}
	return fmt.Errorf("unknown attack %s: %w", what, errUnknown)
}

var errUnknown = fmt.Errorf("nobody knows it")

// changed reports whether a file has another mode or time after a function.
func changed(path string, f func()) error {
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	f()
	after, err := os.Stat(path)
	if err == nil && before.Mode() == after.Mode() && before.ModTime().Equal(after.ModTime()) {
		return fmt.Errorf("nothing changed")
	}
	return err
}

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

// attacks returns what a program of a test may try, by class.
func attacks(t *testing.T, p *bareProgram) map[string][]string {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	name := fmt.Sprintf("@dagctl-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	abstract, err := net.Listen("unix", name)
	require.NoError(t, err)
	t.Cleanup(func() { abstract.Close() })

	us, dir := strconv.Itoa(os.Getpid()), filepath.Dir(p.secret)
	input, mine := filepath.Join(p.code, "input"), filepath.Join(p.work, "mine")
	out := map[string][]string{}
	add := func(class string, all ...[]string) {
		for _, a := range all {
			out[class+": "+strings.Join(a, " ")] = a
		}
	}
	add("files", []string{"read", p.secret}, []string{"read", "/etc/passwd"}, []string{"read", "/etc/shadow"},
		[]string{"read", "/etc/hostname"}, []string{"read", p.work + "/../secret"}, []string{"list", dir},
		[]string{"list", "/"}, []string{"list", "/etc"}, []string{"list", "/tmp"}, []string{"list", "/dev/shm"},
		[]string{"list", "/var"}, []string{"open-to-write", p.secret}, []string{"open-to-write", input},
		[]string{"truncate", p.secret}, []string{"truncate", input}, []string{"remove", p.secret},
		[]string{"remove", input}, []string{"mkdir", dir + "/new"}, []string{"mkdir", "/usr/dagctl-was-here"},
		[]string{"write", "/tmp/dagctl-was-here"}, []string{"write", "/dev/shm/dagctl-was-here"},
		[]string{"rename", p.secret, mine}, []string{"rename", input, mine}, []string{"link", p.secret, mine},
		[]string{"symlink", p.secret, mine}, []string{"device", mine})
	add("files that are hidden or not its own", []string{"mode", p.secret}, []string{"mode", input},
		[]string{"mode-open", input}, []string{"times", p.secret}, []string{"times", input},
		[]string{"attribute", p.secret}, []string{"attribute", input}, []string{"watch", p.secret},
		[]string{"watch", dir})
	for _, file := range []string{"environ", "cmdline", "mem", "maps", "fd", "cwd/x", "root/etc/passwd", "status"} {
		add("processes", []string{"read", "/proc/" + us + "/" + file})
	}
	add("processes", []string{"list", "/proc"}, []string{"list", "/proc/" + us + "/fd"}, []string{"trace", us},
		[]string{"signal", us, "0"}, []string{"signal", us, "9"}, []string{"signal", "-" + us, "0"},
		[]string{"signal-thread", us, "9"}, []string{"queue-signal", us}, []string{"priority", us},
		[]string{"limit", us}, []string{"affinity", us}, []string{"leave-group"}, []string{"dump"},
		[]string{"raise-limit"}, []string{"inherited"})
	for _, family := range []int{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET,
		unix.AF_VSOCK, unix.AF_ALG, unix.AF_BLUETOOTH, unix.AF_CAN, unix.AF_TIPC, unix.AF_KEY, unix.AF_XDP,
		unix.AF_RDS, unix.AF_QIPCRTR, unix.AF_SMC} {
		add("sockets", []string{"socket", strconv.Itoa(family), strconv.Itoa(unix.SOCK_STREAM), "0"},
			[]string{"socket", strconv.Itoa(family), strconv.Itoa(unix.SOCK_DGRAM), "0"})
	}
	add("sockets", []string{"pair", strconv.Itoa(unix.SOCK_DGRAM)}, []string{"abstract", name},
		[]string{"connect", server.Addr().String()}, []string{"bind"})
	for call, number := range map[string]int{"unshare": unix.SYS_UNSHARE, "setns": unix.SYS_SETNS,
		"bpf": unix.SYS_BPF, "perf": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD,
		"io_uring": unix.SYS_IO_URING_SETUP, "keyctl": unix.SYS_KEYCTL, "mount": unix.SYS_MOUNT,
		"process_vm_readv": unix.SYS_PROCESS_VM_READV, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
		"pidfd_getfd": unix.SYS_PIDFD_GETFD, "pidfd_open": unix.SYS_PIDFD_OPEN, "kexec": unix.SYS_KEXEC_LOAD,
		"memfd": unix.SYS_MEMFD_CREATE, "shmget": unix.SYS_SHMGET, "msgget": unix.SYS_MSGGET,
		"mq_open": unix.SYS_MQ_OPEN, "chroot": unix.SYS_CHROOT, "fanotify": unix.SYS_FANOTIFY_INIT,
		"clone3": unix.SYS_CLONE3, "handles": unix.SYS_OPEN_BY_HANDLE_AT, "of later kernels": 4000} {
		add("calls: "+call, []string{"call", strconv.Itoa(number)})
	}
	return out
}

// TestAttacksOnBareWalls lets one program try all of them, and no one may be possible.
func TestAttacksOnBareWalls(t *testing.T) {
	t.Parallel()
	p := newBare(t)
	list := attacks(t, p)
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
		assert.NotContains(t, answer, errUnknown.Error(), name)
		if strings.HasPrefix(name, "calls: ") {
			assert.Contains(t, []string{unix.EPERM.Error(), unix.ENOSYS.Error()}, answer, name)
		}
	}
	text, err := os.ReadFile(p.secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))
}

// attackAll tries what it reads, and prints what came of it.
func attackAll() int {
	var list map[string][]string
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		fmt.Println(err)
		return 1
	}
	answers := map[string]string{}
	for name, a := range list {
		answers[name] = ""
		if err := attack(a[0], a[1:]); err != nil {
			answers[name] = err.Error()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		return 1
	}
	return 0
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
