package sandbox

import (
	"errors"
	"time"
)

// Walls say what a confined process may do. What they do not list, it may not.
type Walls struct {
	Read  []string // files, and folders with all that is below them, that it may read
	Write []string // the same, to read and change
	Exec  []string // programs and libraries, or folders of them: to read and to run

	Hidden  []string // what it may not even where it is below one of these
	Network bool     // it may use the network as this machine does, by TCP and UDP

	Memory    int64         // bytes that it holds, with all that it starts; more ends it
	CPU       time.Duration // processor time of one process
	Disk      int64         // bytes of any one file; 0: it writes none
	Processes int           // and threads

	// What it may have in its folders together, files included that it removed and still holds; more ends it.
	Scratch []string // the folders, all of them in Write
	Written int64    // bytes; 0: not bounded
	Files   int      // and folders; 0: any number
}

// ErrWritten is why a program ended that wrote more than it may.
var ErrWritten = errors.New("it wrote more than it may")

// ErrMemory is why a process ended that held more memory than it may.
var ErrMemory = errors.New("it held more memory than it may")
