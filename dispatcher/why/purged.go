package why

import (
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/registry"
)

// again says what makes a partition of a job's dataset again that is gone: by itself, and by a command where there is
// one.
func (e *explainer) again(job *registry.Job, dataset, key string) Reason {
	r := Reason{Partition: key, Detail: "its inputs or its definition change"}
	by, source := job.Def.PartitionBy, job.Def.Source
	run := "dagctl run " + job.Address()

	switch {
	case job.Def.Effect == dag.EffectExternal:
		r.Command = doneAgain(job)
	case job.Def.Splits() || stale.ReadsNew(job):
		r.Command = rematerialize(dataset)
	case by.Kind == dag.ByCursor:
		r.Detail = "its source reads that position again"
	case source == nil || job.Def.Asked():
		r.Command = run + " --partition " + key
	case e.readAgain(job):
		r.Detail = "its source has other content for it"
		r.Command = fmt.Sprintf("dagctl backfill %[1]s --from %[2]s --to %[2]s --existing all", job.Address(), key)
	case source.Kind == "manual" && key != dag.WholeKey:
		r.Detail, r.Command = "somebody runs its job for it", run+" --partition "+key
	case source.Kind == "manual" || sources.Readable(source.Kind):
		r.Detail, r.Command = "its job runs and its source has it", run
	default:
		r.Detail = "its source gives it again"
	}
	return r
}

// rematerialize is the command that makes a whole dataset again.
func rematerialize(dataset string) string { return "dagctl rematerialize " + dataset }

// readAgain reports whether a backfill reads a source's partitions again; see control.StartBackfill.
func (e *explainer) readAgain(job *registry.Job) bool {
	_, enumerable := e.d.sources.Enumerator(job)
	return enumerable || job.Def.Source.Kind == "cron" && job.Def.PartitionBy.Kind == dag.ByTime
}

// purgedSentence puts whyPurged into words.
func purgedSentence(r Reason) string {
	text := "it was purged"
	if r.Detail != "" {
		text += ", and comes back when " + r.Detail
	}
	if r.Command != "" {
		text += "; at once: " + r.Command
	}
	return text
}
