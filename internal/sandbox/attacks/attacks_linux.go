//go:build linux && (amd64 || arm64)

// Package attacks is what a program behind walls may try. Tests run it as users' code does: in a process of the
// sandbox's own tests, and as a program of a job on a real server (stranger). It owns no tables.
package attacks

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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
			unix.Close(fd)
		}
		return err
	case "device":
		return unix.Mknod(args[0], unix.S_IFCHR|0o600, 1<<8|1)
	case "run":
		return exec.Command(args[0]).Run()
	case "socket":
		fd, err := unix.Socket(number(0), number(1), number(2))
		if err == nil {
			err = unix.Close(fd)
		}
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
	return fmt.Errorf("unknown attack %s: %w", what, ErrUnknown)
}

// ErrUnknown is the error of an attack that this package does not know.
var ErrUnknown = fmt.Errorf("nobody knows it")

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

// Target is what a program may try to reach.
type Target struct {
	Secret   string // a file out of its reach
	Input    string // a file that it may read and no more
	Work     string // its folder
	Address  string // a TCP server of the machine
	Abstract string // a socket of the machine, by its abstract name
	PID      int    // another process
}

// List returns what a program may try, by class and name.
func List(t Target) map[string][]string {
	us, dir := strconv.Itoa(t.PID), filepath.Dir(t.Secret)
	input, mine := t.Input, filepath.Join(t.Work, "mine")
	out := map[string][]string{}
	add := func(class string, all ...[]string) {
		for _, a := range all {
			out[class+": "+strings.Join(a, " ")] = a
		}
	}
	add("files", []string{"read", t.Secret}, []string{"read", "/etc/passwd"}, []string{"read", "/etc/shadow"},
		[]string{"read", "/etc/hostname"}, []string{"read", t.Work + "/../secret"}, []string{"list", dir},
		[]string{"list", "/"}, []string{"list", "/etc"}, []string{"list", "/tmp"}, []string{"list", "/dev/shm"},
		[]string{"list", "/var"}, []string{"open-to-write", t.Secret}, []string{"open-to-write", input},
		[]string{"truncate", t.Secret}, []string{"truncate", input}, []string{"remove", t.Secret},
		[]string{"remove", input}, []string{"mkdir", dir + "/new"}, []string{"mkdir", "/usr/dagctl-was-here"},
		[]string{"write", "/tmp/dagctl-was-here"}, []string{"write", "/dev/shm/dagctl-was-here"},
		[]string{"rename", t.Secret, mine}, []string{"rename", input, mine}, []string{"link", t.Secret, mine},
		[]string{"symlink", t.Secret, mine}, []string{"device", mine})

	add("files that are hidden or not its own", []string{"mode", t.Secret}, []string{"mode", input},
		[]string{"mode-open", input}, []string{"times", t.Secret}, []string{"times", input},
		[]string{"attribute", t.Secret}, []string{"attribute", input}, []string{"watch", t.Secret},
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
	add("sockets", []string{"pair", strconv.Itoa(unix.SOCK_DGRAM)}, []string{"abstract", t.Abstract},
		[]string{"connect", t.Address}, []string{"bind"})

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

// Main tries what it reads as JSON, and writes what came of each: an error, or nothing where it was possible.
func Main(in io.Reader, out io.Writer) int {
	var list map[string][]string
	if err := json.NewDecoder(in).Decode(&list); err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	if json.NewEncoder(out).Encode(Try(list)) != nil {
		return 1
	}
	return 0
}

// Try tries all attacks of a list.
func Try(list map[string][]string) map[string]string {
	answers := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		a := list[name]
		answers[name] = ""
		if err := attack(a[0], a[1:]); err != nil {
			answers[name] = err.Error()
		}
	}
	return answers
}
