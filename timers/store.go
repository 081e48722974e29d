package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// columns are the columns that scanTimer scans.
const columns = `
	id, dag_name, job_name, event_type, coalesce(group_key, ''), status,
	target_timestamp_utc, target_timestamp_local, anchor_local, target_timezone,
	coalesce(repeat, 'none'), coalesce(schedule, ''), executed_at, coalesce(failure_reason, ''), retry_count,
	version, idempotency_key, delivery_payload, created_at, updated_at, task_id`

func scanTimer(row pgx.CollectableRow, t *Timer, before ...any) error {
	err := row.Scan(append(before,
		&t.ID, &t.DAG, &t.Job, &t.EventType, &t.Group, &t.Status,
		&t.UTC, &t.local, &t.anchor, &t.Timezone,
		&t.Repeat, &t.Schedule, &t.ExecutedAt, &t.FailureReason, &t.RetryCount,
		&t.Version, &t.IdempotencyKey, &t.Payload, &t.CreatedAt, &t.UpdatedAt, &t.task)...)
	t.Local = t.local.Format(localLayout)
	return err
}

func scanOwn(row pgx.CollectableRow) (t Timer, err error) { return t, scanTimer(row, &t) }

// NewTimer describes a timer to create.
type NewTimer struct {
	DAG            string          `json:"dag" minLength:"1" maxLength:"63"`
	Job            string          `json:"job" minLength:"1" maxLength:"63" doc:"A job whose source is of kind timer"`
	EventType      string          `json:"event_type,omitempty" maxLength:"50" doc:"For people. Default: timer"`
	Group          string          `json:"group,omitempty" maxLength:"200" doc:"Such as a user"`
	Local          string          `json:"target_timestamp_local,omitempty" maxLength:"30" doc:"Local time in the zone"`
	Timezone       string          `json:"target_timezone" maxLength:"100" example:"Europe/Berlin"`
	Repeat         string          `json:"repeat,omitempty" enum:"none,yearly,cron"`
	Schedule       string          `json:"schedule,omitempty" maxLength:"100" doc:"Five fields or @daily, ..."`
	IdempotencyKey string          `json:"idempotency_key,omitempty" maxLength:"255" doc:"One timer per key"`
	Payload        json.RawMessage `json:"delivery_payload,omitempty" doc:"The payload of its tasks"`
}

// timer returns the requested timer, with its first occurrence.
func (n NewTimer) timer(now time.Time) (Timer, error) {
	t := Timer{ID: uuid.Must(uuid.NewV7()), DAG: n.DAG, Job: n.Job, EventType: n.EventType, Group: n.Group,
		Timezone: n.Timezone, Repeat: n.Repeat,
		Schedule: n.Schedule, IdempotencyKey: n.IdempotencyKey, Payload: n.Payload}
	if t.EventType == "" {
		t.EventType = "timer"
	}
	if t.Repeat == "" {
		t.Repeat = never
	}

	if t.IdempotencyKey == "" {
		t.IdempotencyKey = t.ID.String()
	}
	if len(t.Payload) == 0 {
		t.Payload = json.RawMessage("null")
	}
	return t, t.schedule(n.Local, now)
}

// schedule sets when the timer fires next, from a local time and the timer's zone, repetition and schedule.
func (t *Timer) schedule(local string, now time.Time) error {
	zone, err := loadZone(t.Timezone)
	if err != nil {
		return err
	}
	if (t.Repeat == byCron) != (t.Schedule != "") {
		return fault.New(fault.Invalid, "`schedule` is only allowed with `repeat: cron`")
	}

	switch {
	case local != "":
		if t.anchor, err = parseLocal(local); err != nil {
			return err
		}
	case t.Repeat == byCron:
		t.anchor = wall(now, zone).Truncate(time.Second)
	default:
		return fault.New(fault.Invalid, "target_timestamp_local is missing").WithHint("write it as 2027-03-14T09:00:00")
	}
	return t.place(zone, now)
}

// place sets the next occurrence of the timer in a zone.
func (t *Timer) place(zone *time.Location, now time.Time) (err error) {
	if t.local, err = first(*t, zone, now); err != nil {
		return err
	}
	t.Local, t.UTC = t.local.Format(localLayout), instant(t.local, zone)
	return nil
}

// Create creates a timer. If one was created with the same idempotency key before, Create returns that one, and made is
// false.
func (t *Timers) Create(ctx context.Context, caller authz.Caller, n NewTimer,
	now time.Time) (timer Timer, made bool, err error) {
	wanted, err := n.timer(now)
	if err != nil {
		return timer, false, err
	}

	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := t.Sources.CheckTimer(ctx, tx, caller.OrgID, n.DAG, n.Job, n.Payload); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			INSERT INTO scheduled_events (id, org_id, dag_name, job_name, event_type, group_key, target_timestamp_utc,
				target_timestamp_local, anchor_local,
				target_timezone, repeat, schedule, idempotency_key, delivery_payload, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, NULLIF($6, ''), $7, $8, $9, $10, NULLIF($11, 'none'), NULLIF($12, ''), $13,
				$14, $15, $15)
			ON CONFLICT (org_id, idempotency_key) DO NOTHING
			RETURNING `+columns,
			wanted.ID, caller.OrgID, wanted.DAG, wanted.Job, wanted.EventType, wanted.Group, wanted.UTC, wanted.local,
			wanted.anchor,
			wanted.Timezone, wanted.Repeat, wanted.Schedule, wanted.IdempotencyKey, wanted.Payload, now)
		if err != nil {
			return err
		}
		timer, err = pgx.CollectExactlyOneRow(rows, scanOwn)
		if made = err == nil; made {
			return authz.Audit(ctx, tx, caller, "timer.create", "timer:"+timer.ID.String(),
				map[string]any{"job": n.DAG + "/" + n.Job, "group": n.Group})
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		timer, err = one(ctx, tx, caller, `idempotency_key = $2`, wanted.IdempotencyKey)
		return err
	})
	if err != nil {
		return timer, false, fmt.Errorf("create timer: %w", err)
	}
	return timer, made, nil
}

func one(ctx context.Context, tx pgx.Tx, caller authz.Caller, where string, arg any) (Timer, error) {
	rows, err := tx.Query(ctx, `SELECT `+columns+` FROM scheduled_events WHERE org_id = $1 AND `+where, caller.OrgID,
		arg)
	if err != nil {
		return Timer{}, err
	}
	timer, err := pgx.CollectExactlyOneRow(rows, scanOwn)
	if errors.Is(err, pgx.ErrNoRows) {
		return timer, fault.New(fault.NotFound, "there is no timer %v", arg).WithHint("`dagctl timers list` lists them")
	}
	if err != nil {
		return timer, err
	}
	timers := []Timer{timer}
	err = addTasks(ctx, tx, timers)
	return timers[0].seenBy(caller), err
}

// addTasks adds to timers how the tasks of their last occurrences go.
func addTasks(ctx context.Context, tx pgx.Tx, timers []Timer) error {
	var made []uuid.UUID
	for _, t := range timers {
		if t.task != nil {
			made = append(made, *t.task)
		}
	}
	outcomes, err := sources.TimerOutcomes(ctx, tx, made)
	if err != nil {
		return err
	}

	for i, t := range timers {
		if t.task == nil {
			continue
		}
		if o, kept := outcomes[*t.task]; kept {
			timers[i].Task = &TimerTask{ID: *t.task, Status: o.Status, Error: o.Error}
		}
	}
	return nil
}

// seenBy returns the timer without the fields that only writers see, if the caller is none.
func (t Timer) seenBy(caller authz.Caller) Timer {
	if !caller.Is(authz.RoleWriter) {
		t.Payload, t.FailureReason = nil, ""
		if t.Task != nil {
			t.Task.Error = ""
		}
	}
	return t
}

// Get returns one timer.
func (t *Timers) Get(ctx context.Context, caller authz.Caller, id uuid.UUID) (timer Timer, err error) {
	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		timer, err = one(ctx, tx, caller, `id = $2`, id)
		return err
	})
	return timer, err
}

// Filter selects timers. Empty fields select all.
type Filter struct {
	DAG    string `query:"dag" maxLength:"63"`
	Job    string `query:"job" maxLength:"63"`
	Group  string `query:"group" maxLength:"200"`
	Status string `query:"status" enum:"PENDING,PROCESSING,COMPLETED,FAILED"`
}

// List returns timers, the oldest first.
func (t *Timers) List(ctx context.Context, caller authz.Caller, f Filter,
	page rest.PageInput) (list rest.List[Timer], err error) {
	var after uuid.UUID
	if _, err := page.After(&after); err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+columns+` FROM scheduled_events
			WHERE org_id = $1 AND id > $2 AND ($3 = '' OR dag_name = $3) AND ($4 = '' OR job_name = $4) AND ($5 = ''
				OR group_key = $5) AND ($6 = '' OR status = $6)
			ORDER BY id LIMIT $7`, caller.OrgID, after, f.DAG, f.Job, f.Group, f.Status, page.Limit+1)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanOwn)
		if err != nil {
			return err
		}
		if err := addTasks(ctx, tx, found); err != nil {
			return err
		}
		for i := range found {
			found[i] = found[i].seenBy(caller)
		}
		list, err = rest.NewList(found, page.Limit, func(t Timer) any { return t.ID })
		return err
	})
	if err != nil {
		return list, fmt.Errorf("list timers: %w", err)
	}
	return list, nil
}
