package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// An engine sees nothing but its folder. What it reads is linked into in/, where it cannot write; it writes to out/,
// and what it wrote is moved from there.

// In gives the engine files to read, and returns their paths inside.
func (g *Engine) In(files ...string) ([]string, error) {
	inside := make([]string, len(files))
	for i, file := range files {
		g.linked++
		inside[i] = filepath.Join(g.dir, "in", fmt.Sprintf("%d%s", g.linked, endOf(file)))
		if err := place(file, inside[i]); err != nil {
			return nil, fmt.Errorf("give an engine a file: %w", err)
		}
	}
	return inside, nil
}

// Out returns the path inside of a file that the engine is to write.
func (g *Engine) Out(name string) string { return filepath.Join(g.dir, "out", name) }

// Own returns a new folder that the engine does not see, for what is made to be given to it. It vanishes with the work.
func (g *Engine) Own() (string, error) {
	parent := filepath.Join(g.dir, "own")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(parent, "")
}

// Fetch moves a file that the engine wrote out of its folder.
func (g *Engine) Fetch(inside, target string) error {
	info, err := os.Lstat(inside)
	if err != nil {
		return fmt.Errorf("take what an engine wrote: %w", err)
	}
	if !info.Mode().IsRegular() {
		return errors.New("take what an engine wrote: it is no file")
	}
	if os.Rename(inside, target) == nil {
		return nil
	}
	if err := CopyFile(inside, target, 0o600); err != nil {
		return fmt.Errorf("take what an engine wrote: %w", err)
	}
	return os.Remove(inside)
}

// clear removes what is in the folder.
func (g *Engine) clear() error {
	if err := os.RemoveAll(filepath.Join(g.dir, "own")); err != nil {
		return err
	}

	for _, part := range []string{"in", "out"} {
		dir := filepath.Join(g.dir, part)
		left, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range left {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// endOf returns the end of a file's name that says how it is read: ".parquet", ".gz", ".csv.zst".
func endOf(file string) string {
	name := filepath.Base(file)
	end := filepath.Ext(name)
	if more := filepath.Ext(name[:len(name)-len(end)]); end == ".gz" || end == ".zst" {
		end = more + end
	}
	return end
}

// place links a file; on another file system it copies it. A symbolic link is no file: it may lead anywhere.
func place(file, target string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", filepath.Base(file))
	}
	if os.Link(file, target) == nil {
		return nil
	}
	return CopyFile(file, target, 0o600)
}

// CopyFile copies a file to a new one with a mode.
func CopyFile(file, target string, mode os.FileMode) error {
	source, err := os.Open(file)
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, source)
	return errors.Join(err, copied.Close())
}
