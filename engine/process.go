package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/child"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/workdir"
)

// Arg is the argument that makes a process of this binary an engine.
const Arg = "engine"

// Question is one piece of work, encoded as JSON. Its verb says who answers it inside.
type Question interface{ Verb() string }

// Begin is the first question to every engine: what it may use, and where its folder is.
type Begin struct {
	Kind   Kind             `json:"kind"`
	Dir    string           `json:"dir"`
	Limits relations.Limits `json:"limits"`
	Writes bool             `json:"writes"` // it may write files
	// The process is an engine and nothing else: it limits itself.
	Alone bool `json:"alone"`
}

// Verb implements Question.
func (Begin) Verb() string { return "begin" }

// Engine is one engine, held by one caller. It is for one goroutine.
type Engine struct {
	engines *Engines
	purpose Purpose
	dir     string
	talk    talk
	broken  atomic.Bool  // it answers nothing any more
	asked   bool         // it has had work since it began
	linked  int          // files so far: no name comes twice, since DuckDB remembers files by their names
	home    *workdir.Dir // dir, with its lock
	ending  sync.Once

	since time.Time // it has been idle since
	ends  *time.Timer
}

// talk is the way to an engine's process.
type talk struct {
	in   io.WriteCloser
	out  io.Reader
	kill func()
	wait func() error // returns how it ended
	pid  int
}

// start starts an engine.
func (e *Engines) start(p Purpose) (*Engine, error) {
	home, err := makeFolder(e.config.Dir)
	if err != nil {
		return nil, fmt.Errorf("make the folder of an engine: %w", err)
	}

	dir := home.Path
	engine := &Engine{engines: e, purpose: p, dir: dir, home: home}
	begin := Begin{Kind: p.Kind, Dir: dir, Limits: p.Limits, Writes: p.writes(),
		Alone: e.config.Inside == nil}
	if e.config.Inside != nil {
		engine.talk = within(e.config.Inside)
	} else if engine.talk, err = alone(dir, p); err != nil {
		return nil, errors.Join(fmt.Errorf("start an engine: %w", err), home.Remove())
	}
	e.counted.starts.WithLabelValues(string(p.Kind)).Inc()
	if err := engine.Do(context.Background(), begin, nil); err != nil {
		engine.end()
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	engine.asked = false
	return engine, nil
}

// alone starts a process, behind walls. DuckDB enforces its own memory limit; that of the process is higher, and bounds
// what DuckDB does not count.
func alone(dir string, purpose Purpose) (talk, error) {
	memory, disk := purpose.Limits.MostMemory(), int64(0)
	if purpose.writes() {
		disk = 1 << 50
	}
	p, err := child.Start(context.Background(), child.Config{Kind: Arg, Dir: dir,
		Read:   []string{filepath.Join(dir, "in")},
		Write:  []string{filepath.Join(dir, "out"), filepath.Join(dir, "spill")},
		Memory: memory + memory/2 + 256<<20, CPU: purpose.CPU, Disk: disk})
	if err != nil {
		return talk{}, err
	}
	in, out := p.Pipes()
	return talk{in: in, out: out, kill: p.Kill, wait: p.Leave, pid: p.PID()}, nil
}

// within runs the loop in this process.
func within(inside func(in io.Reader, out io.Writer) int) talk {
	inside0, in := io.Pipe()
	out, outside := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		inside(inside0, outside)
		_ = outside.Close()
	}()
	end := func() { _ = inside0.CloseWithError(io.EOF) }
	return talk{in: in, out: out, kill: end, pid: os.Getpid(), wait: func() error {
		end()
		_ = out.Close()
		<-done
		return nil
	}}
}

// Do asks the engine and decodes its answer, which may be nil. If ctx ends first, the process is killed at once, and
// the error is the context's cause.
func (g *Engine) Do(ctx context.Context, q Question, answer any) error {
	return g.ask(ctx, q, answer, func(a *Answered) error { return ReadFrame(g.talk.out, a) })
}

// Stream is Do for a question whose answer follows a stream of bytes. It ends an engine that streams more than it may.
func (g *Engine) Stream(ctx context.Context, q Question, to io.Writer, most int64, answer any) error {
	return g.ask(ctx, q, answer, func(a *Answered) error { return ReadStream(g.talk.out, to, most, a) })
}

func (g *Engine) ask(ctx context.Context, q Question, answer any, read func(*Answered) error) error {
	if g.broken.Load() {
		return fault.New(fault.Unavailable, "the engine of this work has ended")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}

	g.asked = true
	stop, unwatch := context.AfterFunc(ctx, g.kill), g.watch()
	var a Answered
	if err = WriteFrame(g.talk.in, Asked{q.Verb(), body}); err == nil {
		err = read(&a)
	}
	long := unwatch()
	if !stop() { // it is being killed
		g.broken.Store(true)
		g.died(stopped)
		return context.Cause(ctx)
	}
	if err != nil || long {
		g.broken.Store(true)
		return g.death(err, long)
	}
	if a.Failure != nil {
		return a.Failure.Err()
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(a.Body, answer)
}

// death returns why an engine ended without an answer; long says that it took too long. Whatever it was, only this
// work is affected.
func (g *Engine) death(err error, long bool) error {
	ended := g.leave()
	signal, died := child.Died(ended)

	switch {
	case long, died && (signal == syscall.SIGXCPU || signal == syscall.SIGKILL && g.spent(ended)):
		g.died(processorTime)
		return fault.New(fault.TooLarge, "it took more processor time than it may")
	case died && signal == syscall.SIGKILL && !errors.Is(ended, child.ErrMemory):
		g.died(crashed)
		return fault.New(fault.Unavailable, "the process that worked on it was killed: by somebody, or by the system "+
			"for want of memory")
	case died && (signal == 0 || signal == syscall.SIGKILL || signal == syscall.SIGABRT):
		g.died(memory)
		return &Error{Failure: Failure{Text: "it needs more memory than it may use, or is too complex for DuckDB",
			Memory: true, OfStatement: true}}
	case died:
		g.died(crashed)
		return &Error{Failure: Failure{Text: "DuckDB ended by itself (" + signal.String() +
			"): the statement or the file is too complex for it, for example nested too deeply", OfStatement: true}}
	}
	g.died(lost)
	return fmt.Errorf("talk with an engine: %w", errors.Join(err, ended))
}

// spent reports whether a process has used up its processor time.
func (g *Engine) spent(ended error) bool {
	var exit *exec.ExitError
	return g.purpose.CPU > 0 && errors.As(ended, &exit) && exit.UserTime()+exit.SystemTime() >= g.purpose.CPU
}

// died counts the engine's end.
func (g *Engine) died(reason string) {
	g.engines.counted.deaths.WithLabelValues(string(g.purpose.Kind), reason).Inc()
}

// kill kills the process with all that it started.
func (g *Engine) kill() { g.talk.kill() }

// leave ends the process if it still runs, and returns how it ended.
func (g *Engine) leave() error {
	_ = g.talk.in.Close() // it may have ended by itself
	return g.talk.wait()
}

// PID returns the id of the engine's process.
func (g *Engine) PID() int { return g.talk.pid }

// Release gives the engine back: for more work of its purpose, or to its end.
func (g *Engine) Release() {
	defer g.engines.slots[g.purpose.Kind].Release(g.purpose.Org)
	if g.broken.Load() || g.clear() != nil {
		g.engines.drop(g)
		return
	}
	g.engines.put(g)
}

// Discard ends the engine instead of keeping it for more work. It keeps one that has had none: where starting it took
// the time that there was, the next try has an engine.
func (g *Engine) Discard() {
	if !g.asked {
		g.Release()
		return
	}
	defer g.engines.slots[g.purpose.Kind].Release(g.purpose.Org)
	g.engines.drop(g)
}

// end ends the process and removes its folder.
func (g *Engine) end() {
	g.ending.Do(func() {
		g.broken.Store(true)
		g.kill()
		_ = g.leave()
		_ = g.home.Remove()
	})
}

// Org returns the org that the engine works for.
func (g *Engine) Org() string { return g.purpose.Org }
