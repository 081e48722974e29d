package tests3

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
)

// StartIAM starts a server whose users have policies, which it evaluates.
func StartIAM(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "dagctl-iam-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	users, socket := filepath.Join(dir, "users"), filepath.Join(dir, "s")
	if err := os.Mkdir(users, 0o700); err != nil {
		t.Fatal(err)
	}

	id, secret := "AKIA"+rand.Text()[:16], rand.Text()
	accounts := newProcess(t, filepath.Join(dir, "iam.log"))
	err = accounts.Begin(t.Context(), func(address string) ([]string, error) {
		return []string{"--access", id, "--secret", secret, "--port", address, "--health", "/healthz", "--quiet", "iam",
			"--dir", users, "--private-ports", socket}, nil
	})
	if err != nil {
		t.Fatalf("start the IAM server of the tests: %v", err)
	}
	s := start(t, t.TempDir(), id, secret, "--iam-standalone-endpoint", socket)
	s.iam = iam.New(iam.Options{
		Region: s.Region, BaseEndpoint: aws.String(accounts.URL()),
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(id, secret, "")),
	})
	return s
}

// User creates a user with a policy, and returns the user's keys.
func (s *Server) User(t testing.TB, policy string) (id, secret string) {
	t.Helper()
	name := rand.Text()
	if _, err := s.iam.CreateUser(t.Context(), &iam.CreateUserInput{UserName: &name}); err != nil {
		t.Fatalf("make a user: %v", err)
	}
	if _, err := s.iam.PutUserPolicy(t.Context(),
		&iam.PutUserPolicyInput{UserName: &name, PolicyName: &name, PolicyDocument: &policy}); err != nil {
		t.Fatalf("give a user a policy: %v", err)
	}
	key, err := s.iam.CreateAccessKey(t.Context(), &iam.CreateAccessKeyInput{UserName: &name})
	if err != nil {
		t.Fatalf("make a user's key: %v", err)
	}
	return *key.AccessKey.AccessKeyId, *key.AccessKey.SecretAccessKey
}
