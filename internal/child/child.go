// Package child runs processes of this same binary, for work that may end a process: DuckDB crashes on some texts that
// users can write. A child starts with an empty environment, limits itself before it reads anything, talks with its
// parent in JSON values, and ends when its stdin ends.
package child

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// kinds holds the arguments of the kinds of children that this binary can be.
var kinds = map[string]bool{}

// Main runs a child and ends the process, if the process was started as one of that kind. main must call it first, and
// so must TestMain of packages whose tests start children. Elsewhere, Can answers no.
func Main(kind string, run func(in io.Reader, out io.Writer) int) {
	if len(os.Args) == 2 && os.Args[1] == kind {
		os.Exit(run(os.Stdin, os.Stdout))
	}
	kinds[kind] = true
}

// Can reports whether this process can start children of a kind.
func Can(kind string) bool { return kinds[kind] }

// Limits bound a process. What is zero is not limited.
type Limits struct {
	Memory int64 // bytes of data
	CPU    time.Duration
	Files  int64 // bytes of a file that it may write; 0: it writes none
}

// Confine limits this process, for good: it writes no core dump, which would hold rows.
func (l Limits) Confine() error {
	limits := map[int]uint64{syscall.RLIMIT_CORE: 0, syscall.RLIMIT_FSIZE: uint64(l.Files),
		syscall.RLIMIT_NOFILE: 1 << 10}
	if l.Memory > 0 {
		limits[syscall.RLIMIT_DATA] = uint64(l.Memory)
	}
	if l.CPU > 0 {
		limits[syscall.RLIMIT_CPU] = uint64((l.CPU + time.Second - 1) / time.Second)
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

// Process is a child as its parent sees it.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	encode *json.Encoder
	decode *json.Decoder
}

// Start starts a child of a kind in a folder; most bounds the bytes of its answers together, unless it is 0. The child
// is killed when ctx ends.
func Start(ctx context.Context, kind, dir string, most int64) (*Process, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.CommandContext(ctx, path)}
	p.cmd.Args = []string{"dagctl", kind}
	p.cmd.Env = []string{}
	p.cmd.Dir = dir

	// A process group of its own, so that Ctrl-C does not end what the server would let finish. Stderr goes nowhere:
	// what a dying process says may quote rows.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}

	var answers io.Reader = out
	if most > 0 {
		answers = io.LimitReader(out, most)
	}
	p.out, p.encode, p.decode = answers, json.NewEncoder(p.in), json.NewDecoder(answers)
	return p, nil
}

// program is this process's own binary, even if a newer one has replaced its file.
func program() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// Ask sends one value and reads the next.
func (p *Process) Ask(question, answer any) error {
	if err := p.Tell(question); err != nil {
		return err
	}
	return p.decode.Decode(answer)
}

// Tell sends one value.
func (p *Process) Tell(value any) error { return p.encode.Encode(value) }

// Pipes returns the child's stdin and stdout, for callers that talk otherwise than by Ask.
func (p *Process) Pipes() (in io.WriteCloser, out io.Reader) { return p.in, p.out }

// Leave ends what is sent to the child, and returns how it ended.
func (p *Process) Leave() error {
	_ = p.in.Close() // it may have ended by itself
	return p.cmd.Wait()
}

// PID returns the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the child at once; Stop then returns how it ended.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// KillGroup ends the child and all that it started.
func (p *Process) KillGroup() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// Stop ends the child if it still runs, and returns how it ended.
func (p *Process) Stop() error {
	p.Kill()
	return p.Leave()
}

// Died reports that a child ended without an answer because of what it was asked: a signal, or memory. Only Go's own
// code ends with 2.
func Died(ended error) (signal syscall.Signal, died bool) {
	var exit *exec.ExitError
	if !errors.As(ended, &exit) {
		return 0, false
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return status.Signal(), true
	}
	return 0, status.ExitStatus() == 2
}
