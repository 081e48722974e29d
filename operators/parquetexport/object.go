package parquetexport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/bucket"
	"github.com/dagctl/dagctl/operators/patience"
)

// objects is a target in a bucket. Objects are replaced by requests with a condition on the one that is there.
type objects struct {
	bucket.Address
	client *s3.Client
	prefix string // of the partition's keys
	tries  patience.Tries
	heed   *sync.Map // the buckets whose servers heed conditions
	most   int64     // bytes of a request
}

// partBytes is the most bytes of a request: larger objects are sent in parts.
const partBytes = 64 << 20

const needs = "s3:PutObject, s3:GetObject and s3:DeleteObject on the objects, and s3:ListBucket on the bucket"

func (o *operator) openBucket(c config, t *operators.Task, path string) (*objects, error) {
	if longest := len(path) + 1 + mostName; longest > bucket.MaxKey {
		return nil, fault.New(fault.Invalid, "the path %s… is too long for keys of S3", path[:60])
	}
	client, err := c.Client(o.dialer, t.SecretTo, aws.NopRetryer{})
	if err != nil {
		return nil, err
	}
	tries := patience.Tries{Most: 6, Longest: time.Minute, Tell: func(text string) { t.Progress(50, text) },
		Hint: "the next attempt writes the partition whole; let `retry` wait long enough"}
	return &objects{c.Address, client, path + "/", tries, &o.heed, o.partBytes}, nil
}

func (b *objects) close() {}

func (b *objects) key(name string) *string { return aws.String(b.prefix + name) }

// do does a request, again if it may succeed later. Its error is errChanged if the request's condition does not hold.
func (b *objects) do(ctx context.Context, what, name string, once func() error) error {
	return b.tries.Do(ctx, func() error {
		err := once()
		switch bucket.StatusOf(err) {
		case http.StatusPreconditionFailed, http.StatusConflict: // the other of two requests at once has won
			return errChanged
		case http.StatusNotImplemented:
			return operators.Permanent(fault.New(fault.Invalid, "bucket %s at %s has no requests with conditions "+
				"(If-Match), without which an older revision could overwrite a newer one", b.Bucket, b.URL.Host))
		}
		if err == nil {
			return nil
		}
		failed := b.Failed(ctx, what+" "+b.prefix+name, needs, err)
		if ctx.Err() != nil || operators.IsPermanent(failed) || fault.Is(failed, fault.NotFound) {
			return failed
		}
		return patience.NewLater(failed, 0)
	})
}

// maxSmall is the most bytes of a claim or a manifest.
const maxSmall = 64 << 20

func (b *objects) read(ctx context.Context, name string) (text []byte, tag string, err error) {
	err = b.do(ctx, "read object", name, func() error {
		got, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: b.key(name)})
		if err != nil {
			return err
		}
		defer got.Body.Close()
		text, err = io.ReadAll(io.LimitReader(got.Body, maxSmall))
		tag = aws.ToString(got.ETag)
		return err
	})

	if fault.Is(err, fault.NotFound) && !operators.IsPermanent(err) {
		return nil, "", nil
	}
	if err == nil && tag == "" {
		err = operators.Permanent(fault.New(fault.Invalid, "bucket %s at %s has no ETags", b.Bucket, b.URL.Host))
	}
	return text, tag, err
}

// set also finds out whether the server heeds conditions.
func (b *objects) set(ctx context.Context, name string, text []byte, tag string) error {
	err := b.setIf(ctx, name, text, tag)
	if errors.Is(err, errChanged) { // perhaps by this request, whose answer was lost
		is, _, again := b.read(ctx, name)
		if again != nil {
			return again
		}
		if !bytes.Equal(is, text) {
			return errChanged
		}
		err = nil
	}
	if err != nil {
		return err
	}
	return b.heeds(ctx, name, text)
}

func (b *objects) setIf(ctx context.Context, name string, text []byte, tag string) error {
	return b.do(ctx, "write object", name, func() error {
		in := &s3.PutObjectInput{Bucket: &b.Bucket, Key: b.key(name), Body: bytes.NewReader(text)}
		in.IfMatch, in.IfNoneMatch = conditions(tag)
		_, err := b.client.PutObject(ctx, in)
		return err
	})
}

// noTag is the ETag of no object that is there.
const noTag = `"00000000000000000000000000000000"`

// heeds returns an error if requests succeed that a server must refuse which heeds conditions. A server is asked once,
// about an object that is there with that text.
func (b *objects) heeds(ctx context.Context, name string, text []byte) error {
	at := b.URL.String() + "/" + b.Bucket
	if _, known := b.heed.Load(at); known {
		return nil
	}

	for _, tag := range []string{"", noTag} {
		switch err := b.setIf(ctx, name, text, tag); {
		case err == nil:
			return operators.Permanent(fault.New(fault.Invalid, "bucket %s at %s does not heed the conditions of "+
				"requests (If-Match, If-None-Match), without which an older revision could overwrite a newer one",
				b.Bucket, b.URL.Host))
		case !errors.Is(err, errChanged):
			return err
		}
	}
	b.heed.Store(at, true)
	return nil
}

func conditions(tag string) (match, noneMatch *string) {
	if tag == "" {
		return nil, aws.String("*")
	}
	return &tag, nil
}

func (b *objects) put(
	ctx context.Context, name, local string, holds func(context.Context) error,
) (etag string, err error) {
	if err := holds(ctx); err != nil {
		return "", err
	}
	err = b.do(ctx, "write object", name, func() error {
		etag, err = b.send(ctx, name, local, nil, nil)
		return err
	})
	return etag, err
}

func (b *objects) swap(
	ctx context.Context, name, local string, holds func(context.Context) error,
) (etag string, err error) {
	const tries = 20
	for range tries {
		// The order counts: whoever claims the partition after the second look finds what this write puts, or this
		// write finds what that one has put.
		tag, err := b.tag(ctx, name)
		if err != nil {
			return "", err
		}
		if err := holds(ctx); err != nil {
			return "", err
		}
		match, noneMatch := conditions(tag)
		err = b.do(ctx, "write object", name, func() error {
			etag, err = b.send(ctx, name, local, match, noneMatch)
			return err
		})
		if !errors.Is(err, errChanged) {
			return etag, err
		}
	}
	return "", fault.New(fault.Unavailable, "object %s%s changes again and again", b.prefix, name)
}

// tag returns the ETag of an object; empty: there is none.
func (b *objects) tag(ctx context.Context, name string) (tag string, err error) {
	err = b.do(ctx, "look at object", name, func() error {
		out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.Bucket, Key: b.key(name)})
		if err == nil {
			tag = aws.ToString(out.ETag)
		}
		return err
	})
	if fault.Is(err, fault.NotFound) && !operators.IsPermanent(err) {
		return "", nil
	}
	return tag, err
}

func (b *objects) has(ctx context.Context, f file) (bool, error) {
	tag, err := b.tag(ctx, f.Name)
	return tag != "" && tag == f.ETag, err
}

// send sends a file as one object, which is there whole or not at all.
func (b *objects) send(ctx context.Context, name, local string, match, noneMatch *string) (string, error) {
	content, err := os.Open(local)
	if err != nil {
		return "", operators.Permanent(err)
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() > b.most {
		return b.sendParts(ctx, name, content, info.Size(), match, noneMatch)
	}

	out, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.Bucket, Key: b.key(name), Body: content,
		ContentLength: aws.Int64(info.Size()), IfMatch: match, IfNoneMatch: noneMatch})
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// sendParts leaves no parts behind unless the process dies: a rule of the bucket removes those.
func (b *objects) sendParts(
	ctx context.Context, name string, content io.ReaderAt, bytes int64, match, noneMatch *string,
) (string, error) {
	const mostParts = 10_000 // S3's own
	size := b.most
	for bytes > size*mostParts {
		size *= 2
	}
	begun, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &b.Bucket,
		Key: b.key(name)})
	if err != nil {
		return "", err
	}
	etag, err := b.sendAll(ctx, name, begun.UploadId, content, bytes, size, match, noneMatch)
	if err == nil {
		return etag, nil
	}

	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, _ = b.client.AbortMultipartUpload(ending, &s3.AbortMultipartUploadInput{Bucket: &b.Bucket, Key: b.key(name),
		UploadId: begun.UploadId})
	return "", err
}

func (b *objects) sendAll(ctx context.Context, name string, id *string, content io.ReaderAt, bytes, size int64,
	match, noneMatch *string,
) (string, error) {
	var parts []types.CompletedPart
	for from := int64(0); from < bytes; from += size {
		length, number := min(size, bytes-from), int32(len(parts)+1)
		sent, err := b.client.UploadPart(ctx, &s3.UploadPartInput{Bucket: &b.Bucket, Key: b.key(name), UploadId: id,
			PartNumber: &number, Body: io.NewSectionReader(content, from, length), ContentLength: &length})
		if err != nil {
			return "", err
		}
		parts = append(parts, types.CompletedPart{PartNumber: &number, ETag: sent.ETag,
			ChecksumCRC32: sent.ChecksumCRC32})
	}

	done, err := b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: &b.Bucket,
		Key: b.key(name), UploadId: id, IfMatch: match, IfNoneMatch: noneMatch,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
	if err != nil {
		return "", err
	}
	return aws.ToString(done.ETag), nil
}

func (b *objects) parts(ctx context.Context) (names []string, err error) {
	in := &s3.ListObjectsV2Input{Bucket: &b.Bucket, Prefix: b.key(partPrefix), Delimiter: aws.String("/")}
	for {
		var page *s3.ListObjectsV2Output
		err := b.do(ctx, "list objects", partPrefix, func() (err error) {
			page, err = b.client.ListObjectsV2(ctx, in)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, o := range page.Contents {
			name := strings.TrimPrefix(aws.ToString(o.Key), b.prefix)
			if !strings.HasPrefix(name, partPrefix) || len(names) > mostListed {
				return nil, fault.New(fault.Invalid, "the listing of %s is none that S3 gives", b.prefix)
			}
			names = append(names, name)
		}
		next := aws.ToString(page.NextContinuationToken)
		if next == "" || next == aws.ToString(in.ContinuationToken) {
			return names, nil
		}
		in.ContinuationToken = &next
	}
}

// mostListed is how many files of older writes a partition may have.
const mostListed = 100 * mostFiles

func (b *objects) remove(ctx context.Context, name string) error {
	err := b.do(ctx, "remove object", name, func() error {
		_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Bucket, Key: b.key(name)})
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}
