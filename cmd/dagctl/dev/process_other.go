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

// signalGroup sends a signal to a program and to what it has started.
func signalGroup(pid int, s syscall.Signal) { _ = syscall.Kill(-pid, s) } // it may have ended since
