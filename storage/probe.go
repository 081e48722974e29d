package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/child"
	"github.com/dagctl/dagctl/internal/fault"
)

// Unusable is the error of a storage that cannot do now what every task needs of it, whatever the task is.
type Unusable struct {
	Reason string // short, without names of folders and buckets: everybody may read it
	Err    error
	Until  string // when it may end by itself, in the same manner; empty: nobody knows
}

func (u *Unusable) Error() string { return u.Err.Error() }
func (u *Unusable) Unwrap() error { return u.Err }

// The reasons for which a storage cannot be used.
const (
	reasonFull     = "the storage is full"
	reasonReadOnly = "the storage can only be read"
	reasonRefused  = "the storage refuses this server"
	reasonBroken   = "the storage cannot be written and read"
	reasonNoBucket = "the bucket of the storage does not exist"
	ReasonSilent   = "the storage does not answer"
)

// A folder counts as full before its last byte is written: the probe is small, and tasks are not.
const (
	leastFree = 64 << 20
	leastPart = 50 // of a small file system, one part in so many
)

// Probe writes, reads and removes something small, in the folder and in the bucket if there is one. Its error is an
// *Unusable.
func (s *Storage) Probe(ctx context.Context) error {
	name := ".probe-" + rand.Text()
	if err := s.files.probe(name); err != nil {
		return unusable(err)
	}
	if s.s3 != nil {
		if err := s.s3.probe(ctx, name); err != nil {
			return unusable(err)
		}
	}
	return nil
}

// unusable gives an error of a probe its reason.
func unusable(err error) error {
	var known *Unusable
	switch {
	case errors.As(err, &known):
		return &Unusable{Reason: known.Reason, Err: err}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &Unusable{Reason: reasonFull, Err: err}
	case errors.Is(err, unix.EROFS):
		return &Unusable{Reason: reasonReadOnly, Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &Unusable{Reason: reasonRefused, Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Unusable{Reason: ReasonSilent, Err: err}
	}
	return &Unusable{Reason: reasonBroken, Err: err}
}

var probeText = []byte("dagctl writes this to see whether it can, and removes it\n")

func (f *files) probe(name string) error {
	if err := f.roomLeft(); err != nil {
		return err
	}

	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(probeText)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		var read []byte
		if read, err = f.root.ReadFile(name); err == nil && !bytes.Equal(read, probeText) {
			err = fmt.Errorf("%s does not hold what was written to it", name)
		}
	}
	return errors.Join(err, f.root.Remove(name))
}

// roomLeft returns an error if the folder's file system is full, or about to be.
func (f *files) roomLeft() error {
	free, total, err := f.room()
	if err != nil || total == 0 {
		return err
	}
	return f.lacks(free, min(leastFree, total/leastPart))
}

// room returns the free bytes of the folder's file system and all that it has; 0, if it does not say.
func (f *files) room() (free, total uint64, err error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.top.Fd()), &stat); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: f.root.Name(), Err: err}
	}
	block := uint64(stat.Bsize)
	return uint64(stat.Bavail) * block, uint64(stat.Blocks) * block, nil
}

// lacks returns an error if less is free than has to be.
func (f *files) lacks(free, least uint64) error {
	if free >= least {
		return nil
	}
	return fmt.Errorf("%s has %d bytes left, and needs %d: %w", f.root.Name(), free, least, unix.ENOSPC)
}

// Room returns how many bytes are free in the file system of the folder and how many it has in all; 0, if it does not
// say.
func (s *Storage) Room() (free, total uint64, err error) { return s.files.room() }

// Fits returns an *Unusable if less is free in the file system of the folder than has to be.
func (s *Storage) Fits(least uint64) error {
	free, total, err := s.files.room()
	if err == nil && total > 0 {
		err = s.files.lacks(free, least)
	}
	if err == nil {
		return nil
	}
	return unusable(err)
}

func (b *bucket) probe(ctx context.Context, name string) error {
	key := b.key(name)
	if err := b.writeSmall(ctx, key, probeText, true); err != nil {
		return err
	}

	read, err := b.readSmall(ctx, key)
	if err == nil && !bytes.Equal(read, probeText) {
		err = fmt.Errorf("object %s does not hold what was written to it", key)
	}
	return errors.Join(err, b.remove(ctx, key))
}

// writeSmall writes a whole object; once: unless there is one, which is a Conflict.
func (b *bucket) writeSmall(ctx context.Context, key string, text []byte, once bool) error {
	in := &s3.PutObjectInput{Bucket: &b.Bucket, Key: &key, Body: bytes.NewReader(text)}
	if once {
		in.IfNoneMatch = aws.String("*")
	}
	_, err := b.client.PutObject(ctx, in)
	return b.failed(ctx, "write", key, err)
}

func (b *bucket) remove(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Bucket, Key: &key})
	return b.failed(ctx, "remove", key, err)
}

// readSmall reads the beginning of an object.
func (b *bucket) readSmall(ctx context.Context, key string) ([]byte, error) {
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: &key})
	if err != nil {
		return nil, b.failed(ctx, "read", key, err)
	}
	defer out.Body.Close()
	text, err := io.ReadAll(io.LimitReader(out.Body, 4<<10))
	return text, b.failed(ctx, "read", key, err)
}

// MayBeUnusable reports whether an error of a task may be the storage's: a probe tells. What a program or DuckDB says
// is only text.
func MayBeUnusable(err error) bool {
	var known *Unusable
	if errors.As(err, &known) {
		return true
	}
	for _, is := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EACCES, unix.EPERM, unix.EIO, unix.ESTALE,
		unix.ENOENT, unix.ENOTDIR, unix.ENOTCONN} {
		if errors.Is(err, is) {
			return true
		}
	}

	return child.SaidIn(fault.Text(err), unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EACCES, unix.EIO) != nil
}

// NotWritten returns the reason for which a file system took nothing that was written, whatever the task was; empty: it
// was not that, or it was not the storage's file system. room: it had too little of it.
func NotWritten(err error) (reason string, room bool) {
	var other elsewhere
	switch {
	case errors.As(err, &other):
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return reasonFull, true
	case errors.Is(err, unix.EROFS):
		return reasonReadOnly, false
	case errors.Is(err, unix.EIO):
		return reasonBroken, false
	}
	return "", false
}

// Elsewhere marks the error of a file system that is none of the storage's.
func Elsewhere(err error) error {
	if err == nil {
		return nil
	}
	return elsewhere{err}
}

type elsewhere struct{ error }

func (e elsewhere) Unwrap() error { return e.error }

// bucketAway returns the reason for which a bucket cannot be used, given how it answered a request; empty: it can.
func bucketAway(code string, status int) string {
	switch {
	case code == "NoSuchBucket":
		return reasonNoBucket
	case code == "InvalidAccessKeyId", status == http.StatusForbidden, status == http.StatusUnauthorized:
		return reasonRefused
	case status == 0, status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
		return ReasonSilent
	}
	return ""
}
