package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
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

// routePayload is what an outbox row has to be routed: events, or generations that a cutover has just shown to the jobs
// of other DAGs, whole.
type routePayload struct {
	EventIDs    []uuid.UUID `json:"event_ids,omitempty"`
	Generations []uuid.UUID `json:"generations,omitempty"`
	rowTraces
}

func (d *Dispatcher) routeRows(ctx context.Context, tx pgx.Tx, rows []outboxRow, now time.Time) (created, error) {
	var ids, moved []uuid.UUID
	began, traces := time.Now(), map[uuid.UUID]string{}
	for _, row := range rows {
		var payload routePayload
		if err := json.Unmarshal(row.Payload, &payload); err != nil {
			return created{}, fmt.Errorf("outbox row %d: %w", row.ID, err)
		}
		ids, moved = append(ids, payload.EventIDs...), append(moved, payload.Generations...)
		maps.Copy(traces, payload.Traces)
	}
	events, err := loadEvents(ctx, tx, ids)
	if err != nil {
		return created{}, err
	}
	for i := range events {
		events[i].trace = traces[events[i].ID]
	}
	pg.AfterCommit(ctx, func() { d.metrics.routed(events, began) })
	made, err := d.route(ctx, tx, events, moved, now)
	if err != nil {
		return created{}, err
	}
	return made, deleteOutbox(ctx, tx, rows)
}

// route makes the tasks that events, and generations that came to be read as a whole, call for. Locks are taken in one
// order everywhere: DAGs, then origins, then slots; what is decided is decided on what was committed when they were had.
func (d *Dispatcher) route(ctx context.Context, tx pgx.Tx, events []Event, moved []uuid.UUID, now time.Time) (created, error) {
	generations := slices.Clone(moved)
	for _, e := range events {
		generations = append(generations, e.Version)
	}
	generations = dedupeIDs(generations)
	consumers, err := d.lockConsumers(ctx, tx, generations, nil)
	if err != nil || len(consumers) == 0 {
		return created{}, err
	}
	// A cutover may have come before the locks: ask again who consumes now.
	if consumers, err = d.lockConsumers(ctx, tx, generations, consumers); err != nil {
		return created{}, err
	}
	return d.routeTo(ctx, tx, consumers, events, moved, now)
}

// routeTo makes the tasks of given consumers, whose locks are had.
func (d *Dispatcher) routeTo(ctx context.Context, tx pgx.Tx, consumers []registry.Consumer, events []Event, moved []uuid.UUID, now time.Time) (created, error) {
	hits, err := d.hits(ctx, tx, events, moved, consumers)
	if err != nil {
		return created{}, err
	}
	if len(hits.targets) == 0 {
		return created{}, recordOutcomes(ctx, tx, hits, nil, created{})
	}
	var (
		filling *[]uuid.UUID
		there   occupancy
	)
	findings, err := d.examineWith(ctx, tx, hits.targets, func(b *pg.Batch, wants [][]inputFacts) {
		var read []uuid.UUID
		for _, inputs := range wants {
			for _, in := range inputs {
				read = append(read, in.generation)
			}
		}
		slots := make([]slotOf, len(hits.targets))
		for i, t := range hits.targets {
			slots[i] = slotOf{t.job.Origin, t.key}
		}
		filling, there = queueFilling(b, dedupeIDs(read)), queueOccupied(b, slots)
	})
	if err != nil {
		return created{}, err
	}
	traceFindings(findings, hits)
	made, err := d.createWhere(ctx, tx, findings, *filling, there, hits.live, now)
	if err != nil {
		return created{}, err
	}
	return made, recordOutcomes(ctx, tx, hits, findings, made)
}

// lockConsumers finds who reads the generations, and takes the locks of those that are not among the locked already.
func (d *Dispatcher) lockConsumers(ctx context.Context, tx pgx.Tx, generations []uuid.UUID, locked []registry.Consumer) ([]registry.Consumer, error) {
	consumers, err := d.Registry.Consumers(ctx, tx, generations)
	if err != nil {
		return nil, err
	}
	had := map[uuid.UUID]bool{}
	for _, c := range locked {
		had[c.Job.Origin] = true
	}
	var keys []string
	var origins []uuid.UUID
	for _, c := range consumers {
		if !had[c.Job.Origin] {
			keys, origins = append(keys, c.Job.LockKey()), append(origins, c.Job.Origin)
		}
	}
	if len(origins) == 0 {
		return consumers, nil
	}
	if err := registry.LockDAGsShared(ctx, tx, keys); err != nil {
		return nil, err
	}
	return consumers, lockOrigins(ctx, tx, origins)
}

// hits are the targets that a batch touches, each once, with the events that touched it.
type hits struct {
	targets []target
	events  [][]Event
	live    map[uuid.UUID]bool // by origin
	index   map[slotOf]int
	whole   map[uuid.UUID]bool // jobs all of whose targets are in
	passive []passive
}

// passive is an event of an input that does not trigger.
type passive struct {
	event Event
	job   *registry.Job
}

func (h *hits) add(t target, events ...Event) {
	k := slotOf{t.job.Origin, t.key}
	i, known := h.index[k]
	if !known {
		i = len(h.targets)
		h.index[k] = i
		h.targets, h.events = append(h.targets, t), append(h.events, nil)
	}
	h.events[i] = append(h.events[i], events...)
}

// addWhole adds every target of a job, once.
func (d *Dispatcher) addWhole(ctx context.Context, tx pgx.Tx, h *hits, job *registry.Job) error {
	if h.whole[job.ID] {
		return nil
	}
	h.whole[job.ID] = true
	targets, err := d.allTargets(ctx, tx, job)
	for _, t := range targets {
		h.add(t)
	}
	return err
}

func (d *Dispatcher) hits(ctx context.Context, tx pgx.Tx, events []Event, moved []uuid.UUID, consumers []registry.Consumer) (hits, error) {
	byGeneration := map[uuid.UUID][]registry.Consumer{}
	h := hits{live: map[uuid.UUID]bool{}, index: map[slotOf]int{}, whole: map[uuid.UUID]bool{}}
	for _, c := range consumers {
		byGeneration[c.Generation] = append(byGeneration[c.Generation], c)
		h.live[c.Job.Origin] = h.live[c.Job.Origin] || c.Live
	}
	for _, generation := range moved {
		for _, c := range byGeneration[generation] {
			if err := d.addWhole(ctx, tx, &h, c.Job); err != nil {
				return hits{}, err
			}
		}
	}
	for _, e := range events {
		for _, c := range byGeneration[e.Version] {
			if !c.Live && c.Job.Acts() {
				continue // it begins to act once its version serves
			}
			in := c.Job.Inputs[c.Input]
			if !in.Def.Triggers() {
				// A dimension does not trigger, but what was waiting for its first partition may start, and with
				// refresh all that read it is stale.
				look := d.addWhole
				if in.Def.Map.Kind == dag.MapSlice {
					look = d.hitSlices(e)
				}
				if err := look(ctx, tx, &h, c.Job); err != nil {
					return hits{}, err
				}
				h.passive = append(h.passive, passive{e, c.Job})
				continue
			}
			fed, err := in.Def.Map.OutputKeys(in.PartitionBy, c.Job.Def.PartitionBy, e.Key)
			if err != nil {
				return hits{}, fmt.Errorf("map partition %q of %s to %s: %w", e.Key, in.Producer, c.Job.Address(), err)
			}
			for _, key := range fed {
				h.add(target{c.Job, key}, e)
			}
		}
	}
	return h, nil
}

// lockOrigins excludes others that would create tasks of the same origins, until the transaction ends. So whatever is
// decided about an output partition is decided on what the one before committed: two inputs that arrive at the same
// moment make one task, and not none, and not two.
func lockOrigins(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) error {
	return lockOriginsBy(ctx, tx, "pg_advisory_xact_lock", origins)
}

// shareOrigins keeps away those who lock origins, and not those who do this too: for making tasks with slots of their own,
// of which none can be in the way of another.
func shareOrigins(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) error {
	return lockOriginsBy(ctx, tx, "pg_advisory_xact_lock_shared", origins)
}

func lockOriginsBy(ctx context.Context, tx pgx.Tx, lock string, origins []uuid.UUID) error {
	sorted := dedupeIDs(slices.Clone(origins))
	_, err := tx.Exec(ctx, `SELECT `+lock+`(hashtextextended(o::text, 1)) FROM unnest($1::uuid[]) AS o`, sorted)
	if err != nil {
		return fmt.Errorf("lock %d origins: %w", len(sorted), err)
	}
	return nil
}
