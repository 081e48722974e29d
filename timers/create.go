package timers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Timers come from people, one or a batch at a time, and from tasks. All of a request are made, or none.

// NewTimer describes a timer to create.
type NewTimer struct {
	DAG            string          `json:"dag" minLength:"1" maxLength:"63"`
	Job            string          `json:"job" minLength:"1" maxLength:"63" doc:"A job whose source is of kind timer"`
	EventType      string          `json:"event_type,omitempty" maxLength:"50" doc:"For people. Default: timer"`
	Group          string          `json:"group,omitempty" maxLength:"200" doc:"Such as a user"`
	Local          string          `json:"target_timestamp_local,omitempty" maxLength:"30" doc:"Local time in the zone"`
	Timezone       string          `json:"target_timezone" maxLength:"100" example:"Europe/Berlin"`
	Repeat         string          `json:"repeat,omitempty" enum:"none,yearly,cron" example:"cron"`
	Schedule       string          `json:"schedule,omitempty" maxLength:"100" doc:"Five fields or @daily, ..."`
	IdempotencyKey string          `json:"idempotency_key,omitempty" maxLength:"255" doc:"One timer per key"`
	Payload        json.RawMessage `json:"delivery_payload,omitempty" doc:"The payload of its tasks"`
}

// check repeats what the API's schema says of the fields, because tasks ask past it.
func (n NewTimer) check() error {
	for _, f := range []struct {
		name, text string
		longest    int
	}{
		{"event_type", n.EventType, 50}, {"group", n.Group, 200}, {"target_timezone", n.Timezone, 100},
		{"schedule", n.Schedule, 100}, {"idempotency_key", n.IdempotencyKey, 255},
	} {
		if utf8.RuneCountInString(f.text) > f.longest || strings.ContainsRune(f.text, 0) {
			return fault.New(fault.Invalid, "%s is longer than %d characters, or has a NUL in it", f.name, f.longest)
		}
	}
	if !slices.Contains([]string{"", never, yearly, byCron}, n.Repeat) {
		return fault.New(fault.Invalid, "repeat %q is none of none, yearly and cron", n.Repeat)
	}
	return nil
}

// timer returns the requested timer, with its first occurrence.
func (n NewTimer) timer(now time.Time) (Timer, error) {
	if err := n.check(); err != nil {
		return Timer{}, err
	}
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

// Created is a timer that stands for a request: a new one, or the one that has the idempotency key.
type Created struct {
	Timer
	IsNew bool `json:"created" doc:"False: a timer with this idempotency key existed"`

	taken  bool // the key belongs to a timer of another job
	closed bool // into which the caller may not look
}

// refused returns why the timer does not stand for the request; nil: it does.
func (c Created) refused() error {
	switch {
	case !c.taken:
		return nil
	case c.closed:
		return fault.New(fault.Invalid, "idempotency_key %q cannot be used here", c.IdempotencyKey).
			WithHint("choose another one")
	}
	return fault.New(fault.Invalid, "idempotency_key %q belongs to a timer of another job", c.IdempotencyKey)
}

// Create creates timers. For a request whose idempotency key is known, the timer that has it stands.
func (t *Timers) Create(
	ctx context.Context, caller authz.Caller, wanted []NewTimer, now time.Time,
) (out []Created, err error) {
	planned, err := plan(wanted, caller.Actor, now)
	if err != nil {
		return nil, fmt.Errorf("create timers: %w", err)
	}
	for _, p := range planned {
		if err := authz.Authorize(caller, authz.Operate, authz.OnDAG(p.DAG)); err != nil {
			return nil, err
		}
	}

	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := requireShown(ctx, tx, caller, planned); err != nil {
			return err
		}
		if err := t.checkJobs(ctx, tx, caller.OrgID, planned); err != nil {
			return err
		}
		if out, err = insert(ctx, tx, caller.OrgID, planned, now); err != nil {
			return err
		}
		if err := closeTaken(ctx, tx, caller, out); err != nil {
			return err
		}

		faults := make([]error, len(out))
		for i := range out {
			faults[i] = out[i].refused()
			if out[i].IsNew {
				if err := authz.Audit(ctx, tx, caller, "timer.create", "timer:"+out[i].ID.String(),
					authz.Change{After: moment(out[i].Timer)}); err != nil {
					return err
				}
			}
			out[i].Timer = out[i].seenBy(caller)
		}
		return refuse(faults)
	})
	if err != nil {
		return nil, fmt.Errorf("create timers: %w", err)
	}
	return out, nil
}

// closeTaken notes which keys belong to timers of jobs that the caller may not look into.
func closeTaken(ctx context.Context, tx pgx.Tx, caller authz.Caller, out []Created) error {
	var others []Timer
	for _, c := range out {
		if c.taken {
			others = append(others, c.Timer)
		}
	}
	hidden, err := hiddenJobs(ctx, tx, caller, others)
	for i, c := range out {
		out[i].closed = c.taken && hidden[c.DAG+"/"+c.Job]
	}
	return err
}

// plan returns the timers of requests. Its error lists the faults of all of them.
func plan(wanted []NewTimer, by string, now time.Time) ([]Timer, error) {
	planned, faults := make([]Timer, len(wanted)), make([]error, len(wanted))
	for i, n := range wanted {
		planned[i], faults[i] = n.timer(now)
		planned[i].CreatedBy = by
	}
	return planned, refuse(faults)
}

// requireShown refuses timers of jobs that the caller may not look into.
func requireShown(ctx context.Context, tx pgx.Tx, caller authz.Caller, planned []Timer) error {
	hidden, err := hiddenJobs(ctx, tx, caller, planned)
	first := slices.IndexFunc(planned, func(t Timer) bool { return hidden[t.DAG+"/"+t.Job] })
	if err != nil || first < 0 {
		return err
	}
	return registry.RequireShown(ctx, tx, caller, planned[first].DAG, planned[first].Job)
}

// checkJobs refuses timers of jobs that are no timer jobs, or whose payload their schema refuses.
func (t *Timers) checkJobs(ctx context.Context, tx pgx.Tx, org uuid.UUID, planned []Timer) error {
	check, faults := t.Sources.TimerChecks(ctx, tx, org), make([]error, len(planned))
	for i, timer := range planned {
		if faults[i] = check(timer.DAG, timer.Job, timer.Payload); fault.Is(faults[i], fault.Internal) {
			return faults[i]
		}
	}
	return refuse(faults)
}

// refuse returns an error that lists the faults of requests, each at its place; nil if there is none. That of a request
// which comes alone is returned as it is.
func refuse(faults []error) error {
	if len(faults) == 1 {
		return faults[0]
	}
	var problems []fault.Problem
	for i, err := range faults {
		if err != nil {
			problems = append(problems,
				fault.Problem{Location: fmt.Sprintf("body.timers[%d]", i), Message: fault.Text(err)})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return &fault.Error{Kind: fault.Invalid, Message: problems[0].Location + ": " + problems[0].Message,
		Problems: problems}
}

// timerRow has the columns of a new timer, in the order of insert's unnest.
type timerRow struct {
	ID                    uuid.UUID
	DAG, Job, Type        string
	Group                 string
	UTC, Local, Anchor    time.Time
	Zone, Repeat          string
	Schedule              string
	Key, Payload, Creator string
}

// insert stores timers that have new keys, and returns for each the timer that has its key.
func insert(ctx context.Context, tx pgx.Tx, org uuid.UUID, planned []Timer, now time.Time) ([]Created, error) {
	rows, keys := make([]timerRow, len(planned)), make([]string, len(planned))
	for i, t := range planned {
		rows[i] = timerRow{t.ID, t.DAG, t.Job, t.EventType, t.Group, t.UTC, t.local, t.anchor, t.Timezone, t.Repeat,
			t.Schedule, t.IdempotencyKey, string(t.Payload), t.CreatedBy}
		keys[i] = t.IdempotencyKey
	}

	made, err := collect(ctx, tx, `
		INSERT INTO scheduled_events (id, org_id, dag_name, job_name, event_type, group_key, target_timestamp_utc,
			target_timestamp_local, anchor_local, target_timezone, repeat, schedule, idempotency_key, delivery_payload,
			created_by, created_at, updated_at)
		SELECT id, $1, dag, job, type, NULLIF(group_key, ''), utc, local, anchor, zone, NULLIF(repeat, 'none'),
			NULLIF(schedule, ''), key, payload::jsonb, NULLIF(creator, ''), $2, $2
		FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::timestamp[],
			$10::timestamp[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[])
			AS w(id, dag, job, type, group_key, utc, local, anchor, zone, repeat, schedule, key, payload, creator)
		ORDER BY key, id -- so that two requests with the same keys do not wait for each other
		ON CONFLICT (org_id, idempotency_key) DO NOTHING
		RETURNING `+columns, append([]any{org, now}, pg.Columns(rows)...)...)
	if err != nil {
		return nil, err
	}
	stored, err := collect(ctx, tx, `SELECT `+columns+` FROM scheduled_events
		WHERE org_id = $1 AND idempotency_key = ANY($2)`, org, keys)
	if err != nil {
		return nil, err
	}
	if err := addTasks(ctx, tx, stored); err != nil {
		return nil, err
	}
	return stand(planned, made, stored), nil
}

// stand returns, for each planned timer, the stored one that has its key.
func stand(planned, made, stored []Timer) []Created {
	isNew := map[uuid.UUID]bool{}
	for _, t := range made {
		isNew[t.ID] = true
	}
	byKey := map[string]Timer{}
	for _, t := range stored {
		byKey[t.IdempotencyKey] = t
	}

	out := make([]Created, len(planned))
	for i, t := range planned {
		s := byKey[t.IdempotencyKey]
		out[i] = Created{Timer: s, IsNew: isNew[s.ID] && s.ID == t.ID, taken: s.DAG != t.DAG || s.Job != t.Job}
	}
	return out
}

// MakeAsked makes the timers that a task asks for. It implements dispatcher.TimerMaker.
func (t *Timers) MakeAsked(
	ctx context.Context, tx pgx.Tx, asked []dispatcher.AskedTimer, now time.Time,
) ([]uuid.UUID, error) {
	planned := make([]Timer, len(asked))
	for i, a := range asked {
		n := NewTimer{DAG: a.Job.DAG, Job: a.Job.Name, EventType: a.When.EventType, Group: a.When.Group,
			Local: a.When.Local, Timezone: a.When.Timezone, Repeat: a.When.Repeat, Schedule: a.When.Schedule,
			IdempotencyKey: a.IdempotencyKey, Payload: a.Payload}
		var err error
		if planned[i], err = n.timer(now); err != nil {
			return nil, dispatcher.RefusedTimer(a, err)
		}
		planned[i].CreatedBy = a.By
	}

	out, err := insert(ctx, tx, asked[0].Job.OrgID, planned, now)
	if err != nil {
		return nil, err
	}
	ids := make([]uuid.UUID, len(out))
	for i, made := range out {
		if err := made.refused(); err != nil {
			return nil, dispatcher.RefusedTimer(asked[i], err)
		}
		ids[i] = made.ID
	}
	return ids, nil
}
