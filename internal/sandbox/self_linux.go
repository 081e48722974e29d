//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A process of this same binary confines itself: Landlock and the loss of capabilities hold for a thread and all that
// it starts, so they come first, before Go has any other thread (early_linux.go). Limits and the filter of system
// calls, which hold for all threads at once, come next, in Enter, before the process reads anything. Nothing is
// executed twice, so walls cost nearly nothing beyond the start of the process.

// The names by which a process knows, before Go starts, that it runs what users wrote: it lowers its priority. By the
// first two it confines itself, with Landlock or where there is none. early_linux.go has them, too.
const (
	confinedName = "dagctl-confined"
	limitedName  = "dagctl-limited"
	stageName    = "dagctl-stage" // of a process that becomes a program
)

// StartSelf starts a process of this binary behind walls. Its first argument is set here; it must call Enter before
// anything else, and finds cmd.ExtraFiles one descriptor further on. gone is closed when it has ended, which nobody
// else may wait for, and ended then says how. The process ends with this one.
func StartSelf(cmd *exec.Cmd, w Walls) (gone <-chan struct{}, ended func() error, err error) {
	rules, err := selfRules(w)
	if err != nil {
		return nil, nil, err
	}
	defer rules.Close()
	if cmd.Args[0] = confinedName; landlockABI() == 0 {
		cmd.Args[0] = limitedName
	}
	cmd.ExtraFiles = append([]*os.File{rules}, cmd.ExtraFiles...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}

	started, done := make(chan error, 1), make(chan struct{})
	var how error
	go func() {
		runtime.LockOSThread() // the signal at the parent's death goes out when the thread ends that started it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			how = cmd.Wait()
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}

	var excess error
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if watchSelf(cmd.Process.Pid, w.Memory, done) {
			excess = ErrMemory
			_ = cmd.Process.Kill()
		}
	}()
	return done, func() error {
		<-done
		<-watched
		return because(excess, how)
	}, nil
}

// because adds why a process was ended to how it ended.
func because(excess, how error) error {
	if excess == nil || how == nil {
		return how
	}
	return fmt.Errorf("%w: %w", excess, how)
}

// selfRules returns the ruleset that a process of this binary is to enforce, or /dev/null where there is no Landlock.
func selfRules(w Walls) (*os.File, error) {
	abi := landlockABI()
	if abi == 0 {
		return os.Open(os.DevNull)
	}
	rules, err := newRuleset(handled(abi))
	if err != nil {
		return nil, err
	}
	if err := rules.allowAll(w, ownFiles); err != nil {
		rules.close()
		return nil, err
	}
	return os.NewFile(uintptr(rules.fd), "ruleset"), nil
}

// ownFiles are those of the machine that this binary needs while it runs. DuckDB looks at the limits of its control
// group, and ends the process if those are there and cannot be read.
var ownFiles = map[string]uint64{
	"/dev/null":                      readsFiles | unix.LANDLOCK_ACCESS_FS_WRITE_FILE,
	"/dev/zero":                      readsFiles,
	"/dev/random":                    readsFiles,
	"/dev/urandom":                   readsFiles,
	"/etc/localtime":                 readsFiles,
	"/usr/share/zoneinfo":            reads,
	"/proc/meminfo":                  readsFiles,
	"/proc/cpuinfo":                  readsFiles,
	"/sys/fs/cgroup":                 readsFiles,
	"/sys/devices/system/cpu":        reads,
	"/proc/sys/vm/overcommit_memory": readsFiles,
}

// Enter puts up the other walls around this process, which StartSelf started. It keeps the first descriptors, as many
// as keep says.
func Enter(w Walls, keep int) error {
	if err := early(); err != nil {
		return err
	}
	if err := w.limit(); err != nil {
		return err
	}
	if err := closeFrom(keep); err != nil {
		return err
	}
	return selfCalls(uint32(os.Getpid())).load()
}

// limit sets the limits of this process. Runtimes reserve address space which they never touch, so the limit on data is
// only against what takes all in an instant; the watch over what is held is more exact.
func (w Walls) limit() error {
	limits := map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: uint64(w.Disk), unix.RLIMIT_NOFILE: 1 << 10}
	if w.Memory > 0 {
		limits[unix.RLIMIT_DATA] = uint64(w.Memory) + 1<<30
	}
	if w.CPU > 0 {
		limits[unix.RLIMIT_CPU] = uint64((w.CPU + time.Second - 1) / time.Second)
	}
	if w.Processes > 0 {
		limits[unix.RLIMIT_NPROC] = uint64(w.Processes) + ofUser()
	}

	for resource, most := range limits {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return fmt.Errorf("limit %d: %w", resource, err)
		}
		most = min(most, now.Max)
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit %d: %w", resource, err)
		}
	}
	return nil
}

// closeFrom closes what the parent left open: not every library of it opens its files so that they end with an exec.
// What this process has opened itself ends with one, so it is left alone.
func closeFrom(first int) error {
	const scanned = 1 << 12
	for fd := first; fd < scanned; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	err := unix.CloseRange(scanned, math.MaxUint32, 0)
	if err == unix.ENOSYS { // before Linux 5.9, which has no Landlock either
		return nil
	}
	return err
}

// selfCalls is the filter of a process of this binary, which needs little: threads, memory, and files in its folders.
func selfCalls(pid uint32) filter {
	const thread = unix.CLONE_THREAD
	own := []string{"kill", "tgkill"}
	return slices.Concat(
		each(permit, append(own, ownOnly...), is(0, pid)),
		each(permit, ownOnly, is(0, 0)),
		each(failing(unix.EPERM), append(own, ownOnly...)),
		each(failing(unix.EPERM), []string{"tkill", "setsid", "setpgid", "inotify_init", "inotify_init1"}),
		each(failing(unix.EPERM), ofOthers),
		each(failing(unix.EAFNOSUPPORT), []string{"socket", "socketpair"}),
		each(failing(unix.EPERM), []string{"execve", "execveat", "fork", "vfork"}),
		each(failing(unix.EPERM), []string{"clone"}, check{argument: 0, mask: thread, value: 0}),
		each(failing(unix.EPERM), changes),
		always())
}

// changes are calls that change what Landlock does not keep, by paths that lead anywhere.
var changes = []string{"chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "utime", "utimes", "futimesat",
	"utimensat", "setxattr", "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat"}

// watchSelf gives a process's session its priority, and looks at what it holds until it has ended. It reports whether
// that is more than it may; 0 is any amount.
func watchSelf(pid int, most int64, done <-chan struct{}) bool {
	tick := time.NewTicker(looks)
	defer tick.Stop()
	// It stays open, since opening it takes most of the time of a look. Without it, each look takes longer.
	pages, _ := unix.Open("/proc/"+strconv.Itoa(pid)+"/statm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	defer func() { _ = unix.Close(pages) }()

	first := priority{leader: pid, nice: programNice}
	for {
		first.tell()
		select {
		case <-done:
			return false
		case <-tick.C:
		}
		if most > 0 && exceeds(pid, pages, most) {
			return true
		}
	}
}

// exceeds reports whether a process holds more than it may in memory that no file backs. All that it has in memory,
// which a descriptor of its pages tells, takes a tenth of the time to ask for, and says enough as a rule, where nothing
// can be swapped out.
func exceeds(pid, pages int, most int64) bool {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err == nil && machine.Totalswap == 0 {
		if all, ok := resident(pages); ok && all <= most {
			return false
		}
	}
	return held(pid) > most
}

// resident is what one process has in memory, in bytes, by a descriptor of its statm.
func resident(statm int) (memory int64, ok bool) {
	var text [128]byte
	n, err := unix.Pread(statm, text[:], 0)
	if err != nil { // it has ended
		return 0, false
	}
	fields := bytes.Fields(text[:n])
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err == nil
}

// held is what one process holds in memory that no file backs, in bytes.
func held(pid int) (total int64) {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status") // it may have ended
	for line := range bytes.Lines(text) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		if n := string(name); n != "RssAnon" && n != "RssShmem" && n != "VmSwap" {
			continue
		}
		if fields := bytes.Fields(rest); len(fields) > 0 {
			kilobytes, _ := strconv.ParseInt(string(fields[0]), 10, 64)
			total += kilobytes << 10
		}
	}
	return total
}
