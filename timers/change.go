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

// TimerChange is what is to be different. What is left out stays.
type TimerChange struct {
	Local    *string         `json:"target_timestamp_local,omitempty" maxLength:"30"`
	Timezone *string         `json:"target_timezone,omitempty" maxLength:"100"`
	Repeat   *string         `json:"repeat,omitempty" enum:"none,yearly,cron"`
	Schedule *string         `json:"schedule,omitempty" maxLength:"100"`
	Group    *string         `json:"group,omitempty" maxLength:"200"`
	Payload  json.RawMessage `json:"delivery_payload,omitempty"`
}

// Update changes a timer that has the version the caller saw; an empty ifMatch does not ask for one. One that has
// completed or failed is pending again if its time is changed.
func (t *Timers) Update(ctx context.Context, caller authz.Caller, id uuid.UUID, c TimerChange, ifMatch string, now time.Time) (timer Timer, err error) {
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
			if err := t.Dispatcher.CheckTimer(ctx, tx, caller.OrgID, after.DAG, after.Job, after.Payload); err != nil {
				return err
			}
		}
		if timer, err = store(ctx, tx, caller, after, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "timer.update", "timer:"+id.String(),
			map[string]any{"before": moment(before), "after": moment(timer)})
	})
	if err != nil {
		return timer, fmt.Errorf("update timer: %w", err)
	}
	return timer, nil
}

func moment(t Timer) map[string]any {
	return map[string]any{"utc": t.UTC, "timezone": t.Timezone, "repeat": t.Repeat, "group": t.Group}
}

func locked(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID, ifMatch string) (Timer, error) {
	// A delivery that has the row is waited for: what is changed is what it leaves.
	if _, err := tx.Exec(ctx, `SELECT FROM scheduled_events WHERE org_id = $1 AND id = $2 FOR UPDATE`, caller.OrgID, id); err != nil {
		return Timer{}, err
	}
	before, err := one(ctx, tx, caller, `id = $2`, id)
	if err != nil {
		return before, err
	}
	return before, rest.CheckIfMatch(ifMatch, rest.ETag(etagOf(before.Version)))
}

// with is the timer after a change. A new zone alone keeps the local time of the occurrence that is to come. It is pure.
func (t Timer) with(c TimerChange, now time.Time) (Timer, error) {
	if c.Group != nil {
		t.Group = *c.Group
	}
	if c.Payload != nil {
		t.Payload = c.Payload
	}
	if c.Timezone != nil {
		t.Timezone = *c.Timezone
	}
	zone, err := loadZone(t.Timezone)
	switch {
	case err != nil:
		return t, err
	case c.Local == nil && c.Repeat == nil && c.Schedule == nil:
		if c.Timezone != nil && t.Status == "PENDING" {
			t.UTC = instant(t.local, zone)
		}
		return t, nil
	}
	if c.Repeat != nil {
		t.Repeat = *c.Repeat
		if t.Repeat != byCron && c.Schedule == nil {
			t.Schedule = ""
		}
	}
	if c.Schedule != nil {
		t.Schedule = *c.Schedule
	}
	local := t.anchor.Format(localLayout)
	if c.Local != nil {
		local = *c.Local
	}
	if t.Status != "PENDING" {
		t.Status, t.ExecutedAt = "PENDING", nil
	}
	return t, t.schedule(local, now)
}

func store(ctx context.Context, tx pgx.Tx, caller authz.Caller, t Timer, now time.Time) (Timer, error) {
	rows, err := tx.Query(ctx, `
		UPDATE scheduled_events SET status = $3, group_key = NULLIF($4, ''), target_timestamp_utc = $5, target_timestamp_local = $6, anchor_local = $7,
			target_timezone = $8, repeat = NULLIF($9, 'none'), schedule = NULLIF($10, ''), delivery_payload = $11, executed_at = $12, retry_count = 0, retry_at = NULL,
			failure_reason = NULL, version = version + 1, updated_at = $13
		WHERE org_id = $1 AND id = $2 RETURNING `+columns,
		caller.OrgID, t.ID, t.Status, t.Group, t.UTC, t.local, t.anchor, t.Timezone, t.Repeat, t.Schedule, t.Payload, t.ExecutedAt, now)
	if err != nil {
		return t, err
	}
	return pgx.CollectExactlyOneRow(rows, scanOwn)
}

// MoveGroup has the pending timers of a group fire by the clocks of another zone, at the local times they have.
func (t *Timers) MoveGroup(ctx context.Context, caller authz.Caller, group, zone string, now time.Time) (moved int, err error) {
	if group == "" {
		return 0, fault.New(fault.Invalid, "`group` is missing").WithHint("name the group whose zone changes")
	}
	to, err := loadZone(zone)
	if err != nil {
		return 0, err
	}
	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		// idx_scheduled_events_group, in one order so that two moves cannot deadlock
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM scheduled_events
			WHERE org_id = $1 AND group_key = $2 AND status = 'PENDING' ORDER BY id FOR UPDATE`, caller.OrgID, group)
		if err != nil {
			return err
		}
		timers, err := pgx.CollectRows(rows, scanOwn)
		if err != nil {
			return err
		}
		ids, instants := make([]uuid.UUID, len(timers)), make([]time.Time, len(timers))
		for i, timer := range timers {
			ids[i], instants[i] = timer.ID, instant(timer.local, to)
		}
		if _, err := tx.Exec(ctx, `
			UPDATE scheduled_events e SET target_timezone = $3, target_timestamp_utc = w.utc, retry_at = NULL, version = version + 1, updated_at = $4
			FROM unnest($2::uuid[], $5::timestamptz[]) AS w(id, utc)
			WHERE e.org_id = $1 AND e.id = w.id AND e.status = 'PENDING'`, caller.OrgID, ids, zone, now, instants); err != nil {
			return err
		}
		moved = len(timers)
		return authz.Audit(ctx, tx, caller, "timer.move", "timers of group "+group, map[string]any{"timezone": zone, "timers": moved})
	})
	if err != nil {
		return 0, fmt.Errorf("move timers of group %s: %w", group, err)
	}
	return moved, nil
}

// Delete removes a timer that has the version the caller saw. Tasks that it has made stay.
func (t *Timers) Delete(ctx context.Context, caller authz.Caller, id uuid.UUID, ifMatch string) error {
	err := pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := locked(ctx, tx, caller, id, ifMatch)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM scheduled_events WHERE org_id = $1 AND id = $2`, caller.OrgID, id); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "timer.delete", "timer:"+id.String(), map[string]any{"before": moment(before)})
	})
	if err != nil {
		return fmt.Errorf("delete timer: %w", err)
	}
	return nil
}

// DeleteGroup removes every timer of a group, with what it is about.
func (t *Timers) DeleteGroup(ctx context.Context, caller authz.Caller, group string) (deleted int, err error) {
	if group == "" {
		return 0, fault.New(fault.Invalid, "`group` is missing").WithHint("name the group whose timers are to go")
	}
	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM scheduled_events WHERE org_id = $1 AND group_key = $2`, caller.OrgID, group)
		if err != nil {
			return err
		}
		deleted = int(tag.RowsAffected())
		return authz.Audit(ctx, tx, caller, "timer.delete", "timers of group "+group, map[string]any{"timers": deleted})
	})
	if err != nil {
		return 0, fmt.Errorf("delete timers of group %s: %w", group, err)
	}
	return deleted, nil
}
