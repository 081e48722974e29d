package s3source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// parallel is how many objects are copied at once.
const parallel = 8

// objects are those of the bucket that a config names.
type objects struct {
	config
	client *s3.Client
	copied atomic.Int64 // bytes
}

// open returns the bucket. secretTo returns the text of a config field for requests to a URL.
func (o *operator) open(c config, secretTo func(*url.URL, any, string) (string, error)) (*objects, error) {
	client, err := c.Client(o.dialer, secretTo, nil)
	return &objects{config: c, client: client}, err
}

// own refuses keys that the config does not lead to.
func (b *objects) own(keys []string) error {
	for _, key := range keys {
		if rest, ok := strings.CutPrefix(key, b.Prefix); !ok || !b.names.Matches(rest) {
			return operators.Permanent(fault.New(fault.Invalid,
				"object %s is none of those that `prefix` and `pattern` select", key))
		}
	}
	return nil
}

// contentOf returns what identifies the content of an object: its ETag, or where the server has none, when it was
// written. Answers with the object tell that in whole seconds.
func contentOf(etag *string, size *int64, modified *time.Time) string {
	bytes := aws.ToInt64(size)
	if tag := strings.Trim(aws.ToString(etag), `"`); tag != "" {
		return fmt.Sprintf("etag:%s/%d", tag, bytes)
	}
	return fmt.Sprintf("at:%s/%d", aws.ToTime(modified).UTC().Format(time.RFC3339), bytes)
}

// copy copies an object to a new file and returns the content that it copied.
func (b *objects) copy(ctx context.Context, key, target string) (content string, err error) {
	got, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: &key})
	if err != nil {
		return "", b.failed(ctx, "read object "+key, err)
	}
	defer got.Body.Close()
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}

	n, err := io.Copy(f, &counted{b, got.Body})
	var full *fs.PathError
	switch err = errors.Join(err, f.Close()); {
	case errors.As(err, &full): // of the copy
		return "", err
	case err != nil:
		return "", b.failed(ctx, "read object "+key, err)
	}
	if got.ContentLength != nil && n != *got.ContentLength {
		return "", fault.New(fault.Unavailable, "object %s has %d bytes, and the server sent %d", key,
			*got.ContentLength, n)
	}
	return contentOf(got.ETag, &n, got.LastModified), nil
}

// counted reads an object, up to what all objects of a task may have.
type counted struct {
	b    *objects
	body io.Reader
}

func (r *counted) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	if limit := cmp.Or(r.b.MaxBytes, defaultMaxBytes); r.b.copied.Add(int64(n)) > limit {
		return n, operators.Permanent(fault.New(fault.TooLarge, "the objects have more than %d bytes", limit).
			WithHint("raise config.max_bytes, or make smaller partitions"))
	}
	return n, err
}

// failed classifies the error of a request.
func (b *objects) failed(ctx context.Context, what string, err error) error {
	return b.Failed(ctx, what, "s3:ListBucket on the bucket and s3:GetObject on the objects", err)
}
