//go:build !linux || !(amd64 || arm64)

package sandbox

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/dagctl/dagctl/internal/fault"
)

// Available returns an error: programs cannot be confined on this system.
func Available() error {
	return fault.New(fault.Unavailable, "programs cannot be confined on %s/%s; run the worker on Linux",
		runtime.GOOS, runtime.GOARCH)
}

// Namespaces returns an error: there are none here.
func Namespaces() error { return Available() }

// Standing returns the walls that this machine gives: limits.
func Standing() []Wall {
	return []Wall{{"limits", true, "processor time and files are bounded"},
		{"files", false, "only Linux keeps programs from files: this system is for development"}}
}

// Run returns an error.
func Run(context.Context, Program) error { return Available() }

// AvailableAlone returns an error: programs cannot be confined on this system.
func AvailableAlone() error { return Available() }

// Hide returns an error.
func Hide() error { return Available() }

// Stage does nothing: there are no stages here.
func Stage() {}

// StartSelf starts a process of this binary without walls: this system has none that dagctl knows.
func StartSelf(cmd *exec.Cmd, _ Walls) (gone <-chan struct{}, ended func() error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	var how error
	go func() {
		how = cmd.Wait()
		close(done)
	}()
	return done, func() error { <-done; return how }, nil
}

// Enter limits the process.
func Enter(w Walls, _ int) error {
	limits := map[int]uint64{syscall.RLIMIT_CORE: 0, syscall.RLIMIT_FSIZE: uint64(w.Disk)}
	if w.CPU > 0 {
		limits[syscall.RLIMIT_CPU] = uint64(w.CPU.Seconds()) + 1
	}
	if w.Memory > 0 {
		limits[syscall.RLIMIT_DATA] = uint64(w.Memory) + 1<<30
	}

	for resource, most := range limits {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(resource, &now); err != nil {
			return err
		}
		most = min(most, now.Max)
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}

// AvailableBare returns nil: programs start, without walls.
func AvailableBare() error { return nil }

// Start starts a program in a process group of its own, without walls. release ends what it has left running.
func Start(cmd *exec.Cmd, _ Walls, _ func(error)) (release func(), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }, nil
}
