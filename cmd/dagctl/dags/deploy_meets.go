package dags

import (
	"fmt"
	"io"
	"slices"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// writeMeeting prints what happens to a running build of the same DAG.
func writeMeeting(w io.Writer, m *registry.Meeting) {
	if m == nil {
		return
	}
	switch m.Outcome {
	case deploy.BuildPassed:
		fmt.Fprintf(w, "v%d is %s: this deploy rebuilds nothing, so it passes. "+
			"v%d continues on top of it, and brings its own settings once it serves.\n", m.Version, m.Status, m.Version)
	case deploy.BuildSuperseded:
		fmt.Fprintf(w, "v%d is %s: this deploy abandons it, and keeps what it built.\n", m.Version, m.Status)
	case deploy.BuildBlocks:
		fmt.Fprintf(w, "v%d is %s: this deploy is refused until it ends. "+
			"Wait for it, or pass --supersede to abandon it.\n", m.Version, m.Status)
	}
}

// writeCanceled prints which tasks the cutover cancels.
func writeCanceled(w io.Writer, lost []registry.CanceledQueue) {
	for _, l := range lost {
		fmt.Fprintf(w, "The cutover cancels %d open tasks of %s: %s. This deploy needs --cancel-tasks.\n",
			l.Tasks, l.Job, l.Reason)
	}
}

// orForwardOnly is the other way to deploy what would lose partitions.
const orForwardOnly = ", or --forward-only if they are to stay"

// writeRemoved prints which partitions readers would lose; or is what else is possible than to allow it.
func writeRemoved(w io.Writer, changes []registry.Change, allowed bool, or string) {
	for _, c := range changes {
		switch {
		case c.Removes == nil:
		case allowed:
			fmt.Fprintf(w, "%s. --allow-removals lets them go.\n", c.Removes)
		default:
			fmt.Fprintf(w, "%s. This deploy needs --allow-removals%s.\n", c.Removes, or)
		}
	}
}

// refused reports whether a server would refuse to carry out a plan, because the request does not agree to it.
func refused(plan registry.Plan, request registry.DeployRequest) bool {
	loses := slices.ContainsFunc(plan.Changes, func(c registry.Change) bool { return c.Removes != nil })
	return loses && !request.AllowRemovals || len(plan.Cancels) > 0 && !request.CancelTasks
}
