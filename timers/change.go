package timers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// TimerChange holds the fields to change. Absent fields stay as they are.
type TimerChange struct {
	Local    *string         `json:"target_timestamp_local,omitempty" maxLength:"30"`
	Timezone *string         `json:"target_timezone,omitempty" maxLength:"100"`
	Repeat   *string         `json:"repeat,omitempty" enum:"none,yearly,cron" example:"cron"`
	Schedule *string         `json:"schedule,omitempty" maxLength:"100"`
	Group    *string         `json:"group,omitempty" maxLength:"200"`
	Payload  json.RawMessage `json:"delivery_payload,omitempty"`
}

// Update changes a timer. It fails if ifMatch is not empty and is not the timer's version. A timer that has completed
// or failed becomes pending again if its time changes.
func (t *Timers) Update(ctx context.Context, caller authz.Caller, id uuid.UUID, c TimerChange, ifMatch string,
	now time.Time) (timer Timer, err error) {
	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := locked(ctx, tx, caller, id, ifMatch)
		if err != nil {
			return err
		}

		after, err := before.with(c, now)
		if err != nil {
			return err
		}
		if c.Payload != nil {
			if err := t.Sources.TimerChecks(ctx, tx, caller.OrgID)(after.DAG, after.Job, after.Payload); err != nil {
				return err
			}
		}

		if timer, err = store(ctx, tx, caller, after, now); err != nil {
			return err
		}
		made := moment(timer)
		if c.Payload != nil {
			made["payload"] = "replaced"
		}
		return authz.Audit(ctx, tx, caller, "timer.update", "timer:"+id.String(),
			authz.Change{Before: moment(before), After: made})
	})
	if err != nil {
		return timer, fmt.Errorf("update timer: %w", err)
	}
	return timer, nil
}

// moment returns what the audit log says of a timer: all but its payload, which may hold anything.
func moment(t Timer) map[string]any {
	return map[string]any{"job": t.DAG + "/" + t.Job, "utc": t.UTC, "timezone": t.Timezone, "repeat": t.Repeat,
		"schedule": t.Schedule, "group": t.Group, "status": t.Status}
}

func locked(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID, ifMatch string) (Timer, error) {
	// This waits for a delivery that holds the row, so that the change applies to what the delivery leaves.
	if _, err := tx.Exec(ctx, `SELECT FROM scheduled_events WHERE org_id = $1 AND id = $2 FOR UPDATE`, caller.OrgID,
		id); err != nil {
		return Timer{}, err
	}
	before, err := one(ctx, tx, caller, `id = $2`, id)
	if err != nil {
		return before, err
	}
	return before, rest.CheckIfMatch(ifMatch, rest.ETag(etagOf(before.Version)))
}

// with returns the timer after a change. It is pure. A new zone alone keeps the local time of the next occurrence.
func (t Timer) with(c TimerChange, now time.Time) (Timer, error) {
	set(&t.Group, c.Group)
	if c.Payload != nil {
		t.Payload = c.Payload
	}
	set(&t.Timezone, c.Timezone)
	zone, err := Zone(t.Timezone)
	if err != nil {
		return t, err
	}
	if c.Local == nil && c.Repeat == nil && c.Schedule == nil {
		if c.Timezone != nil && t.Status == "PENDING" {
			t.UTC = instant(t.local, zone)
		}
		return t, nil
	}

	// Any other change of the time schedules the timer again.
	set(&t.Repeat, c.Repeat)
	if c.Repeat != nil && t.Repeat != byCron {
		t.Schedule = ""
	}
	set(&t.Schedule, c.Schedule)
	local := t.anchor.Format(localLayout)
	set(&local, c.Local)
	if t.Status != "PENDING" {
		t.Status, t.ExecutedAt, t.task = "PENDING", nil, nil
	}
	return t, t.schedule(local, now)
}

// set changes a field if the change has a value for it.
func set(field, to *string) {
	if to != nil {
		*field = *to
	}
}

func store(ctx context.Context, tx pgx.Tx, caller authz.Caller, t Timer, now time.Time) (Timer, error) {
	rows, err := tx.Query(ctx, `
		UPDATE scheduled_events SET
			status = $3, group_key = NULLIF($4, ''),
			target_timestamp_utc = $5, target_timestamp_local = $6, anchor_local = $7, target_timezone = $8,
			repeat = NULLIF($9, 'none'), schedule = NULLIF($10, ''), delivery_payload = $11, executed_at = $12,
			retry_count = 0, retry_at = NULL, failure_reason = NULL, version = version + 1, updated_at = $13,
			task_id = $14
		WHERE org_id = $1 AND id = $2
		RETURNING `+columns,
		caller.OrgID, t.ID, t.Status, t.Group, t.UTC, t.local, t.anchor, t.Timezone, t.Repeat, t.Schedule, t.Payload,
		t.ExecutedAt, now, t.task)
	if err != nil {
		return t, err
	}
	return pgx.CollectExactlyOneRow(rows, scanOwn)
}

// MoveGroup moves the pending timers of a group to another zone. They keep their local times.
func (t *Timers) MoveGroup(ctx context.Context, caller authz.Caller, group, zone string, now time.Time) (moved int,
	err error) {
	if group == "" {
		return 0, fault.New(fault.Invalid, "`group` is missing").WithHint("name the group whose zone changes")
	}
	to, err := Zone(zone)
	if err != nil {
		return 0, err
	}

	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		// Uses idx_scheduled_events_group, in the order of ids so that two moves cannot deadlock.
		timers, err := collect(ctx, tx, `SELECT `+columns+` FROM scheduled_events
			WHERE org_id = $1 AND group_key = $2 AND status = 'PENDING' ORDER BY id FOR UPDATE`, caller.OrgID, group)
		if err != nil {
			return err
		}

		if timers, err = shown(ctx, tx, caller, timers); err != nil {
			return err
		}
		ids, instants := make([]uuid.UUID, len(timers)), make([]time.Time, len(timers))
		zones := map[string]int{}
		for i, timer := range timers {
			ids[i], instants[i] = timer.ID, instant(timer.local, to)
			zones[timer.Timezone]++
		}
		if _, err := tx.Exec(ctx, `
			UPDATE scheduled_events e
			SET target_timezone = $3, target_timestamp_utc = w.utc, retry_at = NULL, version = version + 1,
				updated_at = $4
			FROM unnest($2::uuid[], $5::timestamptz[]) AS w(id, utc)
			WHERE e.org_id = $1 AND e.id = w.id AND e.status = 'PENDING'`,
			caller.OrgID, ids, zone, now, instants); err != nil {
			return err
		}

		moved = len(timers)
		return authz.Audit(ctx, tx, caller, "timer.move", "timers of group "+group,
			authz.Change{Before: zones, After: map[string]int{zone: moved}})
	})
	if err != nil {
		return 0, fmt.Errorf("move timers of group %s: %w", group, err)
	}
	return moved, nil
}

// Delete removes a timer. It fails if ifMatch is not empty and is not the timer's version. The timer's tasks stay.
func (t *Timers) Delete(ctx context.Context, caller authz.Caller, id uuid.UUID, ifMatch string) error {
	err := pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := locked(ctx, tx, caller, id, ifMatch)
		if err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, `DELETE FROM scheduled_events WHERE org_id = $1 AND id = $2`, caller.OrgID,
			id); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "timer.delete", "timer:"+id.String(),
			authz.Change{Before: moment(before)})
	})
	if err != nil {
		return fmt.Errorf("delete timer: %w", err)
	}
	return nil
}

// DeleteGroup removes every timer of a group, whatever its status. Their tasks stay.
func (t *Timers) DeleteGroup(ctx context.Context, caller authz.Caller, group string) (deleted int, err error) {
	if group == "" {
		return 0, fault.New(fault.Invalid, "`group` is missing").WithHint("name the group whose timers to delete")
	}
	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		timers, err := collect(ctx, tx, `SELECT `+columns+` FROM scheduled_events
			WHERE org_id = $1 AND group_key = $2 ORDER BY id FOR UPDATE`, caller.OrgID, group)
		if err != nil {
			return err
		}
		if timers, err = shown(ctx, tx, caller, timers); err != nil {
			return err
		}

		ids := make([]uuid.UUID, len(timers))
		for i, timer := range timers {
			ids[i] = timer.ID
		}
		tag, err := tx.Exec(ctx, `DELETE FROM scheduled_events WHERE org_id = $1 AND id = ANY($2)`, caller.OrgID, ids)
		if err != nil {
			return err
		}
		deleted = int(tag.RowsAffected())
		return authz.Audit(ctx, tx, caller, "timer.delete", "timers of group "+group,
			authz.Change{Before: map[string]any{"timers": deleted}})
	})
	if err != nil {
		return 0, fmt.Errorf("delete timers of group %s: %w", group, err)
	}
	return deleted, nil
}
