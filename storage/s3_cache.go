package storage

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// cache keeps objects on this machine's disk, by path and ETag: what is committed never changes, so what is here needs no
// question to the bucket. A reader has a name of its own for a file, and keeps it when the cache lets go of it. What goes
// wrong here costs a download and nothing else, so nothing here returns an error.
type cache struct {
	dir   string
	limit int64 // bytes; 0: nothing is kept

	mu   sync.Mutex
	used int64
}

const cached = ".parquet"

// openCache counts what an earlier process kept.
func openCache(dir string, limit int64) (*cache, error) {
	c := &cache{dir: dir, limit: limit}
	if limit == 0 {
		return c, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c.trim()
	return c, nil
}

func (c *cache) path(f File) string {
	sum := sha256.Sum256([]byte(f.Path + "\x00" + f.ETag))
	return filepath.Join(c.dir, hex.EncodeToString(sum[:])+cached)
}

// take makes a local file of what is kept, and reports whether it is.
func (c *cache) take(f File, local string) bool {
	if c.limit == 0 || f.ETag == "" {
		return false
	}
	kept := c.path(f)
	info, err := os.Stat(kept)
	if err != nil || info.Size() != f.Bytes {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(kept, now, now) // the order in which files go
	return secondFile(kept, local) == nil
}

// keep takes a local file with the object's content, which nobody writes to any more.
func (c *cache) keep(f File, local string) {
	if c.limit == 0 || f.ETag == "" || f.Bytes > c.limit/2 {
		return
	}
	if os.Chmod(local, 0o440) != nil || secondFile(local, c.path(f)) != nil {
		return
	}
	c.mu.Lock()
	c.used += f.Bytes
	over := c.used > c.limit
	c.mu.Unlock()
	if over {
		c.trim()
	}
}

// trim removes what was not read for longest until a tenth is free, where there is too much, and counts what is left.
func (c *cache) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	var kept []os.FileInfo
	c.used = 0
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if !strings.HasSuffix(info.Name(), cached) { // a copy that broke off, unless somebody makes it just now
			if time.Since(info.ModTime()) > time.Hour {
				_ = os.Remove(filepath.Join(c.dir, info.Name()))
			}
			continue
		}
		kept = append(kept, info)
		c.used += info.Size()
	}
	if c.used <= c.limit {
		return
	}
	slices.SortFunc(kept, func(a, b os.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	for _, info := range kept {
		if c.used <= c.limit/10*9 {
			return
		}
		if os.Remove(filepath.Join(c.dir, info.Name())) == nil {
			c.used -= info.Size()
		}
	}
}

// secondFile gives a file another name, or copies it where that is another file system.
func secondFile(name, other string) error {
	err := os.Link(name, other)
	if err == nil || errors.Is(err, os.ErrExist) {
		return err
	}
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(other), "copy-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Chmod(0o440), to.Close()); err != nil {
		return errors.Join(err, os.Remove(to.Name()))
	}
	return os.Rename(to.Name(), other)
}
