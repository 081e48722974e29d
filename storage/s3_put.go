package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/dagctl/dagctl/internal/fault"
)

// contentHash is the metadata key of the content's hash. The ETag of an object in parts, or of an encrypted one, is
// not a hash of its content.
const contentHash = "dagctl-sha256"

// largestPut is the most that S3 accepts or copies in one request, in bytes.
const largestPut = 5 << 30

// object is the metadata of an object.
type object struct {
	bytes  int64
	etag   string
	sha256 string // only of objects that this storage put
}

func (b *bucket) look(ctx context.Context, key string) (object, error) {
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.Bucket, Key: &key})
	if err != nil {
		return object{}, b.failed(ctx, "look at", key, err)
	}
	return object{bytes: aws.ToInt64(out.ContentLength), etag: unquote(out.ETag), sha256: out.Metadata[contentHash]},
		nil
}

func unquote(etag *string) string { return strings.Trim(aws.ToString(etag), `"`) }

// committed reports whether an object is the committed one: by its ETag, or else by its content.
func (b *bucket) committed(ctx context.Context, file File, have object) (bool, error) {
	switch {
	case have.bytes != file.Bytes:
		return false, nil
	case file.ETag == "" || have.etag == file.ETag:
		return true, nil
	case file.SHA256 == "":
		return false, nil
	}

	key := b.key(file.Path)
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: &key,
		IfMatch: aws.String(`"` + have.etag + `"`)})
	if err != nil {
		return false, b.failed(ctx, "read", key, err)
	}
	defer out.Body.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, out.Body); err != nil {
		return false, b.failed(ctx, "read", key, err)
	}
	return hex.EncodeToString(hash.Sum(nil)) == file.SHA256, nil
}

func (b *bucket) putFile(ctx context.Context, key, local string) (o object, err error) {
	file, err := os.Open(local)
	if err != nil {
		return o, err
	}
	defer file.Close()
	hash := sha256.New()
	if o.bytes, err = io.Copy(hash, file); err != nil {
		return o, err
	}

	o.sha256 = hex.EncodeToString(hash.Sum(nil))
	o.etag, err = b.put(ctx, key, file, o)
	return o, err
}

// put creates an object under a new key and returns its ETag. An existing object with the same content is fine; other
// content is a fault.Conflict.
func (b *bucket) put(ctx context.Context, key string, content io.ReaderAt, o object) (etag string, err error) {
	const tries = 3 // S3 answers 409 to one of two concurrent puts, and the other may have failed
	for range tries {
		if o.bytes <= b.PartBytes {
			etag, err = b.putWhole(ctx, key, content, o)
		} else {
			etag, err = b.putParts(ctx, key, content, o)
		}
		if statusOf(err) != 409 {
			break
		}
	}

	switch statusOf(err) {
	case 0:
		if err != nil {
			return "", b.failed(ctx, "write", key, err)
		}
		return etag, nil
	case 409, 412:
		there, err := b.look(ctx, key)
		if err != nil {
			return "", err
		}
		if there.bytes != o.bytes || there.sha256 != o.sha256 {
			return "", fault.New(fault.Conflict, "object %s already exists, with other content", key)
		}
		return there.etag, nil
	}
	return "", b.failed(ctx, "write", key, err)
}

func (b *bucket) putWhole(ctx context.Context, key string, content io.ReaderAt, o object) (string, error) {
	out, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.Bucket, Key: &key, Body: io.NewSectionReader(content, 0, o.bytes), ContentLength: &o.bytes,
		IfNoneMatch: aws.String("*"), Metadata: map[string]string{contentHash: o.sha256},
	})
	if err != nil {
		return "", err
	}
	return unquote(out.ETag), nil
}

func (b *bucket) putParts(ctx context.Context, key string, content io.ReaderAt, o object) (string, error) {
	return b.inParts(ctx, key, o, b.PartBytes, func(ctx context.Context, id *string, number int32, from,
		size int64) (types.CompletedPart, error) {
		out, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &b.Bucket, Key: &key, UploadId: id, PartNumber: &number, Body: io.NewSectionReader(content, from,
				size), ContentLength: &size,
			ChecksumAlgorithm: b.checksum,
		})
		if err != nil {
			return types.CompletedPart{}, err
		}
		return types.CompletedPart{PartNumber: &number, ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32}, nil
	})
}

// inParts uploads an object in parts. It is invisible before the last step, and a failure leaves nothing behind: unlike
// the SDK's own uploader, inParts also removes the parts when the context ends.
func (b *bucket) inParts(ctx context.Context, key string, o object, partBytes int64,
	send func(ctx context.Context, id *string, number int32, from, size int64) (types.CompletedPart, error),
) (etag string, err error) {
	const mostParts = 10_000 // S3's own
	for o.bytes > partBytes*mostParts {
		partBytes *= 2
	}
	begun, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &b.Bucket, Key: &key, Metadata: map[string]string{contentHash: o.sha256}, ChecksumAlgorithm: b.checksum,
	})
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.abort(ctx, key, begun.UploadId))
		}
	}()

	parts := make([]types.CompletedPart, (o.bytes+partBytes-1)/partBytes)
	err = inParallel(ctx, len(parts), func(ctx context.Context, i int) (err error) {
		from := int64(i) * partBytes
		parts[i], err = send(ctx, begun.UploadId, int32(i+1), from, min(partBytes, o.bytes-from))
		return err
	})
	if err != nil {
		return "", err
	}

	done, err := b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &b.Bucket, Key: &key, UploadId: begun.UploadId, IfNoneMatch: aws.String("*"),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	if err != nil {
		return "", err
	}
	return unquote(done.ETag), nil
}

// abort removes parts, even if the context has ended.
func (b *bucket) abort(ctx context.Context, key string, id *string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.Bucket, Key: &key,
		UploadId: id})
	if err == nil || statusOf(err) == 404 {
		return nil
	}
	return fmt.Errorf("abort the upload of %s: %w", key, err)
}

// copy copies a committed object, if it is still the committed one. It may be repeated.
func (b *bucket) copy(ctx context.Context, from File, key string) (etag string, err error) {
	source := b.key(from.Path)
	is, err := b.look(ctx, source)
	if err != nil {
		return "", err
	}
	if same, err := b.committed(ctx, from, is); err != nil {
		return "", err
	} else if !same {
		return "", fault.New(fault.Conflict, "object %s is not the committed one", source)
	}

	switch there, err := b.look(ctx, key); {
	case err == nil && is.sha256 != "" && there.sha256 == is.sha256 && there.bytes == is.bytes:
		return there.etag, nil // copied by a process that crashed before recording it
	case err != nil && !fault.Is(err, fault.NotFound):
		return "", err
	}

	// The SDK does not escape this.
	escaped := (&url.URL{Path: b.Bucket + "/" + source}).EscapedPath()
	if is.bytes <= largestPut {
		out, err := b.client.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &b.Bucket, Key: &key, CopySource: &escaped,
			CopySourceIfMatch: &is.etag})
		if err != nil {
			return "", b.failed(ctx, "copy", source, err)
		}
		return unquote(out.CopyObjectResult.ETag), nil
	}

	etag, err = b.inParts(ctx, key, is, largestPut/10, func(ctx context.Context, id *string, number int32, first,
		size int64) (types.CompletedPart, error) {
		out, err := b.client.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
			Bucket: &b.Bucket, Key: &key, UploadId: id, PartNumber: &number, CopySource: &escaped,
			CopySourceIfMatch: &is.etag,
			CopySourceRange:   aws.String(fmt.Sprintf("bytes=%d-%d", first, first+size-1)),
		})
		if err != nil {
			return types.CompletedPart{}, err
		}
		return types.CompletedPart{PartNumber: &number, ETag: out.CopyPartResult.ETag,
			ChecksumCRC32: out.CopyPartResult.ChecksumCRC32}, nil
	})
	if err != nil {
		return "", b.failed(ctx, "copy", source, err)
	}
	return etag, nil
}

// removeAll removes all objects below a prefix, including parts of unfinished uploads.
func (b *bucket) removeAll(ctx context.Context, prefix string) error {
	prefix = b.key(prefix)
	objects, err := b.list(ctx, prefix)
	if err != nil {
		return err
	}

	// One by one, because servers other than AWS differ in deleting many at once.
	err = inParallel(ctx, len(objects), func(ctx context.Context, i int) error {
		_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Bucket, Key: objects[i].Key})
		return b.failed(ctx, "remove", *objects[i].Key, err)
	})
	if err != nil {
		return err
	}

	pages := s3.NewListMultipartUploadsPaginator(b.client, &s3.ListMultipartUploadsInput{Bucket: &b.Bucket,
		Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return b.failed(ctx, "list what is unfinished below", prefix, err)
		}
		for _, u := range page.Uploads {
			if err := b.abort(ctx, *u.Key, u.UploadId); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bucket) list(ctx context.Context, prefix string) ([]types.Object, error) {
	var list []types.Object
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.Bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, b.failed(ctx, "list", prefix, err)
		}
		list = append(list, page.Contents...)
	}
	return list, nil
}
