package testserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// builds are what this process asked Build for.
var builds struct {
	sync.Mutex
	binaries map[string]string // by tool
}

// Build returns the program that a package of the module in a folder of tools/ is. The first one to ask on a machine
// builds it, into .cache of the repository. Its name has the hash of the module's pins and of our files there, so
// another version is another program. The environment, of the form NAME=value, is added to the compiler's.
func Build(tool, program string, environment ...string) (binary string, err error) {
	builds.Lock()
	defer builds.Unlock()
	if binary, built := builds.binaries[tool]; built {
		return binary, nil
	}
	if binary, err = build(tool, program, environment); err != nil {
		return "", fmt.Errorf("build %s: %w", tool, err)
	}
	if builds.binaries == nil {
		builds.binaries = map[string]string{}
	}
	builds.binaries[tool] = binary
	return binary, nil
}

func build(tool, program string, environment []string) (string, error) {
	root, err := projectRoot()
	if err != nil {
		return "", err
	}
	folder, cache := filepath.Join(root, "tools", tool), filepath.Join(root, ".cache")
	hash := sha256.New()
	sources, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", err
	}
	for _, name := range append(sources, filepath.Join(folder, "go.mod"), filepath.Join(folder, "go.sum")) {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		hash.Write(text)
	}

	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	binary := filepath.Join(cache, tool+"-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	lock, err := os.Create(binary + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // packages are tested at the same time
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}

	fmt.Fprintf(os.Stderr, "testserver: building %s for the tests, once, in a minute or two\n", tool)
	cmd := exec.Command("go", "build", "-C", folder, "-buildvcs=false", "-o", binary+".new", program)
	cmd.Env = append(append(os.Environ(), "GOFLAGS="), environment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, os.Rename(binary+".new", binary)
}
