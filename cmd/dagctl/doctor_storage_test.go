package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/tests3"
)

func TestDoctorChecksTheBucket(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	config := fmt.Sprintf(`database_url: postgres://x@127.0.0.1/x
storage:
  root: %s
  s3: { bucket: %s, endpoint: "%s", path_style: true, access_key_id: %s, secret_access_key: %s }
`, t.TempDir(), srv.Bucket, srv.Endpoint, srv.AccessKeyID, srv.SecretAccessKey)
	out, code := diagnose(t, config)
	require.Zero(t, code, out)
	require.Contains(t, out, "bucket "+srv.Bucket+" can be written, read and listed")
	require.Contains(t, out, "nothing can be read without credentials")
	require.Contains(t, out, "old versions of objects are not kept")
	require.Contains(t, out, "tasks get no credentials")
	left, err := srv.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &srv.Bucket})
	require.NoError(t, err)
	require.Empty(t, left.Contents, "the probe is gone")

	_, err = srv.Client().PutBucketPolicy(t.Context(),
		&s3.PutBucketPolicyInput{Bucket: &srv.Bucket, Policy: aws.String(fmt.Sprintf(
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::%s/*"}]}`, srv.Bucket))})
	require.NoError(t, err)
	out, code = diagnose(t, config)
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, "anybody can read the objects in bucket")

	for what, change := range map[string]func(string) string{
		"does not exist": func(c string) string { return strings.Replace(c, srv.Bucket, "dagctl-nowhere", 1) },
		"refuses to let": func(c string) string { return strings.Replace(c, srv.SecretAccessKey, "wrong", 1) },
		"connection refused": func(c string) string {
			return strings.Replace(c, srv.Endpoint, "http://127.0.0.1:1", 1)
		},
		"not a valid bucket name": func(c string) string { return strings.Replace(c, srv.Bucket, "Not_A_Bucket", 1) },
		"storage.s3: access_k":    func(c string) string { return strings.Replace(c, srv.SecretAccessKey, `""`, 1) },
	} {
		out, code := diagnose(t, change(config))
		require.Equal(t, cli.ExitFailed, code, what)
		require.Contains(t, out, what)
		require.NotContains(t, out, srv.SecretAccessKey)
	}
}
