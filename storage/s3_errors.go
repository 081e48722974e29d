package storage

import (
	"context"
	"errors"
	"net/http"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/dagctl/dagctl/internal/fault"
)

// statusOf returns the HTTP status of a request that the bucket refused, and 0 for other errors and for nil.
func statusOf(err error) int {
	var answered *smithyhttp.ResponseError
	if errors.As(err, &answered) && answered.Response != nil {
		return answered.HTTPStatusCode()
	}
	return 0
}

// failed classifies the error of a request for an object. Whoever runs the server can mend errors of the bucket or of
// the credentials, and then the same request succeeds, so they are never the fault of the request.
func (b *bucket) failed(ctx context.Context, what, key string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	code := ""
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}

	status := statusOf(err)
	if reason := bucketAway(code, status); reason != "" {
		err = &Unusable{Reason: reason, Err: err}
	}
	switch {
	case code == "NoSuchBucket":
		return fault.New(fault.Unavailable, "bucket %s does not exist: %w", b.Bucket, err).
			WithHint("create it, or name another in storage.s3.bucket")
	case code == "InvalidAccessKeyId", status == http.StatusForbidden, status == http.StatusUnauthorized:
		return fault.New(fault.Unavailable, "bucket %s refuses to let this server %s %s: %w", b.Bucket, what, key, err).
			WithHint("check its credentials and their policy: docs/operations.md, A bucket for the files")
	case status == http.StatusNotFound && (code == "NoSuchKey" || code == "NotFound" || code == "NoSuchUpload"):
		return fault.New(fault.NotFound, "object %s is missing from bucket %s", key, b.Bucket)
	case status == http.StatusPreconditionFailed:
		return fault.New(fault.Conflict, "object %s of bucket %s is not the committed one", key, b.Bucket)
	}
	return fault.New(fault.Unavailable, "%s object %s of bucket %s: %w", what, key, b.Bucket, err)
}
