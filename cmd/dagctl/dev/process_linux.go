package dev

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes a program end when this process does, however that ends. The terminal's signals do not reach it.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// signalGroup sends a signal to a program and to what it has started.
func signalGroup(pid int, s syscall.Signal) { _ = syscall.Kill(-pid, s) } // it may have ended since
