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
	From    string          `json:"from,omitempty" example:"Queued"`
	To      string          `json:"to" example:"Running"`
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

// taskEvents lists the trail of a task, the newest first. Two events are in the task's own row alone: that it was made,
// and the beginning of an attempt that runs or has completed. That it was made is the first of all, whatever the clocks
// of both said. It relies on idx_task_events_task.
func taskEvents(ctx context.Context, tx pgx.Tx, t Task, before uuid.UUID, limit int) ([]TaskEvent, error) {
	var began uuid.UUID
	if t.StartedAt != nil {
		began = tasks.EventID(*t.StartedAt, t.ID)
	}

	rows, err := tx.Query(ctx, `
		WITH stored AS MATERIALIZED (SELECT * FROM task_events WHERE task_id = $1),
		trail AS (
			SELECT id, at, attempt, coalesce(from_status, '') AS was, to_status, actor, coalesce(state, '') AS state,
				detail
			FROM stored
			UNION ALL
			SELECT $4, started_at, attempt, 'Queued', 'Running', coalesce(worker_id, ''), '', NULL
			FROM task_outlines t WHERE id = $1 AND started_at IS NOT NULL
			  AND NOT EXISTS (
			      SELECT FROM stored s
			      WHERE s.attempt = t.attempt AND s.from_status = 'Queued' AND s.to_status = 'Running')
			UNION ALL
			SELECT id, created_at, 1, '', 'Queued', coalesce(created_by, 'SYSTEM'), '', NULL FROM task_outlines WHERE id = $1)
		SELECT id, at, attempt, was, to_status, actor, state, detail
		FROM trail
		WHERE $2 = '00000000-0000-0000-0000-000000000000'::uuid OR $2 <> $1 AND (id = $1 OR id < $2)
		ORDER BY id = $1, id DESC LIMIT $3`, t.ID, before, limit, began)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[TaskEvent])
}

// redactEvents removes what may quote data.
func redactEvents(events []TaskEvent) {
	for i := range events {
		events[i].State, events[i].Detail = "", nil
	}
}
