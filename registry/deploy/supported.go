package deploy

import (
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// refuseUnserved refuses a document that asks for something that this server's engine does not do. The language is
// larger than today's engine, and a user must learn that at the deploy, not by waiting for something that never
// happens.
func refuseUnserved(doc *dag.Document, operators map[string]dag.OperatorSpec) error {
	var problems []fault.Problem
	refuse := func(at dag.Position, what string, args ...any) {
		problems = append(problems, fault.Problem{Location: at.String(), Code: "not_served",
			Message: fmt.Sprintf(what, args...)})
	}

	for _, job := range doc.Jobs {
		if job.Source != nil {
			switch job.Source.Kind {
			case "cron", "poll", "manual", "webhook", "timer", dag.SourceAlwaysOn, dag.SourceDeploy:
			default:
				refuse(job.Position,
					"job %s: this server does not run %s sources: use cron, poll, manual, webhook, timer or always_on",
					job.Name, job.Source.Kind)
			}
		}

		if k := job.PartitionBy.Kind; job.Source != nil && job.Source.Kind == "timer" && len(job.Outputs) > 0 &&
			(k == dag.ByKey || k == dag.ByRange) {
			refuse(job.Position, "job %s: a timer has no partition key; partition_by is a unit of time, or none",
				job.Name)
		}
		if job.PartitionBy.Kind == dag.ByCursor {
			refuseCursor(job, operators[job.Operator], func(what string) {
				refuse(job.Position, "job %s: %s", job.Name, what)
			})
		}
		if job.UDF != nil && job.Operator != dag.OwnCode {
			refuse(job.Position, "job %s: operator %s runs no code of the user's own; operator udf does", job.Name,
				job.Operator)
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

// refuseCursor refuses the uses of cursors that the engine does not support.
func refuseCursor(job dag.Job, operator dag.OperatorSpec, refuse func(what string)) {
	switch {
	case job.Source == nil:
		refuse("this server supports cursors only for sources; jobs with inputs need other partitions, or none")
	case operator.Replayable:
		refuse(fmt.Sprintf("this server does not support cursors for %s, which determines its partitions itself",
			job.Operator))
	case job.UpdateStrategy == dag.Append:
		refuse("a segment of a cursor is written once: this server does not append to it")
	}
	for _, s := range job.Storage {
		if storage.Kind(s.Kind) == storage.Postgres {
			refuse("this server keeps segments of a cursor as Parquet, not in Postgres")
		}
	}
}
