package why

import (
	"context"
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
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

// comeBack is again with a command that can be run as things stand: one that ends a pause first, and that names the
// payload which a task of a manual job needs.
func (e *explainer) comeBack(ctx context.Context, job *registry.Job, dataset, key string) (Reason, error) {
	r := e.again(job, dataset, key)
	if source := job.Def.Source; source != nil && source.Kind == "manual" {
		payload, err := e.takesPayload(ctx, job)
		if err != nil {
			return r, err
		}
		if payload {
			r.Command += " --payload JSON"
		}
	}
	var err error
	r.Command, err = e.resumed(ctx, job, r.Command)
	return r, err
}

// takesPayload reports whether the tasks of a manual job have payloads: its definition or one of the last ones says so.
func (e *explainer) takesPayload(ctx context.Context, job *registry.Job) (takes bool, err error) {
	if len(job.Def.PayloadSchema) > 0 {
		return true, nil
	}
	err = e.tx.QueryRow(ctx, `
		SELECT count(payload) > 0 FROM (
			SELECT payload FROM shown_tasks WHERE org_id = $1 AND job_id = $2 AND kind = 'manual'
			ORDER BY id DESC LIMIT 100) AS t`, e.caller.OrgID, job.Origin).Scan(&takes)
	return takes, fault.Wrap(err, "look for payloads of "+job.Address())
}

// resumed returns a command that ends the pause of a job, if there is one, before it does what another command does.
func (e *explainer) resumed(ctx context.Context, job *registry.Job, command string) (string, error) {
	pauses, err := e.pauses(ctx)
	if err != nil || command == "" {
		return command, err
	}
	if p := tasks.WidestPause(pauses, job.DAG, job.Name); p != nil {
		return p.Resume() + " && " + command, nil
	}
	return command, nil
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
