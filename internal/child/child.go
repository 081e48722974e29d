// Package child runs processes of this same binary, for work that may end a process: DuckDB crashes on some texts that
// users can write. A child starts behind walls (internal/sandbox): no environment but settings of Go's runtime, only
// the files that it is given, no sockets, no other programs, and bounded memory. It talks with its parent over its
// stdin and stdout, and ends when its stdin ends, or with its parent.
package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/sandbox"
)

// kinds holds the arguments of the kinds of children that this binary can be.
var kinds = map[string]bool{}

// ErrMemory is why a child ended that held more memory than it may: see Stop.
var ErrMemory = sandbox.ErrMemory

// Main runs a child and ends the process, if the process was started as one of that kind. main must call it first, and
// so must TestMain of packages whose tests start children. Elsewhere, Can answers no.
func Main(kind string, run func(in io.Reader, out io.Writer) int) {
	if len(os.Args) == 3 && os.Args[1] == kind {
		var c confinement
		err := json.Unmarshal([]byte(os.Args[2]), &c)
		if err == nil {
			err = c.enter()
		}
		if err != nil {
			os.Exit(notConfined)
		}
		os.Exit(run(os.Stdin, os.Stdout))
	}
	kinds[kind] = true
}

// notConfined is the exit code of a child that could not put up its walls.
const notConfined = 125

// Can reports whether this process can start children of a kind.
func Can(kind string) bool { return kinds[kind] }

// Config is what a child is and may do. What it does not list, the child may not.
type Config struct {
	Kind  string
	Dir   string     // where it starts; it may read there what Read or Write allow
	Read  []string   // files, and folders with all that is below them, that it may read; no links lead out of them
	Write []string   // the same, to read and change
	Files []*os.File // that it has open as descriptors 4, 5, ...

	Memory  int64         // bytes that it holds; more ends it; 0: any
	CPU     time.Duration // processor time; 0: any
	Disk    int64         // bytes of any one file; 0: it writes none
	Answers int64         // bytes of its answers together; 0: any
}

// confinement is what a child must do by itself.
type confinement struct {
	Memory, Disk int64
	CPU          time.Duration
	Files        int
}

func (c confinement) enter() error {
	return sandbox.Enter(sandbox.Walls{Memory: c.Memory, CPU: c.CPU, Disk: c.Disk}, 4+c.Files)
}

// runtimeSettings are all that is in a child's environment: what Go's runtime is to know from the first moment on. A
// child begins with 10 MB of tables, which would be collected thrice before it has done anything, and its work in Go is
// for one processor: more threads wake each other up, and collect garbage beside those of other children.
var runtimeSettings = []string{"GOGC=400", "GOMAXPROCS=1"}

// Process is a child as its parent sees it.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *os.File
	most   io.Reader // the first Config.Answers bytes of out
	gone   <-chan struct{}
	ended  func() error
	encode *json.Encoder
	decode *json.Decoder
}

// Start starts a child, which is killed when ctx ends. Leave or Stop must be called.
func Start(ctx context.Context, c Config) (*Process, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	rest, err := json.Marshal(confinement{Memory: c.Memory, Disk: c.Disk, CPU: c.CPU, Files: len(c.Files)})
	if err != nil {
		return nil, err
	}
	question, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, answer, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, question.Close(), in.Close())
	}

	// Stderr goes nowhere: what a dying process says may quote rows. It has a process group of its own, so that Ctrl-C
	// does not end what the server would let finish.
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = []string{"dagctl", c.Kind, string(rest)}
	cmd.Env, cmd.Dir, cmd.ExtraFiles = slices.Clone(runtimeSettings), c.Dir, c.Files
	cmd.Stdin, cmd.Stdout = question, answer

	p := &Process{cmd: cmd, in: in, out: out, most: out}
	p.gone, p.ended, err = sandbox.StartSelf(cmd, sandbox.Walls{Read: c.Read, Write: c.Write, Memory: c.Memory})
	_, _ = question.Close(), answer.Close() // the child has its own
	if err != nil {
		_, _ = in.Close(), out.Close()
		return nil, fmt.Errorf("start %s: %w", c.Kind, err)
	}

	if c.Answers > 0 {
		p.most = io.LimitReader(out, c.Answers)
	}
	p.encode, p.decode = json.NewEncoder(in), json.NewDecoder(p.most)
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
func (p *Process) Pipes() (in io.WriteCloser, out io.Reader) { return p.in, p.most }

// Gone is closed when the child has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Leave ends what is sent to the child, waits for its end, and returns how it ended.
func (p *Process) Leave() error {
	_ = p.in.Close() // it may have ended by itself
	how := p.ended()
	_ = p.out.Close() // of a child that is gone, nothing is to come
	return how
}

// PID returns the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the child at once; Stop then returns how it ended.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// Stop ends the child if it still runs, and returns how it ended: ErrMemory is part of the error if it held too much.
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
