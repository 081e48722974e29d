package operators

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// hashCache remembers the content hashes of files whose size, mtime and inode have not changed, so that polling a large
// folder reads no file twice.
type hashCache struct {
	mu     sync.Mutex
	hashes map[fileIdentity]string
}

type fileIdentity struct {
	path     string // absolute
	size     int64
	modified int64 // nanoseconds
	inode    uint64
}

// maxHashes bounds the memory; a full cache is emptied.
const maxHashes = 100_000

func newHashCache() *hashCache { return &hashCache{hashes: map[fileIdentity]string{}} }

func (c *hashCache) hash(ctx context.Context, root *os.Root, name string, now time.Time) (string, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	id := fileIdentity{path: filepath.Join(root.Name(), name), size: info.Size(), modified: info.ModTime().UnixNano()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id.inode = stat.Ino
	}

	c.mu.Lock()
	known, ok := c.hashes[id]
	c.mu.Unlock()
	if ok {
		return known, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, contextReader{ctx, f}); err != nil {
		return "", err
	}

	sum := hex.EncodeToString(h.Sum(nil))
	if now.Sub(info.ModTime()) >= settled {
		c.mu.Lock()
		if len(c.hashes) >= maxHashes {
			clear(c.hashes)
		}
		c.hashes[id] = sum
		c.mu.Unlock()
	}
	return sum, nil
}
