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

// cache keeps objects on this machine's disk, by path and ETag. Committed objects never change, so a cached one needs
// no request. A reader gets a file name of its own, which stays valid when the cache drops the file. A failure costs
// no more than a download, so no function here returns an error.
type cache struct {
	dir   string
	limit int64 // bytes; 0: no cache

	mu   sync.Mutex
	used int64
}

const cached = ".parquet"

// openCache opens the cache and measures what an earlier process has left in it.
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

// take makes a local file of a cached object and reports whether the cache has it.
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
	_ = os.Chtimes(kept, now, now) // trim removes files in this order
	return secondFile(kept, local) == nil
}

// keep adds a local file with an object's content, which nobody may write to any more.
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

// trim removes the least recently used files until a tenth is free, if there is too much, and measures what is left.
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
		if !strings.HasSuffix(info.Name(), cached) { // an interrupted copy, unless somebody is making it now
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
	slices.SortFunc(kept, func(a, b os.FileInfo) int {
		return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano())
	})

	for _, info := range kept {
		if c.used <= c.limit/10*9 {
			return
		}
		if os.Remove(filepath.Join(c.dir, info.Name())) == nil {
			c.used -= info.Size()
		}
	}
}

// secondFile gives a file another name, or copies it to another file system.
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
