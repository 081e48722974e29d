// Package sandbox runs untrusted programs: in namespaces of their own (users, mounts, processes, network, IPC), as an
// unprivileged user, with only the given environment, a read-only file system of the system's programs and one folder
// to write to, without network unless the caller asks for it, with seccomp against the system calls that have been used
// to break out, and with limits on memory, time, files and processes.
//
// Vocabulary: the supervisor is the process that calls Run. The stage is this same binary, started in the namespaces to
// confine itself and then become the program. Where there are no namespaces, a program is confined by Landlock instead
// of a file system of its own, at its own paths (bare_linux.go). If the machine gives neither, Available and Run return
// an error. It owns no tables.
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
	Code    string   // folder of its code, visible as /code, read-only
	Work    string   // folder that it may write to, visible as /task, its working folder
	Env     []string // its whole environment
	Expose  []string // more folders of the system that it may read, at their own paths, such as that of a Python
	Network bool     // it may reach the network as this machine does
	Bare    bool     // without namespaces even where there are some: Code and Work are visible at their own paths
	Alone   bool     // nothing else runs on this machine: see Hide. Code and Work are visible at their own paths

	Limits Limits
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Limits bound a program and all that it starts. The zero value of each is its default.
type Limits struct {
	Memory    int64         // bytes that its processes may hold together; default 512 MiB
	Wall      time.Duration // default 10 min
	Disk      int64         // bytes below Work, with removed files that it holds, and of any one; default 2 GiB
	Files     int           // and folders below Work; default 200,000
	Processes int           // and threads; default 128
}

// The defaults of Limits.
const (
	DefaultMemory    = 512 << 20
	DefaultWall      = 10 * time.Minute
	DefaultDisk      = 2 << 30
	DefaultFiles     = 200_000
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
	if l.Files <= 0 {
		l.Files = DefaultFiles
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

// ExitError is the error of a program that failed by itself.
type ExitError struct {
	Code   int    // its exit code; -1 if a signal ended it
	Signal string // the signal that ended it
}

func (e *ExitError) Error() string {
	if e.Signal != "" {
		return "the program was ended by signal " + e.Signal
	}
	return "the program ended with exit code " + strconv.Itoa(e.Code)
}
