package timers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// columns are the columns that scanTimer scans.
const columns = `
	id, dag_name, job_name, event_type, coalesce(group_key, ''), status,
	target_timestamp_utc, target_timestamp_local, anchor_local, target_timezone,
	coalesce(repeat, 'none'), coalesce(schedule, ''), executed_at, coalesce(failure_reason, ''), retry_count,
	version, idempotency_key, delivery_payload, coalesce(created_by, ''), created_at, updated_at, task_id`

func scanTimer(row pgx.CollectableRow, t *Timer, before ...any) error {
	err := row.Scan(append(before,
		&t.ID, &t.DAG, &t.Job, &t.EventType, &t.Group, &t.Status,
		&t.UTC, &t.local, &t.anchor, &t.Timezone,
		&t.Repeat, &t.Schedule, &t.ExecutedAt, &t.FailureReason, &t.RetryCount,
		&t.Version, &t.IdempotencyKey, &t.Payload, &t.CreatedBy, &t.CreatedAt, &t.UpdatedAt, &t.task)...)
	t.Local = t.local.Format(localLayout)
	return err
}

func scanOwn(row pgx.CollectableRow) (t Timer, err error) { return t, scanTimer(row, &t) }

// collect returns the timers that a statement selects.
func collect(ctx context.Context, tx pgx.Tx, statement string, args ...any) ([]Timer, error) {
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanOwn)
}

// schedule sets when the timer fires next, from a local time and the timer's zone, repetition and schedule.
func (t *Timer) schedule(local string, now time.Time) error {
	zone, err := Zone(t.Timezone)
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

func one(ctx context.Context, tx pgx.Tx, caller authz.Caller, where string, arg any) (Timer, error) {
	rows, err := tx.Query(ctx, `SELECT `+columns+` FROM scheduled_events WHERE org_id = $1 AND `+where, caller.OrgID,
		arg)
	if err != nil {
		return Timer{}, err
	}
	timer, err := pgx.CollectExactlyOneRow(rows, scanOwn)
	if errors.Is(err, pgx.ErrNoRows) {
		return timer, noTimer(arg)
	}
	if err != nil {
		return timer, err
	}

	timers := []Timer{timer}
	if err := addTasks(ctx, tx, timers); err != nil {
		return timer, err
	}
	timers, err = seenBy(ctx, tx, caller, timers)
	return timers[0], err
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

// seenBy returns timers without the fields that the caller does not see. Of a job that the caller may not look into,
// there are only outlines.
func seenBy(ctx context.Context, tx pgx.Tx, caller authz.Caller, timers []Timer) ([]Timer, error) {
	var dags, jobs []string
	for i, t := range timers {
		timers[i] = t.seenBy(caller)
		dags, jobs = append(dags, t.DAG), append(jobs, t.Job)
	}
	if caller.ReadsAll() || len(timers) == 0 {
		return timers, nil
	}

	hidden, err := hiddenJobs(ctx, tx, caller, timers)
	if err != nil {
		return nil, err
	}
	known, err := registry.OpenJobs(ctx, tx, caller, dags, jobs)
	for i, t := range timers {
		open := slices.Contains(known, t.DAG+"/"+t.Job) || caller.May(authz.Inspect, authz.OnDAG(t.DAG))
		if hidden[t.DAG+"/"+t.Job] || !open {
			timers[i] = t.outline()
		}
	}
	return timers, err
}

// seenBy returns the timer without the fields that readers do not see, if the caller is one.
func (t Timer) seenBy(caller authz.Caller) Timer {
	if !caller.May(authz.Inspect, authz.OnDAG(t.DAG)) {
		t.Payload, t.FailureReason = nil, ""
		if t.Task != nil {
			t.Task.Error = ""
		}
	}
	return t
}

// outline returns the timer without what is often the name of a person, or says what the job is told.
func (t Timer) outline() Timer {
	t.Group, t.IdempotencyKey, t.EventType, t.CreatedBy = "", "", "", ""
	t.Payload, t.FailureReason = nil, ""
	if t.Task != nil {
		t.Task.Error = ""
	}
	return t
}

// dagOf returns the DAG that a timer, named by its id, belongs to, for routes that act on timers; see authz.Finder.
func (t *Timers) dagOf(ctx context.Context, caller authz.Caller, values ...string) (dag string, err error) {
	id, err := uuid.Parse(values[0])
	if err != nil {
		return "", nil // the handler says what is wrong with it
	}

	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var job string
		err := tx.QueryRow(ctx, `SELECT dag_name, job_name FROM scheduled_events WHERE org_id = $1 AND id = $2`,
			caller.OrgID, id).Scan(&dag, &job)
		if errors.Is(err, pgx.ErrNoRows) {
			return noTimer(id)
		}
		if err != nil {
			return err
		}
		hidden, err := registry.IsHidden(ctx, tx, caller, dag, job)
		if hidden {
			return noTimer(id)
		}
		return err
	})
	return dag, err
}

// noTimer is the error about a timer that does not exist, or whose job is hidden from whoever acts on it.
func noTimer(id any) error {
	return fault.New(fault.NotFound, "there is no timer %v", id).WithHint("`dagctl timers list` lists them")
}

// shown returns those of some timers whose job the caller may look into.
func shown(ctx context.Context, tx pgx.Tx, caller authz.Caller, timers []Timer) ([]Timer, error) {
	hidden, err := hiddenJobs(ctx, tx, caller, timers)
	return slices.DeleteFunc(timers, func(t Timer) bool { return hidden[t.DAG+"/"+t.Job] }), err
}

// hiddenJobs returns, for each of some timers, whether its job is hidden from the caller.
func hiddenJobs(ctx context.Context, tx pgx.Tx, caller authz.Caller, timers []Timer) (map[string]bool, error) {
	var dags, jobs []string
	for _, t := range timers {
		dags, jobs = append(dags, t.DAG), append(jobs, t.Job)
	}
	return registry.HiddenNames(ctx, tx, caller, dags, jobs)
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
		found, err := collect(ctx, tx, `
			SELECT `+columns+` FROM scheduled_events
			WHERE org_id = $1 AND id > $2 AND ($3 = '' OR dag_name = $3) AND ($4 = '' OR job_name = $4) AND ($5 = ''
				OR group_key = $5) AND ($6 = '' OR status = $6)
			ORDER BY id LIMIT $7`, caller.OrgID, after, f.DAG, f.Job, f.Group, f.Status, page.Limit+1)
		if err != nil {
			return err
		}
		if err := addTasks(ctx, tx, found); err != nil {
			return err
		}
		if found, err = seenBy(ctx, tx, caller, found); err != nil {
			return err
		}
		if list, err = rest.NewList(found, page.Limit, func(t Timer) any { return t.ID }); err != nil {
			return err
		}
		if f.Group != "" { // what is hidden is not found by it
			list.Items = slices.DeleteFunc(list.Items, func(t Timer) bool { return t.Group == "" })
		}
		return nil
	})
	if err != nil {
		return list, fmt.Errorf("list timers: %w", err)
	}
	return list, nil
}
