package proof_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// binary is the program itself, built once for the tests that kill it.
var binary = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../bin/dagctl-proof") // bin is not part of the repository
	if err != nil {
		return "", err
	}
	if text, err := exec.Command("go", "build", "-tags=clockskew", "-ldflags=-w", "-o", path, "../cmd/dagctl").
		CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, text)
	}
	return path, nil
})

// unlimited returns a config file without rate limits: a test is one caller that makes many calls at once.
func unlimited(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("limits: { requests_per_second: 100000, burst: 100000 }\n"+
		"operators: { command_shared: ["+os.TempDir()+"] }\n"), 0o600))
	return config
}
