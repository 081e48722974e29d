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

// process is a child as its parent sees it. What it says is believed as far as the caller's own word would be: it names
// relations, which are resolved under the caller's rights, and gives rows.
type process struct {
	task   task
	cmd    *exec.Cmd
	in     io.WriteCloser
	encode *json.Encoder
	decode *json.Decoder
}

// program is this process's own binary, even where the file of that name is a newer one by now.
func program() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// start begins a child in a folder; it is killed when ctx ends.
func start(ctx context.Context, dir string, t task) (*process, error) {
	path, err := program()
	if err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	p := &process{task: t, cmd: exec.CommandContext(ctx, path)}
	p.cmd.Args = []string{"dagctl", childArg}
	p.cmd.Env = []string{}
	p.cmd.Dir = dir
	// A group of its own, so that Ctrl-C on a terminal does not end what the server would let finish. Stderr goes nowhere:
	// what a dying process says may quote rows.
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

// death says why a child that owes an answer has ended.
func (p *process) death(ended, err error) error {
	var exit *exec.ExitError
	if !errors.As(ended, &exit) {
		return fmt.Errorf("talk with the process of the query: %w", errors.Join(err, ended))
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled() && status.Signal() == syscall.SIGXCPU:
		return fault.New(fault.TooLarge, "the query took more processor time than a query may")
	case status.Signaled() || status.ExitStatus() == 2: // Go ends with 2 where it has no memory
		// Whatever it died of, a query did that; the next one has a process of its own.
		return outOfMemory(p.task.Memory).WithHint("or it is too much for DuckDB, by its depth for one: write it more plainly")
	}
	return fmt.Errorf("the process of the query ended: %w", ended)
}

// stop ends the child, at the latest now.
func (p *process) stop() error {
	_ = p.in.Close() // it may have ended by itself
	_ = p.cmd.Process.Kill()
	return p.cmd.Wait()
}
