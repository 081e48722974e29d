package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// program is a running worker of the SDK under test.
type program struct {
	cmd    *exec.Cmd
	output *tail
	ended  chan struct{} // closed when it has ended
	err    error         // how it ended
}

// start runs the command against a server.
func start(o Options, url, tokenFile string) (*program, error) {
	if len(o.Command) == 0 {
		return nil, errors.New("there is no command to run")
	}
	p := &program{cmd: exec.Command(o.Command[0], o.Command[1:]...), output: &tail{copy: o.Stderr},
		ended: make(chan struct{})}
	p.cmd.Dir = o.Dir
	p.cmd.Env = append(os.Environ(), "DAGCTL_URL="+url, "DAGCTL_TOKEN="+o.Token,
		"DAGCTL_TOKEN_FILE="+tokenFile, "DAGCTL_RUNTIME="+Runtime)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that a shell around the program is killed with it
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Command[0], err)
	}

	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *program) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// terminate sends SIGTERM, as a container scheduler does: to the process itself, not to those that it started.
func (p *program) terminate() error { return p.cmd.Process.Signal(syscall.SIGTERM) }

// end waits for the program to exit by itself.
func (p *program) end(ctx context.Context, within time.Duration) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(within):
		return fmt.Errorf("it still runs after %s", within)
	}
}

func (p *program) kill() {
	if p.running() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended meanwhile
		<-p.ended
	}
}

// kill kills the program if it runs.
func (r *runner) kill() {
	if r.program != nil {
		r.program.kill()
		r.program = nil
	}
}

// ensure starts the program unless it runs.
func (r *runner) ensure() error {
	if r.program != nil && r.program.running() {
		return nil
	}
	var err error
	r.program, err = start(r.options, "http://"+r.address, r.tokenFile)
	return err
}

// tail keeps the end of a program's output.
type tail struct {
	copy io.Writer
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 2*tailBytes {
		t.text = append([]byte(nil), t.text[len(t.text)-tailBytes:]...)
	}
	if t.copy != nil {
		return t.copy.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text[max(0, len(t.text)-tailBytes):])
}
