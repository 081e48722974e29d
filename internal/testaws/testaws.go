// Package testaws gives tests an SQS server and Lambda endpoints on loopback ports: fauxqs and serverless-offline, which
// tools/ pins and scripts/test_servers.sh installs. They run on Node, start in under a second, and never outlive the test
// process. Neither checks credentials, but both speak AWS's own protocols, so product code talks to them unchanged.
//
// Vocabulary: an endpoint is the URL that stands where AWS's own would. It owns no tables.
package testaws

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// Region is where everything is.
const Region = "us-east-1"

// Config has the region and credentials that the servers take; endpoints are given to each client.
func Config() aws.Config {
	return aws.Config{Region: Region, Credentials: credentials.NewStaticCredentialsProvider("AKIATEST", "secret", "")}
}

// node prepares the serve.js of one of our tools. The process ends when the returned pipe is closed, by us or because this
// process is gone.
func node(t testing.TB, tool string, args ...string) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	root := projectRoot(t)
	folder := filepath.Join(root, "tools", tool)
	program := filepath.Join(root, ".cache", "node", "node_modules", ".bin", "node")
	if _, err := os.Stat(program); err != nil {
		program = "node"
	}
	for _, needed := range []func() error{
		func() error { _, err := os.Stat(filepath.Join(folder, "node_modules", ".installed")); return err },
		func() error { _, err := exec.LookPath(program); return err },
	} {
		if err := needed(); err != nil {
			t.Fatalf("tests need %s: run scripts/test_servers.sh: %v", tool, err)
		}
	}
	cmd := exec.Command(program, append([]string{"serve.js"}, args...)...)
	cmd.Dir = folder
	life, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("start %s: %v", tool, err)
	}
	return cmd, life
}

// projectRoot is the folder of go.mod, above the one that a test runs in.
func projectRoot(t testing.TB) string {
	t.Helper()
	folder, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder
		}
		up := filepath.Dir(folder)
		if up == folder {
			break
		}
		folder = up
	}
	t.Fatalf("no go.mod above this test's folder: %v", err)
	return ""
}
