//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// runBare is Run where there are no namespaces. Code and Work are visible at their own paths.
func runBare(ctx context.Context, p Program) error {
	if err := p.validate(); err != nil {
		return err
	}
	limits := p.Limits.orDefault()
	ctx, cancel := context.WithTimeoutCause(ctx, limits.Wall,
		fault.New(fault.TooLarge, "it took longer than %s", limits.Wall))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	s := stage{Command: p.Command, Code: p.Code, Expose: p.Expose}
	path, err := s.program(p.Code)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, p.Command[1:]...)
	cmd.Args[0], cmd.Dir, cmd.Env = p.Command[0], p.Work, p.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Stdin, p.Stdout, p.Stderr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second

	walls := Walls{Write: []string{p.Work}, Exec: p.Expose, Network: p.Network, Disk: limits.Disk,
		Processes: limits.Processes}
	if p.Code != "" {
		walls.Exec = append([]string{p.Code}, p.Expose...)
	}
	most := limits.bounds(p.Work)
	most.threads = limits.Processes
	release, err := startWithin(cmd, walls, most, stop)
	if err != nil {
		return err
	}
	waited := cmd.Wait()
	cause := context.Cause(ctx)
	stop(nil)
	release()

	switch {
	case waited == nil:
		return nil
	case cause != nil && !errors.Is(cause, context.Canceled):
		return cause
	}
	return ended(waited)
}
