package dags

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
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

// writeFindings prints what readers have to know, and which of it keeps what is wanted, such as a deploy that agrees to
// given, from happening.
func writeFindings(w io.Writer, what string, findings []contract.Finding, given []contract.Consent) {
	for _, f := range findings {
		if f.Level == contract.Says {
			fmt.Fprintf(w, "%s.\n", sentence(f.Text))
		} else {
			writeObstacle(w, what, f, given)
		}
	}
}

// writeObstacle prints what keeps a deploy or a deletion from happening, or would without the consent given.
func writeObstacle(w io.Writer, what string, f contract.Finding, given []contract.Consent) {
	switch {
	case f.Level == contract.Asks && !f.Needs(given):
		fmt.Fprintf(w, "%s. --%s agrees to it.\n", sentence(f.Text), f.Consent)
	case f.Level == contract.Asks:
		fmt.Fprintf(w, "%s. This %s needs --%s%s.\n", sentence(f.Text), what, f.Consent, hint(f))
	default:
		fmt.Fprintf(w, "%s. This %s is refused%s.\n", sentence(f.Text), what, hint(f))
	}
}

func hint(f contract.Finding) string {
	if f.Hint == "" {
		return ""
	}
	return ": " + f.Hint
}

// sentence begins a text with a capital, unless it begins with a name.
func sentence(text string) string {
	for _, word := range []string{"dataset ", "the "} {
		if strings.HasPrefix(text, word) {
			return strings.ToUpper(text[:1]) + text[1:]
		}
	}
	return text
}

// refused reports whether a server would refuse to carry out a plan, because the request does not agree to it.
func refused(plan registry.Plan, request registry.DeployRequest) bool {
	given := request.Consents()
	needs := func(f contract.Finding) bool { return f.Needs(given) }
	return slices.ContainsFunc(plan.Findings, needs) || len(plan.Cancels) > 0 && !request.CancelTasks
}
