// Package workdir makes folders that are removed once nobody uses them, even if the process that made them is killed. A
// folder NAME has a file NAME.lock beside it, which its process holds a lock on. Processes that share the parent know
// by it which folders nobody uses any more. It owns no tables.
package workdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const lockSuffix = ".lock"

// Temporary begins the names of folders for what one call needs, below the system's folder for temporary files.
const Temporary = "dagctl-call-"

// old is the age from which on a folder that has no lock belongs to nobody: it may be one that is being made, or that a
// process of an older version uses.
const old = 24 * time.Hour

// Dir is a folder that this process uses.
type Dir struct {
	Path string // absolute
	lock *os.File
}

// Make makes a folder below parent, or below the system's folder for temporary files. Its name begins with prefix.
func Make(parent, prefix string) (*Dir, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, err
	}

	for {
		file, err := os.CreateTemp(parent, prefix+"*"+lockSuffix)
		if err != nil {
			return nil, err
		}
		if err := lock(file); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close(), os.Remove(file.Name()))
		}
		if !stands(file) { // a sweep came between
			_ = file.Close()
			continue
		}

		f := &Dir{Path: strings.TrimSuffix(file.Name(), lockSuffix), lock: file}
		if err := os.Mkdir(f.Path, 0o700); err != nil {
			return nil, errors.Join(err, os.Remove(file.Name()), file.Close())
		}
		return f, nil
	}
}

// stands reports whether a file is still where it was opened.
func stands(file *os.File) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(file.Name())
	return err == nil && os.SameFile(open, there)
}

// Remove removes the folder with all that is in it.
func (f *Dir) Remove() error {
	return errors.Join(os.RemoveAll(f.Path), release(f.lock))
}

// Sweep removes the folders below parent with a prefix whose processes have ended without removing them.
func Sweep(parent, prefix string) error {
	if parent == "" {
		parent = os.TempDir()
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("remove folders that nobody uses: %w", err)
	}

	var failed []error
	for _, entry := range entries {
		name := filepath.Join(parent, entry.Name())
		switch {
		case !strings.HasPrefix(entry.Name(), prefix):
		case strings.HasSuffix(name, lockSuffix) && entry.Type().IsRegular():
			failed = append(failed, sweep(name))
		case entry.IsDir():
			failed = append(failed, sweepUnlocked(name))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("remove folders that nobody uses: %w", err)
	}
	return nil
}

// sweep removes the folder of a lock that nobody holds.
func sweep(name string) error {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil // removed meanwhile, or another user's
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if !free(file) || !stands(file) {
		return nil // its process lives
	}
	return errors.Join(os.RemoveAll(strings.TrimSuffix(name, lockSuffix)), os.Remove(name))
}

// sweepUnlocked removes a folder without a lock that is old.
func sweepUnlocked(name string) error {
	info, err := os.Stat(name)
	if err != nil || time.Since(info.ModTime()) < old {
		return nil
	}
	if _, err := os.Stat(name + lockSuffix); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return os.RemoveAll(name)
}
