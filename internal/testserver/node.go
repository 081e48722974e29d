// Package testserver starts the servers that tests talk to and that are not ours: those of tools/, whose versions are
// pinned there. None outlives the process that started it. It owns no tables.
package testserver

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Node prepares the command for the serve.js of a folder of tools/, whose packages scripts/test_servers.sh installs.
// The process ends when the returned pipe, its standard input, is closed: by the caller or because this process is
// gone.
func Node(tool string, args ...string) (*exec.Cmd, io.WriteCloser, error) {
	folder, err := installed(tool)
	if err != nil {
		return nil, nil, err
	}
	node, err := nodeFor(folder)
	if err != nil {
		return nil, nil, notInstalled(tool, err)
	}

	cmd := exec.Command(node, append([]string{"serve.js"}, args...)...)
	cmd.Dir = folder
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", tool, err)
	}
	return cmd, life, nil
}

// Program prepares the command for a program of the packages of a folder of tools/, or for node itself.
func Program(tool, name string, args ...string) (*exec.Cmd, error) {
	folder, err := installed(tool)
	if err != nil {
		return nil, err
	}
	node, err := nodeFor(folder)
	if err != nil {
		return nil, notInstalled(tool, err)
	}
	if name == "node" {
		return exec.Command(node, args...), nil
	}
	return exec.Command(node, append([]string{filepath.Join(folder, "node_modules", ".bin", name)}, args...)...), nil
}

// PackagesOf returns the node_modules of a folder of tools/.
func PackagesOf(tool string) (string, error) {
	folder, err := installed(tool)
	return filepath.Join(folder, "node_modules"), err
}

// nodeFor returns the Node that scripts/test_servers.sh has chosen for a folder of tools/.
func nodeFor(folder string) (string, error) {
	own := filepath.Join(folder, "..", "..", ".cache", "node", "node_modules", ".bin", "node")
	if _, err := os.Stat(own); err == nil {
		return own, nil
	}
	return exec.LookPath("node")
}

// PackageFile returns a file of the packages of a folder of tools/, such as "axe-core/axe.min.js".
func PackageFile(tool, name string) ([]byte, error) {
	packages, err := PackagesOf(tool)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(packages, filepath.FromSlash(name)))
}

// installed returns a folder of tools/ whose packages are there.
func installed(tool string) (folder string, err error) {
	root, err := projectRoot()
	if err != nil {
		return "", err
	}
	folder = filepath.Join(root, "tools", tool)
	if _, err := os.Stat(filepath.Join(folder, "node_modules", ".installed")); err != nil {
		return "", notInstalled(tool, err)
	}
	return folder, nil
}

func notInstalled(tool string, err error) error {
	return fmt.Errorf("%s is not installed: run scripts/test_servers.sh: %w", tool, err)
}

// projectRoot returns the folder of go.mod, at or above the one that this process runs in.
func projectRoot() (string, error) {
	folder, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		up := filepath.Dir(folder)
		if up == folder {
			break
		}
		folder = up
	}
	return "", fmt.Errorf("there is no go.mod above the folder that this runs in: %w", cmp.Or(err, fs.ErrNotExist))
}
