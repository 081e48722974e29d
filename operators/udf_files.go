package operators

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// moveOut moves the regular files out of a folder below work, in which untrusted code, which no longer runs, wrote what
// it liked. Links could lead anywhere, so they are not followed and stay behind.
func moveOut(work, below, to string) error {
	dir := work
	for _, part := range strings.Split(below, "/") {
		dir = filepath.Join(dir, part)
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			return fault.New(fault.Invalid, "folder %s of the task was removed or replaced", below)
		}
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		target := filepath.Join(to, entry.Name())
		if err := os.Rename(filepath.Join(dir, entry.Name()), target); err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			if err := os.Lchown(target, 0, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func readHead(name string, n int) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	head := make([]byte, n)
	read, err := io.ReadFull(file, head)
	if err == io.ErrUnexpectedEOF {
		err = nil
	}
	return string(head[:read]), err
}

func isRegular(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.Mode().IsRegular()
}
