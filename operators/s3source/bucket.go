package s3source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// parallel is how many objects are copied at once.
const parallel = 8

// bucket is the bucket that a config names.
type bucket struct {
	config
	client *s3.Client
	copied atomic.Int64 // bytes
}

// open returns the bucket. secretTo returns the text of a config field for requests to a URL. The server's own
// credentials are never used: requests are signed with the config's, or not at all.
func (o *operator) open(c config, secretTo func(*url.URL, any, string) (string, error)) (*bucket, error) {
	id, err := secretTo(c.url, c.AccessKeyID, "config.access_key_id")
	if err != nil {
		return nil, err
	}
	key, err := secretTo(c.url, c.SecretAccessKey, "config.secret_access_key")
	if err != nil {
		return nil, err
	}

	options := s3.Options{
		Region: cmp.Or(c.Region, defaultRegion), BaseEndpoint: aws.String(c.url.String()), UsePathStyle: true,
		HTTPClient: bounded{o.dialer.StrictClient(0)}, Credentials: aws.AnonymousCredentials{},
		DisableLogOutputChecksumValidationSkipped: true,
	}
	if id != "" {
		options.Credentials = aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(id, key, ""))
	}
	return &bucket{config: c, client: s3.New(options)}, nil
}

// own refuses keys that the config does not lead to.
func (b *bucket) own(keys []string) error {
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
func (b *bucket) copy(ctx context.Context, key, target string) (content string, err error) {
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
	b    *bucket
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

var errorCode = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9.]{0,63}$`)

// failed classifies the error of a request. It quotes nothing of the answer but the code of the error. Errors that
// another request would meet, too, are permanent.
func (b *bucket) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case fault.Is(err, fault.Forbidden):
		return operators.Permanent(fault.New(fault.Forbidden,
			"%s of bucket %s: %s may not be reached: its address is not public", what, b.Bucket, b.url.Hostname()).
			WithHint("an admin can allow its network in the server's config"))
	case fault.Is(err, fault.TooLarge):
		return err
	}

	var (
		answered *smithyhttp.ResponseError
		api      smithy.APIError
	)
	status, code := 0, ""
	if errors.As(err, &answered) && answered.Response != nil {
		status = answered.HTTPStatusCode()
	}
	if errors.As(err, &api) && errorCode.MatchString(api.ErrorCode()) {
		code = api.ErrorCode()
	}

	at := fmt.Sprintf("%s of bucket %s at %s", what, b.Bucket, b.url.Host)
	switch {
	case status == 0, status/100 == 2: // it is gone, or what it sends is cut or no XML
		return fault.New(fault.Unavailable, "%s: the server does not answer as S3 does", at)
	case code == "NoSuchBucket":
		return operators.Permanent(fault.New(fault.NotFound, "%s: there is no such bucket", at))
	case status == http.StatusNotFound:
		return fault.New(fault.NotFound, "%s: it is not there", at)
	}

	said := fault.New(fault.Unavailable, "%s: the server answered %d %s", at, status, code)
	switch {
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return operators.Permanent(said.WithHint(
			"its key needs s3:ListBucket on the bucket and s3:GetObject on the objects"))
	case status/100 == 3:
		return operators.Permanent(said.WithHint(
			"name the bucket's `region` or `endpoint`: redirects are not followed"))
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return said
	}
	return operators.Permanent(said)
}
