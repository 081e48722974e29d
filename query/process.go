package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/dagctl/dagctl/internal/fault"
)

// process is a child as its parent sees it. The parent trusts it as far as the caller: the child names relations, which
// the parent resolves with the caller's rights, and returns rows.
type process struct {
	task   task
	cmd    *exec.Cmd
	in     io.WriteCloser
	encode *json.Encoder
	decode *json.Decoder
}

// program is this process's own binary, even if a newer one has replaced its file.
func program() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// start starts a child in a folder. It is killed when ctx ends.
func start(ctx context.Context, dir string, t task) (*process, error) {
	path, err := program()
	if err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	p := &process{task: t, cmd: exec.CommandContext(ctx, path)}
	p.cmd.Args = []string{"dagctl", childArg}
	p.cmd.Env = []string{}
	p.cmd.Dir = dir

	// A process group of its own, so that Ctrl-C does not end a query that the server would let finish. Stderr goes
	// nowhere: what a dying process says may quote rows.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	p.encode, p.decode = json.NewEncoder(p.in), json.NewDecoder(io.LimitReader(out, 2*t.Bytes+16<<20))
	return p, nil
}

// ask sends one value and reads the next.
func (p *process) ask(ctx context.Context, question, answer any) error {
	err := p.encode.Encode(question)
	if err == nil {
		err = p.decode.Decode(answer)
	}
	if err == nil {
		return nil
	}
	ended := p.stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return p.death(ended, err)
}

// death returns why a child ended without an answer.
func (p *process) death(ended, err error) error {
	var exit *exec.ExitError
	if !errors.As(ended, &exit) {
		return fmt.Errorf("talk with the process of the query: %w", errors.Join(err, ended))
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled() && status.Signal() == syscall.SIGXCPU:
		return fault.New(fault.TooLarge, "the query took more processor time than a query may")
	case status.Signaled() || status.ExitStatus() == 2: // Go exits with 2 if it runs out of memory
		// Whatever the cause, only this query is affected: the next one has a process of its own.
		return outOfMemory(p.task.Memory).WithHint(
			"or it is too complex for DuckDB, for example nested too deeply: simplify it")
	}
	return fmt.Errorf("the process of the query ended: %w", ended)
}

// stop ends the child if it still runs.
func (p *process) stop() error {
	_ = p.in.Close() // it may have ended by itself
	_ = p.cmd.Process.Kill()
	return p.cmd.Wait()
}
