// Package tests3 starts a real S3 server for a test: versitygw, which somebody else wrote, checks signatures and keeps its
// objects in a folder of the test's. It owns no tables.
//
// The server's version is pinned in tools/versitygw/go.mod. The first test that needs it builds it, once for a machine,
// under .cache of the repository.
package tests3

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"
)

// Server is a running server with one empty bucket.
type Server struct {
	Endpoint        string // http://127.0.0.1:port
	Region          string
	Bucket          string
	AccessKeyID     string
	SecretAccessKey string

	t      testing.TB
	dir    string
	args   []string // before those of the backend
	port   int
	stdin  io.Closer // what the server lives as long as
	ended  chan struct{}
	log    *os.File
	binary string
}

// Start starts a server that ends with the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatalf("build the S3 server of the tests: %v", err)
	}
	s := &Server{
		t: t, dir: t.TempDir(), args: args, binary: binary,
		Region: "us-east-1", Bucket: "dagctl-" + strings.ToLower(rand.Text()[:12]), AccessKeyID: "AKIA" + rand.Text()[:16], SecretAccessKey: rand.Text(),
	}
	for _, dir := range []string{"data", "versions"} {
		if err := os.Mkdir(filepath.Join(s.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(s.Kill)
	const tries = 5 // the port is free when we look, and may not be when the server does
	for range tries {
		if err = s.begin(); err == nil {
			return s
		}
		s.Kill()
		s.port = 0
	}
	t.Fatalf("start the S3 server of the tests: %v", err)
	return nil
}

// Restart starts a killed server again, at its old address and with what it had.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.begin(); err != nil {
		s.t.Fatalf("start the S3 server of the tests again: %v", err)
	}
}

// begin returns when the server answers and has the bucket.
func (s *Server) begin() error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	if s.port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s.port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return err
		}
		s.Endpoint = fmt.Sprintf("http://127.0.0.1:%d", s.port)
	}
	if err := s.run(); err != nil {
		return err
	}
	if err := s.answers(ctx); err != nil {
		log, _ := os.ReadFile(s.log.Name())
		return fmt.Errorf("%w; it says: %s", err, log)
	}
	_, err := s.Client().CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &s.Bucket})
	if err != nil && strings.Contains(err.Error(), "BucketAlreadyOwnedByYou") {
		return nil
	}
	return err
}

// run starts the server below a shell that kills it when our end of a pipe closes, as it does however this process ends.
func (s *Server) run() (err error) {
	if s.log, err = os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	defer s.log.Close()
	args := []string{"-c", `"$@" </dev/null & pid=$!; read -r _; kill -9 $pid; wait $pid`, "guard", s.binary,
		"--access", s.AccessKeyID, "--secret", s.SecretAccessKey, "--port", fmt.Sprintf("127.0.0.1:%d", s.port), "--region", s.Region,
		"--health", "/healthz", "--quiet"}
	args = append(args, s.args...)
	args = append(args, "posix", "--versioning-dir", filepath.Join(s.dir, "versions"), filepath.Join(s.dir, "data"))
	cmd := exec.Command("/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	return nil
}

func (s *Server) answers(ctx context.Context) error {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/healthz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("it does not answer"), err)
		case <-again.C:
		}
	}
}

// Kill ends the server at once, as kill -9 does. It may be called again.
func (s *Server) Kill() {
	if s.stdin == nil {
		return
	}
	_ = s.stdin.Close()
	<-s.ended
	s.stdin = nil
}

// Client is one of the server's own root user.
func (s *Server) Client() *s3.Client {
	return s.ClientAs(s.AccessKeyID, s.SecretAccessKey, "")
}

// ClientAs is one with other credentials.
func (s *Server) ClientAs(id, secret, session string) *s3.Client {
	return s3.New(s3.Options{
		Region: s.Region, BaseEndpoint: &s.Endpoint, UsePathStyle: true,
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(id, secret, session)),
	})
}

// build returns the server's program. Its name has the hash of what it is made from, so another version is another program.
var build = sync.OnceValues(func() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the repository is not known")
	}
	root := filepath.Join(filepath.Dir(file), "..", "..")
	tool := filepath.Join(root, "tools", "versitygw")
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(tool, name))
		if err != nil {
			return "", err
		}
		hash.Write(text)
	}
	cache := filepath.Join(root, ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	binary := filepath.Join(cache, "versitygw-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	lock, err := os.Create(binary + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // packages are tested side by side
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	fmt.Fprintln(os.Stderr, "tests3: building the S3 server of the tests, once, in a minute or two")
	cmd := exec.Command("go", "build", "-C", tool, "-buildvcs=false", "-o", binary+".new", "github.com/versity/versitygw/cmd/versitygw")
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, os.Rename(binary+".new", binary)
})
