package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// The folders of engines have names that begin with folderPrefix. A server holds a lock on each of its own, so that
// others, which may share the parent, know those that nobody uses any more.
const (
	folderPrefix = "engine-"
	lockName     = "lock"
	// young is the age up to which a folder without a lock may be one that is being made.
	young = time.Minute
)

// makeFolder makes the folder of an engine: in/ for what it reads, out/ for what it writes, spill/ for what does not
// fit into its memory.
func makeFolder(parent string) (dir string, lock *os.File, err error) {
	if dir, err = os.MkdirTemp(parent, folderPrefix+"*"); err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()

	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	for _, part := range []string{"in", "out", "spill"} {
		if err := os.Mkdir(filepath.Join(dir, part), 0o700); err != nil {
			return "", nil, err
		}
	}

	if lock, err = os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	return dir, lock, nil
}

// sweep removes the folders of engines whose servers were killed.
func sweep(parent string) error {
	left, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := sweepFolder(dir); err != nil {
			return fmt.Errorf("remove the folder of an engine that is gone: %w", err)
		}
	}
	return nil
}

func sweepFolder(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < young {
			return nil
		}
		return os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil // its server lives
	}
	return os.RemoveAll(dir)
}
