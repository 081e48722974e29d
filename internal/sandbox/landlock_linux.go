//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock keeps a process from files, without any rights and without namespaces: docs.kernel.org/userspace-api/
// landlock.html. What it does not cover, such as the mode and the times of a file, the filter of system calls does.

// landlockABI is the version of Landlock that the kernel has, or 0.
var landlockABI = sync.OnceValue(func() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
})

const (
	readsFiles = unix.LANDLOCK_ACCESS_FS_READ_FILE
	reads      = readsFiles | unix.LANDLOCK_ACCESS_FS_READ_DIR
	runs       = reads | unix.LANDLOCK_ACCESS_FS_EXECUTE
	writes     = reads | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO
	ofFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | readsFiles | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// handled are the accesses that each version of Landlock began to know, all of which are refused unless a rule allows
// them.
func handled(abi int) unix.LandlockRulesetAttr {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1}
	for since, access := range map[int]uint64{2: unix.LANDLOCK_ACCESS_FS_REFER, 3: unix.LANDLOCK_ACCESS_FS_TRUNCATE,
		5: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, 9: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX} {
		if abi >= since {
			attr.Handled_access_fs |= access
		}
	}
	return attr
}

// ruleset is a wall around files that is not put up yet.
type ruleset struct {
	fd     int
	access uint64 // that it handles
}

func newRuleset(attr unix.LandlockRulesetAttr) (ruleset, error) {
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return ruleset{}, fmt.Errorf("landlock: make a ruleset: %w", errno)
	}
	return ruleset{int(fd), attr.Handled_access_fs}, nil
}

func (r ruleset) close() { _ = unix.Close(r.fd) }

// allow permits an access to a file, or to a folder and all that is below it.
func (r ruleset) allow(path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}

	if info.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= ofFiles
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access & r.access, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock: allow %s: %w", path, errno)
	}
	return nil
}

// allowExcept permits an access to a folder, but not to what is hidden below it. A rule holds for all that is below its
// folder, so there it is made for each of the other entries, as they are now.
func (r ruleset) allowExcept(path string, access uint64, hidden []string) error {
	covers := false
	for _, secret := range hidden {
		switch inside, err := filepath.Rel(path, secret); {
		case err != nil || !filepath.IsLocal(inside):
		case inside == ".":
			return nil
		default:
			covers = true
		}
	}
	if !covers {
		return r.allow(path, access)
	}

	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSymlink != 0 {
			continue // it may lead anywhere; where it leads has its own rule, or none
		}
		err := r.allowExcept(filepath.Join(path, entry.Name()), access, hidden)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// allowAll permits what walls list, and what some programs need and some machines have.
func (r ruleset) allowAll(w Walls, optional map[string]uint64) error {
	for access, paths := range map[uint64][]string{reads: w.Read, writes: w.Write, runs: w.Exec} {
		for _, path := range paths {
			if err := r.allowExcept(path, access, w.Hidden); err != nil {
				return err
			}
		}
	}
	for path, access := range optional {
		if err := r.allow(path, access); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// enforce puts the wall up around the calling thread, and all that it starts.
func (r ruleset) enforce() error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); errno != 0 {
		return fmt.Errorf("landlock: restrict the thread: %w", errno)
	}
	return nil
}
