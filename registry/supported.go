package registry

import (
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// refuseUnserved refuses a document that asks for what this server's engine does not do. The language is larger than the
// engine is today; what would be accepted and then never happen is said before anything is deployed.
func refuseUnserved(doc *dag.Document, operators map[string]dag.OperatorSpec) error {
	var problems []fault.Problem
	refuse := func(at dag.Position, what string, args ...any) {
		problems = append(problems, fault.Problem{Location: at.String(), Code: "not_served", Message: fmt.Sprintf(what, args...)})
	}
	for _, job := range doc.Jobs {
		if job.Source != nil {
			switch job.Source.Kind {
			case "cron", "poll", "manual", "webhook", "timer", dag.SourceAlwaysOn:
			default:
				refuse(job.Position, "job %s: this server does not run %s sources; cron, poll, manual, webhook, timer and always_on ones it does", job.Name, job.Source.Kind)
			}
		}
		if k := job.PartitionBy.Kind; job.Source != nil && job.Source.Kind == "timer" && len(job.Outputs) > 0 && (k == dag.ByKey || k == dag.ByRange) {
			refuse(job.Position, "job %s: a timer has no partition key; partition_by is a unit of time, or none", job.Name)
		}
		if job.PartitionBy.Kind == dag.ByCursor {
			refuseCursor(job, operators[job.Operator], func(what string) { refuse(job.Position, "job %s: %s", job.Name, what) })
		}
		if job.UDF != nil && job.Operator != dag.OwnCode {
			refuse(job.Position, "job %s: operator %s runs no code of the user's own; operator udf does", job.Name, job.Operator)
		}
		if job.UDF == nil && job.Operator == dag.OwnCode {
			refuse(job.Position, "job %s: operator udf runs the code that `udf` names, and it names none", job.Name)
		}
	}
	if len(problems) == 0 {
		return nil
	}
	e := fault.New(fault.Invalid, "%s", problems[0].Message).WithHint("leave it out of the document")
	e.Problems = problems
	return e
}

// refuseCursor refuses what the engine does not do of outputs by cursor.
func refuseCursor(job dag.Job, operator dag.OperatorSpec, refuse func(what string)) {
	switch {
	case job.Source == nil:
		refuse("this server keeps by cursor what sources make; jobs with inputs have partitions of another kind, or none")
	case operator.Replayable:
		refuse(fmt.Sprintf("%s finds out by itself which partitions there are, so this server does not keep what it makes by cursor", job.Operator))
	case job.UpdateStrategy == dag.Append:
		refuse("a segment of a cursor is written once: this server does not append to it")
	}
	for _, s := range job.Storage {
		if storage.Kind(s.Kind) == storage.Postgres {
			refuse("this server keeps segments of a cursor as Parquet, not in Postgres")
		}
	}
}
