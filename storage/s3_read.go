package storage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/dagctl/dagctl/internal/fault"
)

// DuckDB reads local files, so objects are copied to this machine first and checked against the committed list.

func (b *bucket) open(ctx context.Context, g Generation, partitions []Partition, dir string) ([][]string, error) {
	var all []File
	for _, p := range partitions {
		all = append(all, p.Files...)
	}
	local, err := b.fetch(ctx, g, all, dir)
	if err != nil {
		return nil, err
	}
	out := make([][]string, len(partitions))
	for i, p := range partitions {
		out[i], local = local[:len(p.Files):len(p.Files)], local[len(p.Files):]
	}
	return out, nil
}

func (b *bucket) openSealed(ctx context.Context, g Generation, m Manifest, dir string) ([]string, error) {
	return b.fetch(ctx, g, m.Files, dir)
}

// fetch copies committed files of a generation to the folder, from the cache if possible.
func (b *bucket) fetch(ctx context.Context, g Generation, list []File, dir string) ([]string, error) {
	if err := ofGeneration(g, list); err != nil {
		return nil, err
	}

	local := make([]string, len(list))
	return local, inParallel(ctx, len(list), func(ctx context.Context, i int) error {
		file := list[i]
		if err := plainPath(file.Path); err != nil {
			return err
		}

		local[i] = filepath.Join(dir, localName(file, i))
		if b.cache.take(file, local[i]) {
			return nil
		}
		if err := b.downloadCommitted(ctx, file, local[i]); err != nil {
			return err
		}
		b.cache.keep(file, local[i])
		return nil
	})
}

// downloadCommitted makes a local file of a committed object. One with another ETag may be a copy that somebody has
// brought back: then its content decides.
func (b *bucket) downloadCommitted(ctx context.Context, file File, local string) error {
	key := b.key(file.Path)
	changed := b.download(ctx, key, Upload{Bytes: file.Bytes, ETag: file.ETag}, local)
	if !fault.Is(changed, fault.Conflict) || file.SHA256 == "" {
		return changed
	}
	have, err := b.look(ctx, key)
	if err != nil {
		return err
	}
	if have.bytes != file.Bytes {
		return changed
	}

	if err := b.download(ctx, key, Upload{Bytes: have.bytes, ETag: have.etag}, local); err != nil {
		return err
	}
	sum, err := sha256Of(local)
	if err == nil && sum == file.SHA256 {
		return nil
	}
	return errors.Join(cmp.Or(err, changed), os.Remove(local))
}

// sha256Of returns the hash of a local file's content, in hex.
func sha256Of(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return hex.EncodeToString(hash.Sum(nil)), err
}

// localName returns a name that differs for each place in a list and each file, because a folder may be used twice.
func localName(f File, place int) string {
	sum := sha256.Sum256([]byte(f.Path))
	return fmt.Sprintf("%05d-%s.parquet", place, hex.EncodeToString(sum[:8]))
}

// rangeBytes is how much of an object one request reads.
const rangeBytes = 32 << 20

// download makes a local file of an object that has the given size and ETag. S3 itself compares the ETag with the
// object that it reads from.
func (b *bucket) download(ctx context.Context, key string, want Upload, local string) error {
	file, err := os.OpenFile(local, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = inParallel(ctx, int(max(1, (want.Bytes+rangeBytes-1)/rangeBytes)), func(ctx context.Context, i int) error {
		from := int64(i) * rangeBytes
		return b.read(ctx, key, want, from, min(rangeBytes, want.Bytes-from), file)
	})
	if err == nil { // committed files never change
		err = file.Chmod(0o440)
	}

	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(local))
	}
	return nil
}

// read copies a range of an object to the same range of a file.
func (b *bucket) read(ctx context.Context, key string, want Upload, from, size int64, file *os.File) error {
	in := &s3.GetObjectInput{Bucket: &b.Bucket, Key: &key}
	if want.ETag != "" {
		in.IfMatch = aws.String(`"` + want.ETag + `"`)
	}
	if size < want.Bytes {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", from, from+size-1))
	}

	const tries = 3 // the SDK repeats requests without an answer; these are for answers that were cut short
	var err error
	for range tries {
		var out *s3.GetObjectOutput
		if out, err = b.client.GetObject(ctx, in); err != nil {
			return b.failed(ctx, "read", key, err)
		}
		if total, ok := totalBytes(out); ok && total != want.Bytes {
			out.Body.Close()
			return fault.New(fault.Conflict, "object %s of bucket %s has %d bytes, but %d were committed", key,
				b.Bucket,
				total, want.Bytes)
		}

		var n int64
		n, err = io.Copy(io.NewOffsetWriter(file, from), io.LimitReader(out.Body, size+1))
		err = errors.Join(err, out.Body.Close())
		if err == nil && n != size {
			err = fmt.Errorf("the answer was cut short after %d of %d bytes", n, size)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return b.failed(ctx, "read", key, err)
}

// totalBytes returns the size of the object that an answer is part of.
func totalBytes(out *s3.GetObjectOutput) (total int64, known bool) {
	if out.ContentRange == nil {
		return aws.ToInt64(out.ContentLength), out.ContentLength != nil
	}
	var first, last int64
	_, err := fmt.Sscanf(*out.ContentRange, "bytes %d-%d/%d", &first, &last, &total)
	return total, err == nil
}

// plainPath returns an error for a path that could lead elsewhere.
func plainPath(name string) error {
	if name != path.Clean(name) || !fs.ValidPath(name) {
		return fault.New(fault.Invalid, "file %q is not a plain relative path", name)
	}
	return nil
}
