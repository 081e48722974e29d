package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// Finding is one result of Check. It may have a hint even if it is OK.
type Finding struct {
	OK     bool
	Detail string
	Hint   string
}

// Check tests the bucket with an object of its own, which it removes again: whether the bucket can be written, read and
// deleted from as the storage needs it, who else can read it, and what it keeps. It returns nothing if files are in a
// folder.
func (s *Storage) Check(ctx context.Context) []Finding {
	if s.s3 == nil {
		return nil
	}
	return s.s3.check(ctx)
}

func (b *bucket) check(ctx context.Context) []Finding {
	if _, err := b.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &b.Bucket}); err != nil {
		if statusOf(err) == 404 { // the answer to HEAD has no details
			err = fault.New(fault.Unavailable, "bucket %s does not exist", b.Bucket).
				WithHint("create it, or name another in storage.s3.bucket")
		} else {
			err = b.failed(ctx, "look at", b.prefix, err)
		}
		return []Finding{notOK(err)}
	}

	probe := b.key(".doctor/" + rand.Text())
	findings := []Finding{b.checkWrite(ctx, probe)}
	if findings[0].OK {
		findings = append(findings, b.checkPublic(ctx, probe), b.checkVersions(ctx))
		if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.Bucket, Key: &probe}); err != nil {
			findings = append(findings, notOK(b.failed(ctx, "remove", probe, err)))
		}
		if _, err := b.list(ctx, probe); err != nil {
			findings = append(findings, notOK(err))
		}
	}
	return append(findings, b.checkRole(ctx))
}

func notOK(err error) Finding {
	f := Finding{Detail: err.Error()}
	var classified *fault.Error
	if errors.As(err, &classified) {
		f.Hint = classified.Hint
	}
	return f
}

// checkWrite puts and reads the probe, with the conditions that the storage relies on.
func (b *bucket) checkWrite(ctx context.Context, probe string) Finding {
	const text = "dagctl doctor"
	put := func() (*s3.PutObjectOutput, error) {
		return b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.Bucket, Key: &probe, Body: strings.NewReader(text),
			IfNoneMatch: aws.String("*")})
	}

	out, err := put()
	if err != nil {
		return notOK(b.failed(ctx, "write", probe, err))
	}

	f := Finding{OK: true, Detail: fmt.Sprintf("bucket %s can be written, read and listed", b.Bucket)}
	var ignored []string
	if _, err := put(); statusOf(err) != 412 {
		ignored = append(ignored, "If-None-Match")
	}
	if _, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: &probe,
		IfMatch: aws.String(`"0123456789abcdef0123456789abcdef"`)}); statusOf(err) != 412 {
		ignored = append(ignored, "If-Match")
	}

	read, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: &probe, IfMatch: out.ETag})
	if err != nil {
		return notOK(b.failed(ctx, "read", probe, err))
	}
	_ = read.Body.Close()

	if len(ignored) > 0 {
		f.OK, f.Detail = false, fmt.Sprintf("bucket %s does not honor %s", b.Bucket, strings.Join(ignored, " and "))
		f.Hint = "an object that replaces a committed one would go unnoticed: use a newer version of this S3 " +
			"server, or another"
	}
	return f
}

// checkPublic requests the probe without credentials.
func (b *bucket) checkPublic(ctx context.Context, probe string) Finding {
	options := b.client.Options()
	options.Credentials = aws.AnonymousCredentials{}
	out, err := s3.New(options).GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: &probe})
	if err == nil {
		_ = out.Body.Close()
		return Finding{Detail: fmt.Sprintf("anybody can read the objects in bucket %s", b.Bucket),
			Hint: "block public access, and remove policies and ACLs that allow it"}
	}
	return Finding{OK: true, Detail: "nothing can be read without credentials"}
}

func (b *bucket) checkVersions(ctx context.Context) Finding {
	out, err := b.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &b.Bucket})
	switch {
	case err != nil:
		return Finding{OK: true, Detail: "it is unknown whether old versions of objects are kept",
			Hint: "allow s3:GetBucketVersioning to see it"}
	case out.Status == types.BucketVersioningStatusEnabled:
		return Finding{OK: true, Detail: "old versions of objects are kept",
			Hint: "objects that gc removes stay until a lifecycle rule for noncurrent versions deletes them; let " +
				"that take longer than you keep backups of the database"}
	}
	return Finding{OK: true, Detail: "old versions of objects are not kept",
		Hint: "with versioning a backup of the database can be restored although gc has removed objects since"}
}

// checkRole requests credentials that allow nothing.
func (b *bucket) checkRole(ctx context.Context) Finding {
	switch {
	case b.RoleARN == "":
		return Finding{OK: true, Detail: "tasks get no credentials: they read and write through the server"}
	case strings.Contains(b.RoleARN+b.ExternalID, "{org}"):
		return Finding{OK: true, Detail: fmt.Sprintf("tasks get credentials of role %s; test that of each org "+
			"with one of its tasks", b.RoleARN)}
	}
	if _, err := b.credentials(ctx, Grant{Task: uuid.New(), Attempt: 1}); err != nil {
		return notOK(err)
	}
	return Finding{OK: true, Detail: fmt.Sprintf("tasks get credentials of role %s", b.RoleARN)}
}
