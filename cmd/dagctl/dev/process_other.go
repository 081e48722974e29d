//go:build !linux

package dev

import (
	"os/exec"
	"syscall"
)

// dieWithParent keeps the terminal's signals from a program. It outlives this process where that is killed.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
