package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/dagctl/dagctl/internal/freeport"
)

// Process is a program that listens on a port and ends with the test.
type Process struct {
	binary string
	health string // path
	log    string // file of its output
	port   int
	stdin  io.Closer // the process ends when it is closed
	ended  chan struct{}
}

// NewProcess returns a process that does not run yet. It runs a binary, answers GET requests for the health path with
// status 200 once it is ready, and writes what it says to the file log.
func NewProcess(t testing.TB, binary, health, log string) *Process {
	p := &Process{binary: binary, health: health, log: log}
	t.Cleanup(p.Kill)
	return p
}

func (p *Process) address() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// URL returns http://127.0.0.1:port.
func (p *Process) URL() string { return "http://" + p.address() }

// Begin starts the process and returns when it answers at its address: the one it had, or a free one. A port that is
// free when Begin looks may be taken when the process binds it.
func (p *Process) Begin(ctx context.Context, arguments func(address string) ([]string, error)) error {
	again := p.port != 0
	const tries = 5
	var err error
	for range tries {
		if !again {
			if p.port, err = freeport.Find(); err != nil {
				return err
			}
		}

		var args []string
		if args, err = arguments(p.address()); err != nil {
			return err
		}
		if err = p.run(args); err == nil {
			err = p.answers(ctx)
		}
		if err == nil {
			return nil
		}
		p.Kill()
	}
	said, _ := os.ReadFile(p.log)
	return fmt.Errorf("%w; it says: %s", err, said)
}

// run starts the process below a shell that kills it when our end of a pipe closes, which happens however this process
// ends.
func (p *Process) run(args []string) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `"$@" </dev/null & pid=$!; read -r _; kill -9 $pid; wait $pid`,
		"guard", p.binary}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}

	ended := make(chan struct{})
	p.ended = ended
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	return nil
}

func (p *Process) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()

	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+p.health, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}

		select {
		case <-ctx.Done():
			return errors.Join(errors.New("it does not answer"), err)
		case <-again.C:
		}
	}
}

// Kill ends the process at once. It may be called again.
func (p *Process) Kill() {
	if p.stdin == nil {
		return
	}
	_ = p.stdin.Close()
	if p.ended != nil {
		<-p.ended
	}
	p.stdin = nil
}
