package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// WriteFile lets write fill a file. Whoever looks for the file finds all of it or nothing: it is written beside the
// place that it takes in one step. A symbolic link is followed, and a file that is there keeps its mode. A pipe or a
// device is written as it is, and so is standard output, whose path is "-".
func (c *CLI) WriteFile(path string, write func(to io.Writer) error) error {
	if path == "-" {
		return write(c.Out)
	}
	target, info, err := followed(path)
	switch {
	case err != nil:
		return fault.New(fault.Invalid, "%w", err)
	case info != nil && info.IsDir():
		return fault.New(fault.Invalid, "%s is a folder", path).WithHint("name a file in it")
	case info != nil && !info.Mode().IsRegular():
		return writeInto(target, write)
	}

	part := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+"-"+uuid.NewString())
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fault.New(fault.Invalid, "%w", aboutFile(path, err)).
			WithHint("name a file in a folder that exists and may be written")
	}
	defer os.Remove(part)
	defer f.Close()

	if err := write(f); err != nil {
		return aboutFile(path, err)
	}
	if info != nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(part, target)
	}
	if err != nil {
		return fault.New(fault.Invalid, "%w", aboutFile(path, err))
	}
	return nil
}

// aboutFile names the file that was asked for in an error about the one that is written in its place.
func aboutFile(path string, err error) error {
	var one *fs.PathError
	var two *os.LinkError
	switch {
	case errors.As(err, &one):
		return fmt.Errorf("write %s: %w", path, one.Err)
	case errors.As(err, &two):
		return fmt.Errorf("write %s: %w", path, two.Err)
	}
	return err
}

// writeInto writes to what is no file: a pipe, or a device.
func writeInto(path string, write func(to io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	return errors.Join(write(f), f.Close())
}

// followed returns what a path leads to, over symbolic links, and what is there; nil: nothing is.
func followed(path string) (string, fs.FileInfo, error) {
	const most = 40
	for range most {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path, nil, nil
		case err != nil:
			return path, nil, err
		case info.Mode()&fs.ModeSymlink == 0:
			return path, info, nil
		}

		next, err := os.Readlink(path)
		if err != nil {
			return path, nil, err
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(path), next)
		}
		path = next
	}
	return path, nil, fmt.Errorf("%s: more than %d symbolic links in a row", path, most)
}

// Counted returns a writer that shows on a terminal how much has passed. Call end when it is done.
func (c *CLI) Counted(to io.Writer, size func(bytes int64) string) (counted io.Writer, end func()) {
	if !IsTerminal(c.Err) || IsTerminal(to) {
		return to, func() {}
	}
	n := &counting{to: to, err: c.Err, size: size}
	return n, func() {
		if n.shown {
			fmt.Fprint(c.Err, "\r\x1b[K")
		}
	}
}

// counting counts what is written.
type counting struct {
	to, err io.Writer
	size    func(bytes int64) string
	bytes   int64
	at      time.Time // of the last line
	shown   bool
}

// Write implements io.Writer.
func (n *counting) Write(p []byte) (int, error) {
	written, err := n.to.Write(p)
	n.bytes += int64(written)
	if now := time.Now(); now.Sub(n.at) > 200*time.Millisecond {
		n.at, n.shown = now, true
		fmt.Fprintf(n.err, "\r\x1b[K%s so far", n.size(n.bytes))
	}
	return written, err
}
