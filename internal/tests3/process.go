package tests3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/freeport"
)

// process is a process that listens on a port and ends with the test.
type process struct {
	log   string // file of its output
	port  int
	stdin io.Closer // the process ends when it is closed
	ended chan struct{}
}

func newProcess(t testing.TB, log string) *process {
	p := &process{log: log}
	t.Cleanup(p.kill)
	return p
}

func (p *process) address() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

func (p *process) url() string { return "http://" + p.address() }

// begin starts the process and returns when it answers at its address: the one it had, or a free one. A port that is
// free when begin looks may be taken when the process binds it.
func (p *process) begin(ctx context.Context, flags func(address string) []string) error {
	binary, err := build()
	if err != nil {
		return fmt.Errorf("build it: %w", err)
	}

	again := p.port != 0
	const tries = 5
	for range tries {
		if !again {
			if p.port, err = freeport.Find(); err != nil {
				return err
			}
		}
		if err = p.run(binary, flags(p.address())); err == nil {
			err = p.answers(ctx)
		}
		if err == nil {
			return nil
		}
		p.kill()
	}
	said, _ := os.ReadFile(p.log)
	return fmt.Errorf("%w; it says: %s", err, said)
}

// run starts the process below a shell that kills it when our end of a pipe closes, which happens however this process
// ends.
func (p *process) run(binary string, flags []string) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `"$@" </dev/null & pid=$!; read -r _; kill -9 $pid; wait $pid`,
		"guard", binary}, flags...)...)
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

func (p *process) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()

	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url()+"/healthz", nil)
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

// kill ends the process at once. It may be called again.
func (p *process) kill() {
	if p.stdin == nil {
		return
	}
	_ = p.stdin.Close()
	if p.ended != nil {
		<-p.ended
	}
	p.stdin = nil
}

// build returns the server's program. Its name has the hash of its sources, so another version is another program.
var build = sync.OnceValues(func() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the repository is not known")
	}
	root := filepath.Join(filepath.Dir(file), "..", "..")
	tool := filepath.Join(root, "tools", "versitygw")
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(tool, name))
		if err != nil {
			return "", err
		}
		hash.Write(text)
	}
	cache := filepath.Join(root, ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	binary := filepath.Join(cache, "versitygw-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	lock, err := os.Create(binary + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // packages are tested at the same time
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	fmt.Fprintln(os.Stderr, "tests3: building the S3 server of the tests, once, in a minute or two")
	cmd := exec.Command("go", "build", "-C", tool, "-buildvcs=false", "-o", binary+".new",
		"github.com/versity/versitygw/cmd/versitygw")
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, os.Rename(binary+".new", binary)
})
