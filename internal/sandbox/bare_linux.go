//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// A program needs no namespaces to be confined. The stage gives up all rights, puts Landlock and the filter around
// itself, and becomes the program, at its own paths and as its own user. What it starts stays in its process group,
// which is ended as a whole; a keeper ends it if this process is killed.

// bareArg is the argument that makes a process such a stage.
const bareArg = "sandbox-bare"

// bare is what the stage gets on the descriptor that its last argument names; the next one takes what goes wrong.
type bare struct {
	Path  string
	Args  []string
	Env   []string
	Walls Walls
	Files int // descriptors beyond the first three that the program keeps
}

// staged reports whether this binary can be a stage: main has called Stage.
var staged atomic.Bool

// AvailableBare returns why programs cannot be confined without namespaces, or nil.
func AvailableBare() error {
	switch {
	case landlockABI() == 0:
		return fault.New(fault.Unavailable, "this machine cannot confine programs: its kernel has no Landlock").
			WithHint("it takes Linux 5.13 or newer, with landlock in CONFIG_LSM or in the kernel's argument lsm=")
	case !staged.Load():
		return fault.New(fault.Unavailable, "this process cannot confine programs: its main does not call Stage")
	}
	return nil
}

// Start starts a program behind walls, in the place of cmd.Start. It leads a session of its own, which is one process
// group: all that it can start. exceeded is called with the limit that it passed. After its end, release ends what it
// has left running.
func Start(cmd *exec.Cmd, w Walls, exceeded func(error)) (release func(), err error) {
	return startWithin(cmd, w, w.bounds(), exceeded)
}

// startWithin is Start with other bounds on what the program's processes have together.
func startWithin(cmd *exec.Cmd, w Walls, most bounds, exceeded func(error)) (release func(), err error) {
	if err := errors.Join(cmd.Err, AvailableBare()); err != nil {
		return nil, err
	}
	words, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer tell.Close()
	trouble, complain, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, words.Close())
	}
	defer trouble.Close()

	s := bare{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Walls: w, Files: len(cmd.ExtraFiles)}
	cmd.Path, cmd.Args, cmd.Env = "/proc/self/exe", []string{stageName, bareArg, strconv.Itoa(3 + s.Files)}, []string{}
	cmd.ExtraFiles = append(cmd.ExtraFiles[:s.Files:s.Files], words, complain)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_, _ = words.Close(), complain.Close()
	if err != nil {
		return nil, fmt.Errorf("sandbox: start: %w", err)
	}

	// The stage waits for its words, and ends if this process does. The keeper knows the group before it gets them.
	group := cmd.Process.Pid
	if err = keep(group); err == nil {
		err = json.NewEncoder(tell).Encode(s)
	}
	_ = tell.Close()
	if err == nil {
		err = said(trouble)
	}
	if err != nil {
		_ = syscall.Kill(-group, syscall.SIGKILL)
		_ = cmd.Wait()
		letGo(group)
		return nil, err
	}
	return supervise(group, most, exceeded), nil
}

// said returns what the stage complained about: nothing once the program has taken its place.
func said(trouble io.Reader) error {
	var failure string
	if json.NewDecoder(trouble).Decode(&failure) == nil && failure != "" {
		return fault.New(fault.Invalid, "%s", failure)
	}
	return nil
}

// supervise ends a group that holds too much.
func supervise(group int, most bounds, exceeded func(error)) (release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go endGroup(group) // so that nothing that it left holds its pipes
	var watched sync.WaitGroup
	watched.Go(func() {
		of := kin{group, func() []string { return ofGroup(group) }, heldOwn}
		if err := watch(ctx, of, most); err != nil {
			exceeded(err)
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
	})

	return func() {
		cancel()
		watched.Wait()
		_ = syscall.Kill(-group, syscall.SIGKILL) // there may be nobody left
		letGo(group)
	}
}

// bounds returns those that the processes of a program share.
func (w Walls) bounds() bounds {
	most := bounds{memory: w.Memory, threads: w.Processes}
	if w.Written > 0 {
		most.wrote = &scratch{folders: w.Scratch, bytes: w.Written, files: w.Files}
	}
	return most
}

// stageBare confines the process and becomes the program.
func stageBare(descriptor string) {
	runtime.LockOSThread()
	fd, err := strconv.Atoi(descriptor)
	if err != nil {
		os.Exit(125)
	}
	words, trouble := os.NewFile(uintptr(fd), "words"), os.NewFile(uintptr(fd+1), "trouble")
	unix.CloseOnExec(fd + 1)
	var s bare
	if json.NewDecoder(words).Decode(&s) != nil {
		os.Exit(125) // the parent is gone
	}
	err = s.become()
	_ = json.NewEncoder(trouble).Encode(fmt.Sprint(err)) // it could not
	os.Exit(125)
}

func (s *bare) become() error {
	abi := landlockABI()
	attr := handled(abi)
	if abi >= 4 && !s.Walls.Network {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= scopes {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	rules, err := newRuleset(attr)
	if err != nil {
		return err
	}
	if err := rules.allowAll(s.Walls, s.Walls.ofSystem()); err != nil {
		return err
	}

	if err := s.Walls.limit(); err != nil {
		return err
	}
	if err := unix.CloseRange(uint(3+s.Files), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("descriptors: %w", err)
	}
	if err := dropThread(); err != nil {
		return err
	}
	if err := rules.enforce(); err != nil {
		return err
	}
	if err := bareCalls(s.Walls.Network, abi >= scopes).load(); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return execute(s.Path, s.Args, s.Env)
}

// scopes is the version of Landlock that keeps signals to those who are behind the same wall.
const scopes = 6

// execute makes this process a program.
func execute(path string, args, env []string) error {
	for tries := 0; ; tries++ {
		err := unix.Exec(path, args, env)
		// A process that the supervisor is just starting holds, for a moment, all files that it has open: the program
		// too, if it has only now been written.
		if tries == 100 || !errors.Is(err, unix.ETXTBSY) {
			return fmt.Errorf("%s: %w", path, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ofSystem are the files that programs need of the machine, if it has them.
func (w Walls) ofSystem() map[string]uint64 {
	files := map[string]uint64{"/proc/self": reads}
	for _, path := range system {
		files[path] = runs
	}
	configured, _ := filepath.Glob("/etc/python3*")
	for _, path := range append(configured, "/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm",
		"/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/version", "/proc/loadavg", "/proc/uptime",
		"/proc/filesystems", "/proc/sys/kernel", "/proc/sys/vm", "/etc/fonts") {
		files[path] = reads
	}
	if w.Network {
		for _, path := range networked {
			files[path] = reads
		}
	}

	for _, path := range devices {
		files[path] = readsFiles
	}
	files["/dev/null"] |= unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	return files
}

// heldOwn is what processes hold in memory that no file backs, in bytes.
func heldOwn(processes []string) (memory int64) {
	for _, process := range processes {
		pid, _ := strconv.Atoi(filepath.Base(process))
		if own := share(process); own > 0 {
			memory += min(own, held(pid)) // programs and libraries that they run are not theirs
		} else {
			memory += held(pid)
		}
	}
	return memory
}

// dropThread takes all capabilities from the thread, and the ways to new ones.
func dropThread() error {
	for c := uintptr(0); ; c++ {
		held, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // beyond the last that there is
		}
		// root gets back at an exec what is in its bounds; nobody else does
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); held == 1 && err != nil && os.Geteuid() == 0 {
			return fmt.Errorf("capability %d: %w: root without CAP_SETPCAP cannot give up its rights", c, err)
		}
	}

	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return nil
}

// ofUser is how many threads the user of this process has: the limit on processes counts them all.
func ofUser() (threads uint64) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		var info unix.Stat_t
		if unix.Stat(dir, &info) != nil || int(info.Uid) != os.Getuid() {
			continue
		}
		tasks, _ := os.ReadDir(filepath.Join(dir, "task"))
		threads += uint64(len(tasks))
	}
	return threads
}
