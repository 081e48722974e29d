//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageArg is the argument that makes a process a stage.
const stageArg = "sandbox-stage"

// Stage confines the process and becomes the program, if the process was started as a stage. main must call it first,
// and so must TestMain of packages that confine programs.
func Stage() {
	staged.Store(true)
	switch {
	case len(os.Args) == 3 && os.Args[1] == bareArg:
		stageBare(os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == keeperArg:
		beKeeper(os.Stdin)
	case len(os.Args) != 2 || os.Args[1] != stageArg:
		return
	}

	runtime.LockOSThread()
	words, trouble := os.NewFile(3, "words"), os.NewFile(4, "trouble")
	unix.CloseOnExec(4)
	var s stage
	err := json.NewDecoder(words).Decode(&s)
	words.Close()
	if err == nil {
		err = s.become()
	}
	_ = json.NewEncoder(trouble).Encode(fmt.Sprint(err)) // it could not
	os.Exit(125)
}

// become confines the process, from the outermost layer inwards, and then runs the program in it.
func (s *stage) become() error {
	code, work := s.Code, s.Work
	if !s.Alone {
		if err := s.mounts(); err != nil {
			return err
		}
		code, work = "/code", "/task"
		if err := unix.Sethostname([]byte("sandbox")); err != nil {
			return fmt.Errorf("host name: %w", err)
		}
	}

	for resource, most := range map[int]uint64{
		unix.RLIMIT_CORE:   0,
		unix.RLIMIT_FSIZE:  uint64(s.Limits.Disk),
		unix.RLIMIT_NOFILE: 1024,
		unix.RLIMIT_NPROC:  uint64(s.Limits.Processes),
		// Processes together are watched from outside; this is against one that takes all in an instant. Runtimes
		// reserve address space which they never touch, so it is not the limit itself.
		unix.RLIMIT_DATA: uint64(s.Limits.Memory) + 1<<30,
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return fmt.Errorf("limit %d: %w", resource, err)
		}
		most = min(most, now.Max)
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit %d: %w", resource, err)
		}
	}
	if err := s.dropPrivileges(); err != nil {
		return err
	}

	command, err := s.program(code)
	if err != nil {
		return err
	}
	if err := unix.Chdir(work); err != nil {
		return err
	}
	if err := closeAll(); err != nil {
		return fmt.Errorf("descriptors: %w", err)
	}
	if err := programCalls(s.Alone).load(); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}

	return execute(command, s.Command, s.Env)
}

// closeAll marks all descriptors but the first three to be closed when the program takes the stage's place: libraries
// of the supervisor, and whoever started it, may have left some open for every process.
func closeAll() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) { // Linux 5.11 has it
		return err
	}
	for fd := 3; fd < 1<<16; fd++ {
		unix.CloseOnExec(fd) // most of these are not open
	}
	return nil
}

// program finds the command: below its code where its path is relative and it is there, else where programs are.
func (s *stage) program(code string) (string, error) {
	name := s.Command[0]
	if filepath.IsAbs(name) {
		return name, nil
	}
	if path := filepath.Join(code, filepath.Clean("/"+name)); s.Code != "" && isFile(path) {
		return path, nil
	}

	if !strings.Contains(name, "/") {
		places := []string{"/usr/local/bin", "/usr/bin", "/bin"}
		for _, dir := range s.Expose {
			places = append([]string{filepath.Join(dir, "bin"), dir}, places...)
		}
		for _, dir := range places {
			if path := filepath.Join(dir, name); isFile(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("there is no program %q in the code, and none of the system's of that name", name)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// system are what programs need of the system, and no more: no home folders, no configuration but that of the linker.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives",
	"/etc/localtime", "/etc/mime.types"}

// networked are what it takes to use the network besides.
var networked = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates",
	"/etc/pki"}

var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// mounts gives the process a file system of its own, in which only /task, /tmp and /dev/shm are writable.
func (s *stage) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	root, err := placeForRoot()
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=755"); err != nil {
		return fmt.Errorf("mounts: root: %w", err)
	}

	for _, fill := range []func(root string) error{s.showSystem, s.showTask, s.mountMemory, mountProc} {
		if err := fill(root); err != nil {
			return err
		}
	}
	return enterRoot(root)
}

// showSystem makes the files and devices of the machine that programs need visible below the new root.
func (s *stage) showSystem(root string) error {
	shown := append([]string{}, system...)
	if s.Network {
		shown = append(shown, networked...)
	}
	shown = append(shown, s.Expose...)
	for _, path := range shown {
		if err := show(root, path, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("mounts: %s: %w", path, err)
		}
	}

	for _, path := range devices {
		if err := show(root, path, false); err != nil {
			return fmt.Errorf("mounts: %s: %w", path, err)
		}
	}
	return nil
}

// showTask makes the code and the work folder of the task visible below the new root.
func (s *stage) showTask(root string) error {
	if s.Code != "" {
		if err := showFolder(s.Code, filepath.Join(root, "code"), true); err != nil {
			return fmt.Errorf("mounts: code: %w", err)
		}
	}
	if err := showFolder(s.Work, filepath.Join(root, "task"), false); err != nil {
		return fmt.Errorf("mounts: task: %w", err)
	}
	return nil
}

// mountMemory mounts the folders below the new root that live in memory.
func (s *stage) mountMemory(root string) error {
	for path, size := range map[string]int64{"/tmp": min(s.Limits.Disk, 64<<20), "/dev/shm": 16 << 20} {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		options := fmt.Sprintf("mode=1777,size=%d,nr_inodes=%d", size, s.Limits.Files)
		if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("mounts: %s: %w", path, err)
		}
	}
	return nil
}

// mountProc mounts a /proc below the new root.
func mountProc(root string) error {
	proc := filepath.Join(root, "proc")
	if err := os.MkdirAll(proc, 0o555); err != nil {
		return err
	}
	// Inside some containers a process may not mount a /proc of its own; programs do without it there.
	err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mounts: proc: %w", err)
	}
	return nil
}

// enterRoot makes root the root of the process, read-only, and detaches the old one.
func enterRoot(root string) error {
	old := filepath.Join(root, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("mounts: new root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("mounts: old root: %w", err)
	}
	if err := os.Remove("/.old"); err != nil {
		return err
	}

	const readOnly = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("", "/", "", readOnly, ""); err != nil {
		return fmt.Errorf("mounts: read-only root: %w", err)
	}
	return nil
}

// placeForRoot is a folder of the system which the new root can lie over; nobody else sees it there.
func placeForRoot() (string, error) {
	for _, dir := range []string{"/mnt", "/media", "/srv", "/tmp"} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir, nil
		}
	}
	return "", errors.New("mounts: this machine has neither /mnt, /media, /srv nor /tmp")
}

// showFolder makes a folder visible under another name.
func showFolder(from, to string, readOnly bool) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return restrict(to, readOnly)
}

// show makes a path of the system visible below the new root; links stay links.
func show(root, path string, readOnly bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	to := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}

	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.IsDir():
		err = os.MkdirAll(to, 0o755)
	default:
		err = os.WriteFile(to, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(path, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil || !readOnly {
		return err // a device has to stay one
	}
	return restrict(to, true)
}

// restrict takes from a mount what no program needs of it.
func restrict(to string, readOnly bool) error {
	// What the mount it comes from forbids stays forbidden: a user namespace may not lift it.
	var held unix.Statfs_t
	if err := unix.Statfs(to, &held); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV)
	if readOnly {
		flags |= unix.MS_RDONLY
	}

	for bit, flag := range map[int64]uintptr{unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOATIME: unix.MS_NOATIME,
		unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME} {
		if int64(held.Flags)&bit != 0 {
			flags |= flag
		}
	}
	return unix.Mount("", to, "", flags, "")
}

// dropPrivileges takes away what the process may do as root of its own namespaces, for good.
func (s *stage) dropPrivileges() error {
	for c := 0; !s.Alone; c++ { // a program that is alone has none, and cannot get any
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // beyond the last capability there is
			}
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	if s.Become != 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(s.Become), syscall.Setuid(s.Become)); err != nil {
			return fmt.Errorf("become a stranger: %w", err)
		}
	}

	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	// Of all threads: the one that goes on as the program may be any of them.
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 &&
		errno != unix.ENOTSUP {
		return fmt.Errorf("no new privileges: %w", errno)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
