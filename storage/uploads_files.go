package storage

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// unfinished is the prefix of the name of an upload that is being written. No finished upload has it.
const unfinished = "%"

// putUpload writes a temporary file and then gives it its name, which fails if the name is taken. The ETag is the
// SHA-256 of the content.
func (f *files) putUpload(ctx context.Context, key string, r io.Reader, limit int64) (Upload, error) {
	temporary := path.Join(path.Dir(key), unfinished+rand.Text())
	file, err := f.createUpload(temporary)
	if err != nil {
		return Upload{}, err
	}
	defer f.root.Remove(temporary)

	written, err := writeUpload(ctx, file, r, limit)
	if err != nil {
		return Upload{}, err
	}
	written.Name = path.Base(key)
	err = f.root.Link(temporary, key)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) { // a file system without hard links
		if _, err = f.root.Lstat(key); errors.Is(err, fs.ErrNotExist) {
			err = f.root.Rename(temporary, key)
		} else if err == nil {
			err = fs.ErrExist
		}
	}
	if errors.Is(err, fs.ErrExist) {
		there, err := f.upload(key)
		if err != nil {
			return Upload{}, err
		}
		if there != written {
			return Upload{}, uploadedAlready()
		}
	} else if err != nil {
		return Upload{}, err
	}
	return written, f.syncParents(key)
}

// createUpload retries when dropping another upload removes a folder that existed a moment ago.
func (f *files) createUpload(name string) (file *os.File, err error) {
	for range 10 {
		if err = f.root.MkdirAll(path.Dir(name), 0o750); err == nil {
			file, err = f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o440)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return file, err
}

func writeUpload(ctx context.Context, file *os.File, r io.Reader, limit int64) (Upload, error) {
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, hash), &limited{r: r, left: limit, limit: limit})
	if err == nil {
		err = context.Cause(ctx)
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return Upload{}, err
	}
	return Upload{Bytes: n, ETag: hex.EncodeToString(hash.Sum(nil))}, nil
}

// upload returns the upload under a key.
func (f *files) upload(key string) (Upload, error) {
	file, err := f.root.Open(key)
	if errors.Is(err, fs.ErrNotExist) {
		return Upload{}, fault.New(fault.NotFound, "it does not exist")
	}
	if err != nil {
		return Upload{}, err
	}
	defer file.Close()
	return measureUpload(path.Base(key), file)
}

func measureUpload(name string, file *os.File) (Upload, error) {
	hash := sha256.New()
	n, err := io.Copy(hash, file)
	return Upload{Name: name, Bytes: n, ETag: hex.EncodeToString(hash.Sum(nil))}, err
}

func (f *files) listUploads(ctx context.Context, prefix string) ([]Upload, error) {
	entries, err := fs.ReadDir(f.root.FS(), path.Clean(prefix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	var list []Upload
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if entry.Type().IsRegular() && entry.Name()[:1] != unfinished {
			u, err := f.upload(prefix + entry.Name())
			if err != nil {
				return nil, err
			}
			list = append(list, u)
		}
	}
	return list, nil
}

// fetchUpload gives the file a second name, which needs no copy on the same file system.
func (f *files) fetchUpload(_ context.Context, key string, want Upload, local string) error {
	if _, err := f.stat(key); err != nil {
		return err
	}
	err := os.Link(filepath.Join(f.root.Name(), filepath.FromSlash(key)), local)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		err = f.copyOut(key, local)
	}
	if err != nil {
		return err
	}

	file, err := os.Open(local)
	if err != nil {
		return err
	}
	defer file.Close()

	have, err := measureUpload(want.Name, file)
	if err != nil {
		return err
	}
	return checkUpload(have, want)
}

func checkUpload(have, want Upload) error {
	if have.Bytes != want.Bytes || want.ETag != "" && have.ETag != want.ETag {
		return fault.New(fault.Conflict, "it has %d bytes and ETag %s, not %d and %s", have.Bytes, have.ETag,
			want.Bytes, want.ETag)
	}
	return nil
}

func (f *files) copyOut(name, local string) error {
	from, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(local, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

func (f *files) uploadTimes(ctx context.Context, prefix string) (map[string]time.Time, error) {
	times := map[string]time.Time{}
	err := fs.WalkDir(f.root.FS(), path.Clean(prefix), func(name string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) { // it was dropped meanwhile
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}

		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			times[name] = info.ModTime()
		}
		return err
	})
	return times, err
}

func (f *files) dropUpload(_ context.Context, key string) error {
	return f.root.RemoveAll(key)
}

// dropUploads also removes the folders of the task and of the org once they are empty.
func (f *files) dropUploads(_ context.Context, prefix string) error {
	dir := path.Clean(prefix)
	if err := f.root.RemoveAll(dir); err != nil {
		return err
	}
	for range 2 {
		dir = path.Dir(dir)
		if err := f.root.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break // somebody uploads, or access failed; an empty folder does no harm
		}
	}
	return nil
}
