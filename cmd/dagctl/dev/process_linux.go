package dev

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes a program end when this process does, however that ends. The terminal's signals do not reach it.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
