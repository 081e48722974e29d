package dispatcher

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
)

// The view event_outcomes has one outcome for each decided pair of event and consumer. Nearly every event triggers a
// task, whose dedupe key is the event's identity: the view derives that outcome from the task, and no row is written.
// Every other outcome is a row of event_consumers: an event that a task reads besides the one in its key, an output
// that was made already, an input that does not trigger, a task whose key is not a single event.

// taskKey returns the dedupe key of the task that this event alone triggers. It is empty for segments of a cursor,
// because the key of a task that follows a cursor also holds the position from which it reads.
func (e Event) taskKey() string {
	if e.Position != nil {
		return ""
	}
	return stale.RevisionKey(e.Dataset, e.Version, e.Key, e.Revision)
}

// outcomes collects rows of event_consumers.
type outcomes struct {
	events, jobs, orgs []uuid.UUID
	keys               []*string
	outcomes, reasons  []string
	tasks              []*uuid.UUID
}

func (o *outcomes) add(e Event, job, org uuid.UUID, outcome, reason string, task *uuid.UUID) {
	o.events, o.jobs, o.orgs = append(o.events, e.ID), append(o.jobs, job), append(o.orgs, org)
	o.keys, o.tasks = append(o.keys, tasks.NullIfEmpty(e.taskKey())), append(o.tasks, task)
	o.outcomes, o.reasons = append(o.outcomes, outcome), append(o.reasons, reason)
}

// recordOutcomes records the outcome of every pair of event and consumer that is decided. A pair stays open while the
// output waits for another input: the event that completes the inputs decides both. So it does while another input
// cannot be mapped; the input that cannot be mapped itself rejects its events. A recorded outcome never changes,
// so events may be routed again.
func recordOutcomes(ctx context.Context, tx pgx.Tx, h hits, findings []stale.Finding, made tasks.Created) error {
	var o outcomes
	for i, f := range findings {
		if f.Verdict == stale.Incomplete || f.Verdict == stale.Blocked {
			continue
		}

		outcome, reason := "included", "the output was made from it already"
		var task *uuid.UUID
		named := false // whether the key of the new task is one of the events
		if f.Verdict == stale.Stale {
			m, ok := made.By[tasks.Slot{Origin: f.Job.Origin, Key: f.Key}]
			switch task = &m.ID; {
			case !ok:
				reason, task = "this work was done, or given up, before", nil
			case !m.IsNew:
				reason = "a task that reads it was queued already"
			case slices.ContainsFunc(h.events[i], func(e Event) bool { return e.taskKey() == f.Dedupe }):
				named, reason = true, "a task that reads it was made for a newer event"
			default:
				outcome, reason = "triggered", ""
			}
		}

		for _, e := range h.events[i] {
			if !named || e.taskKey() != f.Dedupe {
				o.add(e, f.Job.Origin, f.Job.OrgID, outcome, reason, task)
			}
		}
	}

	for _, p := range h.passive {
		o.add(p.event, p.job.Origin, p.job.OrgID, "filtered", p.reason, nil)
	}
	for _, b := range h.blocked {
		o.add(b.event, b.job.Origin, b.job.OrgID, "rejected", b.reason, nil)
	}
	if len(o.events) == 0 {
		return nil
	}

	var b pg.Batch
	b.Exec("record outcomes", `
		INSERT INTO event_consumers (event_id, job_id, org_id, outcome, task_id, reason)
		SELECT DISTINCT ON (e.event, e.job) e.event, e.job, e.org, e.outcome, e.task, NULLIF(e.reason, '')
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[])
			AS e(event, job, org, outcome, task, reason, key)
		WHERE NOT EXISTS ( -- idx_tasks_job_dedupe
			SELECT FROM tasks t WHERE t.job_id = e.job AND t.dedupe_key = e.key OFFSET 0)
		ORDER BY e.event, e.job, e.outcome = 'triggered' DESC
		ON CONFLICT (event_id, job_id) DO NOTHING`, o.events, o.jobs, o.orgs, o.outcomes, o.tasks, o.reasons, o.keys)
	return b.SendLast(ctx, tx)
}

// KeepTriggered returns an INSERT for statements that remove tasks or their dedupe keys. Outcomes that the view derived
// from those tasks become rows, for events that still exist. The argument is a query for id, org_id, job_id and
// dedupe_key. Each event is looked up by its identity (index events_identity).
func KeepTriggered(tasks string) string {
	return `
		INSERT INTO event_consumers (event_id, job_id, org_id, outcome, task_id)
		SELECT e.id, o.job_id, o.org_id, 'triggered', o.id FROM (` + tasks + `) AS o
		CROSS JOIN LATERAL (SELECT regexp_match(o.dedupe_key, '^partition:[^:]*:([^:]*):(.*)@([0-9]+)$') AS says) AS k
		CROSS JOIN LATERAL (
			SELECT id FROM events
			WHERE dataset_version = k.says[1]::uuid AND scope IN ('partition', 'invalidation')
				AND partition_key = k.says[2] AND revision = k.says[3]::bigint AND cursor_value IS NULL
				AND org_id = o.org_id OFFSET 0) AS e
		ORDER BY e.id, o.job_id
		ON CONFLICT (event_id, job_id) DO NOTHING`
}
