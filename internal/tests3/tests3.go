// Package tests3 starts a real S3 server for a test: versitygw, an independent implementation that checks signatures
// and keeps its objects in a folder of the test. It owns no tables.
//
// The server's version is pinned in tools/versitygw/go.mod. The first test that needs it builds it, once per machine,
// in .cache of the repository.
package tests3

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/dagctl/dagctl/internal/testserver"
)

// Server is a running server with one empty bucket.
type Server struct {
	Endpoint        string // http://127.0.0.1:port
	Region          string
	Bucket          string
	AccessKeyID     string
	SecretAccessKey string

	t       testing.TB
	dir     string
	args    []string // before those of the backend
	process *testserver.Process
	iam     *iam.Client // of StartIAM
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, t.TempDir(), "AKIA"+rand.Text()[:16], rand.Text())
}

func start(t testing.TB, dir, id, secret string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, dir: dir, args: args, Region: "us-east-1", Bucket: "dagctl-" + strings.ToLower(rand.Text()[:12]),
		AccessKeyID: id, SecretAccessKey: secret}
	for _, dir := range []string{"data", "versions"} {
		if err := os.Mkdir(filepath.Join(s.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}

	s.process = newProcess(t, filepath.Join(dir, "server.log"))
	if err := s.process.Begin(s.t.Context(), s.flags); err != nil {
		t.Fatalf("start the S3 server of the tests: %v", err)
	}
	s.Endpoint = s.process.URL()
	if _, err := s.Client().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &s.Bucket}); err != nil {
		t.Fatalf("make the tests' bucket: %v", err)
	}
	return s
}

// Folder returns the folder whose files are the objects of the bucket.
func (s *Server) Folder() string { return filepath.Join(s.dir, "data", s.Bucket) }

// newProcess returns a process of versitygw.
func newProcess(t testing.TB, log string) *testserver.Process {
	t.Helper()
	binary, err := testserver.Build("versitygw", "github.com/versity/versitygw/cmd/versitygw", "CGO_ENABLED=0")
	if err != nil {
		t.Fatal(err)
	}
	return testserver.NewProcess(t, binary, "/healthz", log)
}

// flags returns the flags of the gateway.
func (s *Server) flags(address string) ([]string, error) {
	args := []string{"--access", s.AccessKeyID, "--secret", s.SecretAccessKey, "--port", address, "--region",
		s.Region, "--health", "/healthz", "--quiet"}
	args = append(args, s.args...)
	args = append(args, "posix", "--versioning-dir", filepath.Join(s.dir, "versions"), filepath.Join(s.dir, "data"))
	return args, nil
}

// Restart starts a killed server again, at its old address and with its data.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.process.Begin(s.t.Context(), s.flags); err != nil {
		s.t.Fatalf("start the S3 server of the tests again: %v", err)
	}
}

// Kill ends the server at once, as kill -9 does. It may be called again.
func (s *Server) Kill() { s.process.Kill() }

// Client returns a client with the credentials of the server's root user.
func (s *Server) Client() *s3.Client {
	return s.ClientAs(s.AccessKeyID, s.SecretAccessKey, "")
}

// ClientAs returns a client with other credentials.
func (s *Server) ClientAs(id, secret, session string) *s3.Client {
	return s3.New(s3.Options{
		Region: s.Region, BaseEndpoint: &s.Endpoint, UsePathStyle: true,
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(id, secret, session)),
	})
}
