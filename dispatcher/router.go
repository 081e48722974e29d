package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// routeBatch is how many outbox rows one transaction routes. 100 to 500 costs a small fraction of one by one.
const routeBatch = 200

// routeOnce drains a batch of the outbox: finds who consumes the events, decides what became stale and makes the tasks,
// all in the transaction that removes the rows. A crash before COMMIT leaves them for the next router.
func (d *Dispatcher) routeOnce(ctx context.Context, now time.Time) (more bool, err error) {
	var rows []outboxRow
	var made created
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		made = created{}
		rows, err = takeOutbox(ctx, tx, "route_event", routeBatch, now)
		if err != nil || len(rows) == 0 {
			return err
		}
		made, err = d.routeRows(ctx, tx, rows, now)
		return err
	})
	if err == nil {
		d.wake.send(made.topics()...)
		return len(rows) == routeBatch, nil
	}
	if len(rows) < 2 {
		return false, d.postpone(ctx, rows, err, now)
	}
	// One row may be poisoned: it must not block the others, so they go one by one.
	for _, row := range rows {
		if err := d.routeSingly(ctx, row, now); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (d *Dispatcher) routeSingly(ctx context.Context, row outboxRow, now time.Time) error {
	var made created
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		locked, err := takeOutboxRow(ctx, tx, row.ID)
		if err != nil || !locked {
			return err
		}
		made, err = d.routeRows(ctx, tx, []outboxRow{row}, now)
		return err
	})
	if err != nil {
		return d.postpone(ctx, []outboxRow{row}, err, now)
	}
	d.wake.send(made.topics()...)
	return nil
}

func (d *Dispatcher) routeRows(ctx context.Context, tx pgx.Tx, rows []outboxRow, now time.Time) (created, error) {
	var ids []uuid.UUID
	for _, row := range rows {
		var payload struct {
			EventIDs []uuid.UUID `json:"event_ids"`
		}
		if err := json.Unmarshal(row.Payload, &payload); err != nil {
			return created{}, fmt.Errorf("outbox row %d: %w", row.ID, err)
		}
		ids = append(ids, payload.EventIDs...)
	}
	events, err := loadEvents(ctx, tx, ids)
	if err != nil {
		return created{}, err
	}
	made, err := d.route(ctx, tx, events, now)
	if err != nil {
		return created{}, err
	}
	return made, deleteOutbox(ctx, tx, rows)
}

// route makes the tasks that events call for. Locks are taken in one order everywhere: DAGs, then origins, then slots;
// what is decided is decided on what was committed when the locks were had.
func (d *Dispatcher) route(ctx context.Context, tx pgx.Tx, events []Event, now time.Time) (created, error) {
	generations := make([]uuid.UUID, len(events))
	for i, e := range events {
		generations[i] = e.Version
	}
	consumers, err := d.Registry.Consumers(ctx, tx, dedupeIDs(generations))
	if err != nil || len(consumers) == 0 {
		return created{}, err
	}
	keys, origins := make([]string, len(consumers)), make([]uuid.UUID, len(consumers))
	for i, c := range consumers {
		keys[i], origins[i] = c.Job.LockKey(), c.Job.Origin
	}
	if err := registry.LockDAGsShared(ctx, tx, keys); err != nil {
		return created{}, err
	}
	if err := lockOrigins(ctx, tx, origins); err != nil {
		return created{}, err
	}
	// A cutover may have come before the lock: ask again who consumes now.
	if consumers, err = d.Registry.Consumers(ctx, tx, dedupeIDs(generations)); err != nil {
		return created{}, err
	}
	hits, err := d.hits(ctx, tx, events, consumers)
	if err != nil {
		return created{}, err
	}
	findings, err := d.examine(ctx, tx, hits.targets)
	if err != nil {
		return created{}, err
	}
	made, err := d.createFound(ctx, tx, findings, hits.live, now)
	if err != nil {
		return created{}, err
	}
	return made, recordOutcomes(ctx, tx, hits, findings, made)
}

// hits are the targets that a batch of events touches, each once, with the events that touched it.
type hits struct {
	targets []target
	events  [][]Event
	live    map[uuid.UUID]bool // by origin
}

func (d *Dispatcher) hits(ctx context.Context, tx pgx.Tx, events []Event, consumers []registry.Consumer) (hits, error) {
	byGeneration := map[uuid.UUID][]registry.Consumer{}
	h := hits{live: map[uuid.UUID]bool{}}
	for _, c := range consumers {
		byGeneration[c.Generation] = append(byGeneration[c.Generation], c)
		h.live[c.Job.Origin] = h.live[c.Job.Origin] || c.Live
	}
	type id struct {
		origin uuid.UUID
		key    string
	}
	index := map[id]int{}
	add := func(t target, e Event) {
		k := id{t.job.Origin, t.key}
		i, known := index[k]
		if !known {
			i = len(h.targets)
			index[k] = i
			h.targets, h.events = append(h.targets, t), append(h.events, nil)
		}
		h.events[i] = append(h.events[i], e)
	}
	for _, e := range events {
		for _, c := range byGeneration[e.Version] {
			in := c.Job.Inputs[c.Input]
			if !in.Def.Triggers() {
				// A dimension does not trigger, but what was waiting for its first partition may start, and with
				// refresh all that read it is stale.
				targets, err := d.allTargets(ctx, tx, c.Job)
				if err != nil {
					return hits{}, err
				}
				for _, t := range targets {
					add(t, e)
				}
				continue
			}
			fed, err := in.Def.Map.OutputKeys(in.PartitionBy, c.Job.Def.PartitionBy, e.Key)
			if err != nil {
				return hits{}, fmt.Errorf("map partition %q of %s to %s: %w", e.Key, in.Producer, c.Job.Address(), err)
			}
			for _, key := range fed {
				add(target{c.Job, key}, e)
			}
		}
	}
	return h, nil
}

// recordOutcomes closes the account of every (event, consumer) that is decided. One whose output still waits for
// another input stays open: the event that completes it decides over both.
func recordOutcomes(ctx context.Context, tx pgx.Tx, h hits, findings []finding, made created) error {
	var (
		events, jobs, orgs []uuid.UUID
		tasks              []*uuid.UUID
		outcomes, reasons  []string
	)
	for i, f := range findings {
		outcome, reason := "included", "the output was made from it already"
		var task *uuid.UUID
		if f.verdict == incomplete {
			continue
		}
		if f.verdict == stale {
			m, ok := made.by[slotOf{f.job.Origin, f.key}]
			if !ok {
				outcome, reason = "included", "this work was done, or given up, before"
			} else if task = &m.id; m.isNew {
				outcome, reason = "triggered", ""
			} else {
				outcome, reason = "included", "a task that reads it was queued already"
			}
		}
		for _, e := range h.events[i] {
			events, jobs, orgs = append(events, e.ID), append(jobs, f.job.Origin), append(orgs, f.job.OrgID)
			tasks, outcomes, reasons = append(tasks, task), append(outcomes, outcome), append(reasons, reason)
		}
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO event_consumers (event_id, job_id, org_id, outcome, task_id, reason)
		SELECT DISTINCT ON (e.event, e.job) e.event, e.job, e.org, e.outcome, e.task, NULLIF(e.reason, '')
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::text[]) AS e(event, job, org, outcome, task, reason)
		ORDER BY e.event, e.job, e.outcome = 'triggered' DESC
		ON CONFLICT (event_id, job_id) DO NOTHING`, events, jobs, orgs, outcomes, tasks, reasons)
	if err != nil {
		return fmt.Errorf("record outcomes: %w", err)
	}
	return nil
}

// lockOrigins excludes others that would create tasks of the same origins, until the transaction ends. So whatever is
// decided about an output partition is decided on what the one before committed: two inputs that arrive at the same
// moment make one task, and not none, and not two.
func lockOrigins(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) error {
	sorted := dedupeIDs(slices.Clone(origins))
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended(o::text, 1)) FROM unnest($1::uuid[]) AS o`, sorted)
	if err != nil {
		return fmt.Errorf("lock %d origins: %w", len(sorted), err)
	}
	return nil
}
