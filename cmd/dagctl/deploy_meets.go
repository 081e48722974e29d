package main

import (
	"fmt"
	"io"

	"github.com/dagctl/dagctl/registry"
)

// writeMeeting says what becomes of a build of the same DAG that a deploy meets.
func writeMeeting(w io.Writer, m *registry.Meeting) {
	if m == nil {
		return
	}
	switch m.Outcome {
	case registry.BuildPassed:
		fmt.Fprintf(w, "v%d is %s: this deploy rebuilds nothing, so it passes. v%d goes on, based on it, and brings its own settings once it serves.\n", m.Version, m.Status, m.Version)
	case registry.BuildSuperseded:
		fmt.Fprintf(w, "v%d is %s: it is abandoned, and what it built is kept.\n", m.Version, m.Status)
	case registry.BuildBlocks:
		fmt.Fprintf(w, "v%d is %s: this deploy is refused while it lasts. Wait for it, or pass --supersede to abandon it.\n", m.Version, m.Status)
	}
}

// writeCanceled says which tasks a cutover cancels.
func writeCanceled(w io.Writer, lost []registry.CanceledQueue) {
	for _, l := range lost {
		fmt.Fprintf(w, "%d open tasks of %s are canceled at the cutover: %s. A deploy of this needs --cancel-tasks.\n", l.Tasks, l.Job, l.Reason)
	}
}
