// Package sandbox runs a program that nobody here has read, so that it can harm nothing: in namespaces of its own (users,
// mounts, processes, network, IPC), as an unprivileged user, with an empty environment but what it is given, a file system
// of the system's programs read-only and one folder to write to, no way to the network unless it is asked for, seccomp
// against the system calls that have been used to break out, and limits on memory, time, files and processes.
//
// Vocabulary: the supervisor is the process that calls Run; the stage is this same binary, started in the namespaces to
// build the walls and then become the program. Where the machine cannot give all of these, Available says so and Run
// refuses. It owns no tables.
package sandbox

import (
	"io"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// Program is what to run.
type Program struct {
	Command []string // the program and its arguments; a relative path is below Code
	Code    string   // folder of its code, seen as /code, read-only
	Work    string   // folder that it may write to, seen as /task, its working folder
	Env     []string // its whole environment
	Expose  []string // further folders of the system that it may read, at their own paths: a Python, say
	Network bool     // it may reach the network as this machine does
	Alone   bool     // the machine is this program's alone: see Hide. Code and Work are seen at their own paths

	Limits Limits
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Limits bound a program and all that it starts. The zero value of each is its default.
type Limits struct {
	Memory    int64         // bytes that its processes may hold together; default 512 MiB
	Wall      time.Duration // default 10 min
	Disk      int64         // bytes below Work, and of any one file; default 2 GiB
	Processes int           // and threads; default 128
}

// The defaults of Limits.
const (
	DefaultMemory    = 512 << 20
	DefaultWall      = 10 * time.Minute
	DefaultDisk      = 2 << 30
	DefaultProcesses = 128
)

func (l Limits) orDefault() Limits {
	if l.Memory <= 0 {
		l.Memory = DefaultMemory
	}
	if l.Wall <= 0 {
		l.Wall = DefaultWall
	}
	if l.Disk <= 0 {
		l.Disk = DefaultDisk
	}
	if l.Processes <= 0 {
		l.Processes = DefaultProcesses
	}
	return l
}

func (p Program) validate() error {
	if len(p.Command) == 0 || p.Work == "" {
		return fault.New(fault.Internal, "sandbox: a command and a work folder are needed")
	}
	return nil
}

// ExitError says that the program ended in failure by itself.
type ExitError struct {
	Code   int    // its exit code; -1 where a signal ended it
	Signal string // the signal that ended it
}

func (e *ExitError) Error() string {
	if e.Signal != "" {
		return "the program was ended by signal " + e.Signal
	}
	return "the program ended with exit code " + strconv.Itoa(e.Code)
}
