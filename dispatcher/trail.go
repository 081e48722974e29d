package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// trailRows collects rows of the audit trail, in order.
type trailRows struct {
	ids, orgs, tasks                []uuid.UUID
	attempts                        []int
	from, to, actors, states, notes []string
	times                           []time.Time
}

func (t *trailRows) add(r taskRow, from, to, actor, state string, detail []byte, at time.Time) {
	t.ids, t.orgs, t.tasks = append(t.ids, uuid.Must(uuid.NewV7())), append(t.orgs, r.org), append(t.tasks, r.id)
	t.attempts, t.from, t.to = append(t.attempts, r.attempt), append(t.from, from), append(t.to, to)
	t.actors, t.states, t.notes = append(t.actors, actor), append(t.states, state), append(t.notes, string(detail))
	t.times = append(t.times, at)
}

func (t *trailRows) insert(b *pg.Batch) {
	b.Exec(fmt.Sprintf("audit trail of %d tasks", len(t.ids)), `
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, detail, at)
		SELECT id, org, task, attempt, was, status, actor, NULLIF(state, ''), NULLIF(note, '')::jsonb, at
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::timestamptz[])
			AS w(id, org, task, attempt, was, status, actor, state, note, at)`,
		t.ids, t.orgs, t.tasks, t.attempts, t.from, t.to, t.actors, t.states, t.notes, t.times)
}

// TaskEvents lists a task's audit trail, the newest first, beginning with what is older than the given event.
func (d *Dispatcher) TaskEvents(ctx context.Context, caller authz.Caller, id, before uuid.UUID, limit int) ([]TaskEvent, error) {
	var events []TaskEvent
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		t, readable, err := d.task(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if events, err = taskEvents(ctx, tx, t, before, limit); err != nil {
			return err
		}
		if !readable {
			redactEvents(events)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("events of task %s: %w", id, err)
	}
	return events, nil
}

// taskEvents relies on idx_task_events_task.
func taskEvents(ctx context.Context, tx pgx.Tx, t Task, before uuid.UUID, limit int) ([]TaskEvent, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, at, attempt, coalesce(from_status, ''), to_status, actor, coalesce(state, ''), detail
		FROM task_events
		WHERE task_id = $1 AND ($2 = '00000000-0000-0000-0000-000000000000'::uuid OR id < $2)
		ORDER BY id DESC LIMIT $3`, t.ID, before, limit)
	if err != nil {
		return nil, err
	}
	stored, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (TaskEvent, error) {
		var e TaskEvent
		err := row.Scan(&e.ID, &e.At, &e.Attempt, &e.From, &e.To, &e.Actor, &e.State, &e.Detail)
		return e, err
	})
	if err != nil {
		return nil, err
	}
	return withUnwritten(t, stored, before == uuid.Nil, len(stored) < limit), nil
}

// withUnwritten adds to what is stored of a task's trail, the newest first, what its own row tells: the beginning of an
// attempt that still runs or has completed, and that the task was made. first and last say which ends of the trail the
// stored ones reach.
func withUnwritten(t Task, stored []TaskEvent, first, last bool) []TaskEvent {
	events := make([]TaskEvent, 0, len(stored)+2)
	began := func(id uuid.UUID) TaskEvent {
		return TaskEvent{ID: id, At: *t.StartedAt, Attempt: t.Attempt, From: "Queued", To: "Running", Actor: t.Worker}
	}
	if first && t.Status == "Running" {
		events = append(events, began(t.ID))
	}
	for _, e := range stored {
		if events = append(events, e); e.From == "Running" && e.To == "Completed" && t.StartedAt != nil {
			events = append(events, began(e.ID))
		}
	}
	if last && (len(stored) == 0 || stored[len(stored)-1].From != "") {
		events = append(events, TaskEvent{ID: t.ID, At: t.CreatedAt, Attempt: 1, To: "Queued", Actor: "SYSTEM"})
	}
	return events
}

func redactEvents(events []TaskEvent) {
	for i := range events {
		events[i].State, events[i].Detail = "", nil
	}
}
