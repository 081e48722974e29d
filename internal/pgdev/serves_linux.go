package pgdev

import (
	"fmt"
	"os"
	"path/filepath"
)

// serves reports whether the process is a server on the cluster. PostgreSQL's working folder is its cluster.
func serves(pid int, cluster string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(cluster)
	return err == nil && cwd == real
}
