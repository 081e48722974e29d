package storage

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Every task that publishes creates folders and looks at files, so this file uses system calls: os.Root walks down from
// the root again for each name, and an attempt's path has five parts. No link leads out of the folder here either,
// because none is followed.

// chain is the open folders from the root down to one folder.
type chain []int

// descend opens a folder and all folders above it, creating missing ones.
func (f *files) descend(dir string) (_ chain, err error) {
	c := chain{int(f.top.Fd())}
	for part := range strings.SplitSeq(dir, "/") {
		above := c[len(c)-1]

		fd, err := openFolder(above, part)
		if errors.Is(err, unix.ENOENT) {
			if err = makeFolder(above, part); err == nil {
				fd, err = openFolder(above, part)
			}
		}
		if err != nil {
			c.close()
			return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
		}

		c = append(c, fd)
	}
	return c, nil
}

func openFolder(above int, name string) (fd int, err error) {
	err = uninterrupted(func() error {
		fd, err = unix.Openat(above, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// makeFolder creates a folder. It is no error if somebody else has just done so.
func makeFolder(above int, name string) error {
	err := uninterrupted(func() error { return unix.Mkdirat(above, name, 0o750) })
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// uninterrupted retries a system call that a signal interrupts, as package os does.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// last returns the lowest folder.
func (c chain) last() int { return c[len(c)-1] }

// close closes all but the root, which stays open.
func (c chain) close() {
	for _, fd := range c[1:] {
		_ = unix.Close(fd) // nothing was written through it
	}
}

// sync makes the entries of the folders durable, the lowest first.
func (c chain) sync() error {
	for _, fd := range slices.Backward(c) {
		if err := uninterrupted(func() error { return unix.Fsync(fd) }); err != nil {
			return err
		}
	}
	return nil
}

// sealFolder lets fill put files into a new folder, which appears under its name when all files are there and durable.
// An existing folder of that name must have the same files.
func (f *files) sealFolder(final, temporary string, fill func(dir int) error) error {
	above, err := f.descend(path.Dir(final))
	if err != nil {
		return err
	}
	defer above.close()

	if err := makeFolder(above.last(), path.Base(temporary)); err != nil {
		return &fs.PathError{Op: "mkdir", Path: temporary, Err: err}
	}
	named := false
	defer func() {
		if !named {
			_ = f.root.RemoveAll(temporary) // discard removes what is left
		}
	}()

	dir, err := openFolder(above.last(), path.Base(temporary))
	if err != nil {
		return &fs.PathError{Op: "open", Path: temporary, Err: err}
	}
	defer unix.Close(dir)

	if err := fill(dir); err != nil {
		return err
	}
	if err := uninterrupted(func() error { return unix.Fsync(dir) }); err != nil {
		return &fs.PathError{Op: "sync", Path: temporary, Err: err}
	}

	err = uninterrupted(func() error {
		return unix.Renameat(above.last(), path.Base(temporary), above.last(), path.Base(final))
	})
	switch {
	case err == nil:
		named = true
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTEMPTY):
		if same, err := f.sameFiles(temporary, final); err != nil || !same {
			return errors.Join(errOtherFiles, err)
		}
	default:
		return &fs.PathError{Op: "rename", Path: temporary, Err: err}
	}
	return above.sync()
}

// size returns the size of a regular file.
func (f *files) size(name string) (bytes int64, regular bool, err error) {
	if bytes, regular, ok := sizeBeneath(int(f.top.Fd()), name); ok {
		return bytes, regular, nil
	}
	info, err := f.root.Stat(filepath.FromSlash(name)) // it decides what is missing or is a link
	if err != nil {
		return 0, false, err
	}
	return info.Size(), info.Mode().IsRegular(), nil
}

// close closes the root.
func (f *files) close() error { return errors.Join(f.top.Close(), f.root.Close()) }

// openTop opens the folder of a root.
func openTop(root *os.Root) (*os.File, error) { return root.Open(".") }
