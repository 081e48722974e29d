package views

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
)

// TaskEvent is one line of a task's audit trail.
type TaskEvent struct {
	ID      uuid.UUID       `json:"id"`
	At      time.Time       `json:"at"`
	Attempt int             `json:"attempt"`
	From    string          `json:"from,omitempty"`
	To      string          `json:"to"`
	Actor   string          `json:"actor"`
	State   string          `json:"state,omitempty"`
	Detail  json.RawMessage `json:"detail,omitempty"`
}

// TaskEvents lists a task's audit trail, the newest first, from the first event that is older than before.
func (vs *Views) TaskEvents(
	ctx context.Context, caller authz.Caller, id, before uuid.UUID, limit int,
) ([]TaskEvent, error) {
	var events []TaskEvent
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		t, readable, err := vs.FindTask(ctx, tx, caller, id)
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

// taskEvents lists the trail of a task, the newest first. It relies on idx_task_events_task.
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

// withUnwritten adds to the stored events of a task, the newest first, those that only the task's own row records: the
// beginning of an attempt that runs or has completed, and the making of the task. first reports whether stored begins
// with the newest event, last whether it ends with the oldest.
func withUnwritten(t Task, stored []TaskEvent, first, last bool) []TaskEvent {
	events := make([]TaskEvent, 0, len(stored)+2)
	began := func(id uuid.UUID) TaskEvent {
		return TaskEvent{ID: id, At: *t.StartedAt, Attempt: t.Attempt, From: string(tasks.Queued),
			To:    string(tasks.Running),
			Actor: t.Worker}
	}

	if first && tasks.Status(t.Status) == tasks.Running {
		events = append(events, began(t.ID))
	}

	for _, e := range stored {
		events = append(events, e)
		completed := tasks.Status(e.From) == tasks.Running && tasks.Status(e.To) == tasks.Completed
		if completed && t.StartedAt != nil {
			events = append(events, began(e.ID))
		}
	}

	if last && (len(stored) == 0 || stored[len(stored)-1].From != "") {
		events = append(events, TaskEvent{ID: t.ID, At: t.CreatedAt, Attempt: 1, To: string(tasks.Queued),
			Actor: "SYSTEM"})
	}
	return events
}

// redactEvents removes what may quote data.
func redactEvents(events []TaskEvent) {
	for i := range events {
		events[i].State, events[i].Detail = "", nil
	}
}
