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
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"

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
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.top.Fd()), &stat); err != nil {
		return &fs.PathError{Op: "statfs", Path: f.root.Name(), Err: err}
	}
	if stat.Blocks == 0 {
		return nil // it does not say
	}
	block := uint64(stat.Bsize)
	total, free := uint64(stat.Blocks)*block, uint64(stat.Bavail)*block
	if least := min(leastFree, total/leastPart); free < least {
		return fmt.Errorf("%s has %d bytes left, and needs %d: %w", f.root.Name(), free, least, unix.ENOSPC)
	}
	return nil
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

	text := strings.ToLower(fault.Text(err))
	for _, is := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EACCES, unix.EIO} {
		if strings.Contains(text, is.Error()) {
			return true
		}
	}
	return false
}

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
