package dispatcher

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// How each (event, consumer) ended is told by the view event_outcomes, which has one answer for each that is decided. That an
// event triggered a task is told by the task, whose dedupe key is the event's identity: nearly every event ends so, and no row
// is written for it. Everything else is a row of event_consumers: what a task reads besides the event that it is named by,
// what was made already, what does not trigger, and tasks that no single event names.

// taskKey is the dedupe key of the task that the event alone decides over. Segments of a cursor have none: the key of a task that follows one says
// from where it reads, too.
func (e Event) taskKey() string {
	if e.Position != nil {
		return ""
	}
	return revisionKey(e.Dataset, e.Version, e.Key, e.Revision)
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
	o.keys, o.tasks = append(o.keys, optional(e.taskKey())), append(o.tasks, task)
	o.outcomes, o.reasons = append(o.outcomes, outcome), append(o.reasons, reason)
}

// recordOutcomes closes the account of every (event, consumer) that is decided. One whose output still waits for another
// input stays open: the event that completes it decides over both. Whatever has an answer keeps it, so that events may be
// routed again.
func recordOutcomes(ctx context.Context, tx pgx.Tx, h hits, findings []finding, made created) error {
	var o outcomes
	for i, f := range findings {
		if f.verdict == incomplete {
			continue
		}
		outcome, reason := "included", "the output was made from it already"
		var task *uuid.UUID
		named := false // the task that was made is named by one of the events
		if f.verdict == stale {
			m, ok := made.by[slotOf{f.job.Origin, f.key}]
			switch task = &m.id; {
			case !ok:
				reason, task = "this work was done, or given up, before", nil
			case !m.isNew:
				reason = "a task that reads it was queued already"
			case slices.ContainsFunc(h.events[i], func(e Event) bool { return e.taskKey() == f.dedupe }):
				named, reason = true, "a task that reads it was made for a newer event"
			default:
				outcome, reason = "triggered", ""
			}
		}
		for _, e := range h.events[i] {
			if !named || e.taskKey() != f.dedupe {
				o.add(e, f.job.Origin, f.job.OrgID, outcome, reason, task)
			}
		}
	}
	for _, p := range h.passive {
		o.add(p.event, p.job.Origin, p.job.OrgID, "filtered", "this input does not trigger", nil)
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
		WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.job_id = e.job AND t.dedupe_key = e.key OFFSET 0) -- idx_tasks_job_dedupe
		ORDER BY e.event, e.job, e.outcome = 'triggered' DESC
		ON CONFLICT (event_id, job_id) DO NOTHING`, o.events, o.jobs, o.orgs, o.outcomes, o.tasks, o.reasons, o.keys)
	return b.SendLast(ctx, tx)
}

// keepTriggered is a part of statements that take tasks away, or their dedupe keys, so that these tell no more what their events
// triggered: rows do, from then on, for events that are still there. Its argument selects id, org_id, job_id and dedupe_key.
// Each event is looked up by what it says (events_identity).
func keepTriggered(tasks string) string {
	return `
		INSERT INTO event_consumers (event_id, job_id, org_id, outcome, task_id)
		SELECT e.id, o.job_id, o.org_id, 'triggered', o.id FROM (` + tasks + `) AS o
		CROSS JOIN LATERAL (SELECT regexp_match(o.dedupe_key, '^partition:[^:]*:([^:]*):(.*)@([0-9]+)$') AS says) AS k
		CROSS JOIN LATERAL (
			SELECT id FROM events WHERE dataset_version = k.says[1]::uuid AND scope IN ('partition', 'invalidation') AND partition_key = k.says[2]
				AND revision = k.says[3]::bigint AND cursor_value IS NULL AND org_id = o.org_id OFFSET 0) AS e
		ORDER BY e.id, o.job_id
		ON CONFLICT (event_id, job_id) DO NOTHING`
}
