package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/dagctl/dagctl/internal/fault"
)

// putUpload writes to a nameless local file first, because a request to S3 begins with the size and hash of its
// content.
func (b *bucket) putUpload(ctx context.Context, key string, r io.Reader, limit int64) (Upload, error) {
	spool, err := os.CreateTemp(b.work.Name(), ".upload-*")
	if err != nil {
		return Upload{}, err
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil {
		return Upload{}, err
	}

	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(spool, hash), &limited{r: r, left: limit, limit: limit})
	if err != nil {
		return Upload{}, err
	}

	etag, err := b.put(ctx, b.key(key), spool, object{bytes: n, sha256: hex.EncodeToString(hash.Sum(nil))})
	if fault.Is(err, fault.Conflict) {
		return Upload{}, uploadedAlready()
	}
	return Upload{Name: path.Base(key), Bytes: n, ETag: etag}, err
}

func (b *bucket) listUploads(ctx context.Context, prefix string) ([]Upload, error) {
	objects, err := b.list(ctx, b.key(prefix))
	if err != nil {
		return nil, err
	}
	var list []Upload
	for _, o := range objects {
		name := strings.TrimPrefix(b.name(*o.Key), prefix)
		if !strings.Contains(name, "/") {
			list = append(list, Upload{Name: name, Bytes: aws.ToInt64(o.Size), ETag: unquote(o.ETag)})
		}
	}
	return list, nil
}

func (b *bucket) fetchUpload(ctx context.Context, key string, want Upload, local string) error {
	err := b.download(ctx, b.key(key), want, local)
	switch {
	case fault.Is(err, fault.NotFound):
		return fault.New(fault.NotFound, "it does not exist")
	case fault.Is(err, fault.Conflict):
		return errors.Join(fault.New(fault.Conflict, "it is not the file of %d bytes and ETag %s", want.Bytes,
			want.ETag), err)
	}
	return err
}

func (b *bucket) uploadTimes(ctx context.Context, prefix string) (map[string]time.Time, error) {
	objects, err := b.list(ctx, b.key(prefix))
	if err != nil {
		return nil, err
	}
	times := map[string]time.Time{}
	for _, o := range objects {
		times[b.name(*o.Key)] = aws.ToTime(o.LastModified)
	}
	return times, nil
}

func (b *bucket) dropUpload(ctx context.Context, name string) error {
	key := b.key(name)
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Bucket, Key: &key})
	return b.failed(ctx, "remove", key, err)
}

func (b *bucket) dropUploads(ctx context.Context, prefix string) error {
	return b.removeAll(ctx, prefix)
}
