package tasks

import (
	"strings"

	"github.com/dagctl/dagctl/dag"
)

// NeedCheck is what a check task needs: the server itself.
const NeedCheck = "check"

// NeedsOf returns what a worker must be able to run for a job's tasks of a kind: OPERATOR@VERSION, handler:NAME, or
// check. Behind the version of an export to a folder stands that it is one. But for this, it depends only on fields
// that the origin's fingerprint covers, so it never changes while a task waits.
func NeedsOf(job *dag.Job, kind Kind) string {
	if kind == NeedCheck {
		return NeedCheck
	}
	if job.Operator == dag.Handler {
		name, _ := job.Config["handler"].(string)
		return dag.Handler + ":" + name
	}
	return job.Operator + "@" + job.OperatorVersion + strings.TrimPrefix(job.RunsAs(), job.Operator)
}

// OperatorOf returns the operator named in a task's needs.
func OperatorOf(needs string) string {
	if strings.HasPrefix(needs, dag.Handler+":") {
		return dag.Handler
	}
	name, _, _ := strings.Cut(needs, "@")
	return name
}

// RunsAsOf returns what dag.Job.RunsAs is for a job whose tasks have some needs.
func RunsAsOf(needs string) string {
	name, rest, _ := strings.Cut(needs, "@")
	if _, folder, ok := strings.Cut(rest, " "); ok && !strings.HasPrefix(needs, dag.Handler+":") {
		return name + " " + folder
	}
	return OperatorOf(needs)
}
