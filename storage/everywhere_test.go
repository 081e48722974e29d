package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

const maxTestUpload = 12 << 20 // more than two parts of the tests' S3 uploads

func s3Config(srv *tests3.Server) *storage.S3Config {
	return &storage.S3Config{
		Bucket: srv.Bucket, Prefix: "team/dagctl", Region: srv.Region, Endpoint: srv.Endpoint, PathStyle: true,
		AccessKeyID: srv.AccessKeyID, SecretAccessKey: srv.SecretAccessKey, PartBytes: 5 << 20, CacheBytes: 64 << 20,
	}
}

func openS3(t *testing.T, c *storage.S3Config) *storage.Storage {
	t.Helper()
	s, err := storage.New(storage.Config{Root: t.TempDir(), S3: c, MaxUploadBytes: maxTestUpload})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// everywhere runs a test of what every place of Parquet files must do.
func everywhere(t *testing.T, test func(t *testing.T, s *storage.Storage)) {
	t.Run("files", func(t *testing.T) {
		t.Parallel()
		s, err := storage.New(storage.Config{Root: t.TempDir(), MaxUploadBytes: maxTestUpload})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		test(t, s)
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		test(t, openS3(t, s3Config(tests3.Start(t))))
	})
}
