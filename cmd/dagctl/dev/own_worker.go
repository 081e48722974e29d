package dev

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/lines"
)

// How long a worker is waited for: it finishes its tasks or gives them back. On a save it has the time that the SDKs
// take by themselves; at the end of the dev server it is asked once more, and gives them back at once.
const (
	saveGrace = 30 * time.Second
	endAgain  = 2 * time.Second
	endGrace  = 20 * time.Second
)

// A worker that crashes is started again after growing waits, and after the shortest one if it ran for long.
const (
	shortestWait = time.Second
	longestWait  = 30 * time.Second
	ranLong      = time.Minute
)

// mostFailures is how often in a row a worker may fail within ranLong until `dev --once` gives up.
const mostFailures = 4

// mostLast is how many lines of the output of a worker that has crashed are printed.
const mostLast = 15

// ownWorker is a worker that is kept running.
type ownWorker struct {
	declared declared
	owner    *ownWorkers
	seen     [sha256.Size]byte // its code at the previous look
	runs     [sha256.Size]byte // its code at its start

	saved chan struct{} // its code has changed
	stop  chan struct{} // it is to end for good
	ended chan struct{}
}

// start starts a worker and keeps it running until end is called.
func (o *ownWorkers) start(d declared) *ownWorker {
	code := d.fingerprint()
	w := &ownWorker{declared: d, owner: o, seen: code, runs: code, saved: make(chan struct{}, 1),
		stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.keep()
	}()
	return w
}

// end asks the worker to end for good, which closes ended.
func (w *ownWorker) end() { close(w.stop) }

// watch starts the worker anew if its code has changed, and looks the same twice.
func (w *ownWorker) watch() {
	code := w.declared.fingerprint()
	settled := code == w.seen
	if w.seen = code; settled && code != w.runs {
		w.runs = code
		select {
		case w.saved <- struct{}{}:
		default: // it is about to be started anyway
		}
	}
}

// keep runs the worker again and again until it is to end.
func (w *ownWorker) keep() {
	o, style := w.owner, w.owner.Style(w.owner.Out)
	wait, again, failures := shortestWait, "worker", 0
	for {
		fmt.Fprintf(o.Out, "%s %s: %s\n", style.Busy(again), w.declared.Name, strings.Join(w.declared.Command, " "))
		began := time.Now()
		last, why, exit := w.runOnce()
		switch why {
		case toEnd:
			return
		case wasSaved:
			wait, again, failures = shortestWait, "saved", 0
			continue
		}

		if time.Since(began) > ranLong {
			wait, failures = shortestWait, 0
		}
		if failures++; exit != nil && o.once && failures == mostFailures {
			o.giveUp(w.declared.Name, exit, last)
			return
		}
		var timer <-chan time.Time
		if exit == nil {
			fmt.Fprintf(o.Out, "%s worker %s has finished; the next save starts it again\n", style.Good("ends"),
				w.declared.Name)
		} else {
			fmt.Fprintf(o.Out, "%s worker %s: %v; it starts again in %s, or at the next save\n", style.Bad("failed"),
				w.declared.Name, exit, cli.Duration(wait))
			for _, line := range last {
				fmt.Fprintln(o.Out, "  "+cli.OneLine(line, 300))
			}
			timer = time.After(wait)
		}
		select {
		case <-timer:
			wait, again = min(2*wait, longestWait), "again"
		case <-w.saved:
			wait, again, failures = shortestWait, "saved", 0
		case <-w.stop:
			return
		}
	}
}

// outcome is why a run of a worker is over.
type outcome int

const (
	endedItself outcome = iota
	wasSaved
	toEnd
)

// runOnce runs the worker's program once, and returns its last lines and how it exited.
func (w *ownWorker) runOnce() (last []string, why outcome, exit error) {
	output := w.newLog()
	cmd := exec.Command(w.declared.Command[0], w.declared.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = w.declared.Dir, output, output
	cmd.WaitDelay = time.Second // what it has started and left behind may hold its output open
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "DAGCTL_") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "PYTHONUNBUFFERED=1")
	cmd.Env = append(cmd.Env, w.declared.Env...)
	cmd.Env = append(cmd.Env, "DAGCTL_URL="+w.owner.url, "DAGCTL_TOKEN="+w.owner.token)
	dieWithParent(cmd)

	started, exited := make(chan error, 1), make(chan error, 1)
	go func() {
		// The system ends the program when the thread that started it does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, endedItself, err
	}

	select {
	case exit = <-exited:
	case <-w.saved:
		why = wasSaved
		w.terminate(cmd.Process.Pid, exited)
	case <-w.stop:
		why = toEnd
		w.finish(cmd.Process.Pid, exited)
	}
	output.lines.End()
	return output.last, why, exit
}

// terminate ends a worker that is started anew. It may finish its tasks first.
func (w *ownWorker) terminate(pid int, exited <-chan error) {
	signalGroup(pid, syscall.SIGTERM)
	select {
	case <-exited:
	case <-w.stop:
		w.finish(pid, exited)
	case <-time.After(saveGrace):
		signalGroup(pid, syscall.SIGKILL)
		<-exited
	}
}

// finish ends a worker with the dev server.
func (w *ownWorker) finish(pid int, exited <-chan error) {
	signalGroup(pid, syscall.SIGTERM)
	again, grace := time.After(endAgain), time.After(endGrace)
	for {
		select {
		case <-exited:
			return
		case <-again:
			signalGroup(pid, syscall.SIGINT)
		case <-grace:
			signalGroup(pid, syscall.SIGKILL)
			<-exited
			return
		}
	}
}

// signalGroup sends a signal to a program and to what it has started.
func signalGroup(pid int, s syscall.Signal) { _ = syscall.Kill(-pid, s) } // it may have ended since

// workerLog writes the output of a worker to the log of the dev server, line by line, and keeps the last lines.
type workerLog struct {
	worker *ownWorker
	lines  lines.Splitter
	last   []string
}

func (w *ownWorker) newLog() *workerLog {
	l := &workerLog{worker: w}
	l.lines.Tell = l.line
	return l
}

func (l *workerLog) Write(p []byte) (int, error) {
	l.lines.Add(string(p))
	return len(p), nil
}

func (l *workerLog) line(text string) {
	text = strings.TrimRight(text, "\r")
	l.worker.owner.log.Info(text, "worker", l.worker.declared.Name)
	if l.last = append(l.last, text); len(l.last) > mostLast {
		l.last = l.last[1:]
	}
}
