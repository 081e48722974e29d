//go:build unix && !linux

package pgdev

import (
	"os/exec"
	"strconv"
	"strings"
)

// serves reports whether the process is a server on the cluster: we start it with the cluster's path in its arguments.
func serves(pid int, cluster string) bool {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), "-D "+cluster+" ")
}
