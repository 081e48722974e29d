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
	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// routeBatch is how many outbox rows one transaction routes. Routing 100 to 500 rows together costs a small fraction of
// routing them one by one.
const routeBatch = 200

// RouteOnce drains a batch of the outbox: it finds the consumers of the events, decides which outputs became stale and
// makes the tasks, all in the transaction that removes the rows. A crash before COMMIT leaves them for the next router.
// One poisoned row must not block the others, so rows that cannot be routed together are routed one by one.
func (d *Dispatcher) RouteOnce(ctx context.Context, now time.Time) (more bool, err error) {
	var rows []tasks.OutboxRow
	var made tasks.Created
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		made = tasks.Created{}
		rows, err = tasks.TakeOutbox(ctx, tx, "route_event", routeBatch, now)
		if err != nil || len(rows) == 0 {
			return err
		}
		made, err = d.routeRows(ctx, tx, rows, now)
		return err
	})
	if err == nil {
		d.Wakeups.Send(made.Topics()...)
		return len(rows) == routeBatch, nil
	}
	if len(rows) == 0 {
		return false, err
	}

	// One event that cannot be routed must not hold back the others.
	err = batch.OneByOne(rows, err, func(row tasks.OutboxRow) error { return d.routeRow(ctx, row, now) },
		func(row tasks.OutboxRow, err error) error {
			return d.Tasks.Postpone(ctx, []tasks.OutboxRow{row}, err, now)
		})
	return err == nil && len(rows) > 1, err
}

// routeRow routes one row of the outbox in a transaction of its own.
func (d *Dispatcher) routeRow(ctx context.Context, row tasks.OutboxRow, now time.Time) error {
	var made tasks.Created
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		locked, err := tasks.TakeOutboxRow(ctx, tx, row.ID)
		if err != nil || !locked {
			return err
		}
		made, err = d.routeRows(ctx, tx, []tasks.OutboxRow{row}, now)
		return err
	})
	if err == nil {
		d.Wakeups.Send(made.Topics()...)
	}
	return err
}

// RoutePayload is the payload of an outbox row: the events to route, or whole generations that a cutover has just shown
// to the jobs of other DAGs.
type RoutePayload struct {
	EventIDs    []uuid.UUID `json:"event_ids,omitempty"`
	Generations []uuid.UUID `json:"generations,omitempty"`
	rowTraces
}

// routeRows routes rows of the outbox that this transaction holds, and removes them.
func (d *Dispatcher) routeRows(
	ctx context.Context, tx pgx.Tx, rows []tasks.OutboxRow, now time.Time,
) (tasks.Created, error) {
	var ids, moved []uuid.UUID
	began, traces := time.Now(), map[uuid.UUID]string{}
	for _, row := range rows {
		var payload RoutePayload
		if err := json.Unmarshal(row.Payload, &payload); err != nil {
			return tasks.Created{}, fmt.Errorf("outbox row %d: %w", row.ID, err)
		}
		ids, moved = append(ids, payload.EventIDs...), append(moved, payload.Generations...)
		maps.Copy(traces, payload.Traces)
	}

	events, err := LoadEvents(ctx, tx, ids)
	if err != nil {
		return tasks.Created{}, err
	}
	for i := range events {
		events[i].trace = traces[events[i].ID]
	}

	pg.AfterCommit(ctx, func() { countRouted(d.Metrics, events, began) })
	made, err := d.route(ctx, tx, events, moved, now)
	if err != nil {
		return tasks.Created{}, err
	}
	return made, tasks.DeleteOutbox(ctx, tx, rows)
}

// route makes the tasks that events and moved generations call for; a moved generation is one that a cutover has just
// shown as a whole. Locks are taken in one order everywhere: DAGs, then origins, then slots. route decides on what was
// committed when it held them all.
func (d *Dispatcher) route(
	ctx context.Context, tx pgx.Tx, events []Event, moved []uuid.UUID, now time.Time,
) (tasks.Created, error) {
	generations := slices.Clone(moved)
	for _, e := range events {
		generations = append(generations, e.Version)
	}
	generations = tasks.SortedIDs(generations)
	consumers, err := d.lockConsumers(ctx, tx, generations, nil)
	if err != nil || len(consumers) == 0 {
		return tasks.Created{}, err
	}

	// A cutover may have been committed before the locks were held: find the consumers again.
	if consumers, err = d.lockConsumers(ctx, tx, generations, consumers); err != nil {
		return tasks.Created{}, err
	}
	return d.routeTo(ctx, tx, consumers, events, moved, nil, now)
}

// routeTo makes the tasks of consumers whose locks the transaction holds. next collects the tasks that become
// claimable.
func (d *Dispatcher) routeTo(
	ctx context.Context, tx pgx.Tx, consumers []registry.Consumer,
	events []Event, moved []uuid.UUID, next *tasks.Collector, now time.Time,
) (tasks.Created, error) {
	hits, err := d.findHits(ctx, tx, events, moved, consumers)
	if err != nil {
		return tasks.Created{}, err
	}
	if len(hits.targets) == 0 {
		return tasks.Created{}, recordOutcomes(ctx, tx, hits, nil, tasks.Created{})
	}

	// One round trip asks for everything that the decisions need.
	wants, err := d.Stale.Wants(ctx, tx, hits.targets)
	if err != nil {
		return tasks.Created{}, err
	}
	var b pg.Batch
	facts := d.Stale.Facts(&b, hits.targets, wants)
	around := Surroundings{filled: generationsFilled(&b, generationsOf(wants)),
		slots: tasks.Occupied(&b, slotsOfTargets(hits.targets)), live: hits.live, Next: next}
	known, err := facts.Get(ctx, tx)
	if err != nil {
		return tasks.Created{}, err
	}

	findings := stale.DecideAll(hits.targets, known)
	traceFindings(findings, hits)
	made, err := d.CreateFound(ctx, tx, findings, around, now)
	if err != nil {
		return tasks.Created{}, err
	}
	return made, recordOutcomes(ctx, tx, hits, findings, made)
}

func generationsOf(wants [][]stale.InputFacts) []uuid.UUID {
	var read []uuid.UUID
	for _, inputs := range wants {
		for _, in := range inputs {
			read = append(read, in.Generation)
		}
	}
	return tasks.SortedIDs(read)
}

func slotsOfTargets(targets []stale.Target) []tasks.Slot {
	slots := make([]tasks.Slot, len(targets))
	for i, t := range targets {
		slots[i] = tasks.Slot{Origin: t.Job.Origin, Key: t.Key}
	}
	return slots
}

// lockConsumers returns the consumers of the generations, and locks the consumers that are not in locked.
func (d *Dispatcher) lockConsumers(
	ctx context.Context, tx pgx.Tx, generations []uuid.UUID, locked []registry.Consumer,
) ([]registry.Consumer, error) {
	consumers, err := d.Registry.Consumers(new(pg.Batch), generations).Get(ctx, tx)
	if err != nil {
		return nil, err
	}

	held := map[uuid.UUID]bool{}
	for _, c := range locked {
		held[c.Job.Origin] = true
	}

	var keys []string
	var origins []uuid.UUID
	for _, c := range consumers {
		if !held[c.Job.Origin] {
			keys, origins = append(keys, c.Job.LockKey()), append(origins, c.Job.Origin)
		}
	}
	if len(origins) == 0 {
		return consumers, nil
	}

	var b pg.Batch
	registry.LockDAGsShared(&b, keys)
	if err := b.Send(ctx, tx); err != nil {
		return nil, err
	}
	return consumers, tasks.LockOrigins(ctx, tx, origins)
}

// hits holds the targets that a batch of events touches, each once, with the events that touch it.
type hits struct {
	targets []stale.Target
	events  [][]Event
	live    map[uuid.UUID]bool // by origin
	index   map[tasks.Slot]int
	whole   map[uuid.UUID]bool // jobs that have all their targets in it, or in later
	later   []uuid.UUID        // origins of jobs with too many targets to look at now
	awaited map[stale.Awaiting]bool
	passive []consumed // events of inputs that do not trigger
	blocked []consumed // events that cannot be mapped to the partitions of a consumer
}

// consumed is an event that makes no target of a consumer, and why it does not.
type consumed struct {
	event  Event
	job    *registry.Job
	reason string
}

func (h *hits) add(t stale.Target, events ...Event) {
	k := tasks.Slot{Origin: t.Job.Origin, Key: t.Key}
	i, known := h.index[k]
	if !known {
		i = len(h.targets)
		h.index[k] = i
		h.targets, h.events = append(h.targets, t), append(h.events, nil)
	}
	h.events[i] = append(h.events[i], events...)
}

// addWhole adds every target of a job, once. If they are many, the background looks at them: the router holds the lock
// of the job's origin.
func (d *Dispatcher) addWhole(ctx context.Context, tx pgx.Tx, h *hits, job *registry.Job) error {
	if h.whole[job.ID] {
		return nil
	}
	h.whole[job.ID] = true

	few, err := d.Stale.Few(ctx, tx, job, reconcileBatch)
	if err != nil {
		return err
	}
	if !few {
		h.later = append(h.later, job.Origin)
		return nil
	}
	targets, err := d.Stale.AllTargets(ctx, tx, job)
	for _, t := range targets {
		h.add(t)
	}
	return err
}

// findHits returns the targets of consumers that events and moved generations touch.
func (d *Dispatcher) findHits(
	ctx context.Context, tx pgx.Tx, events []Event, moved []uuid.UUID, consumers []registry.Consumer,
) (hits, error) {
	byGeneration := map[uuid.UUID][]registry.Consumer{}
	h := hits{live: map[uuid.UUID]bool{}, index: map[tasks.Slot]int{}, whole: map[uuid.UUID]bool{}}
	for _, c := range consumers {
		byGeneration[c.Generation] = append(byGeneration[c.Generation], c)
		h.live[c.Job.Origin] = h.live[c.Job.Origin] || c.Live
	}

	var err error
	if h.awaited, err = stale.TakeAwaited(ctx, tx, mayAwait(events, byGeneration)); err != nil {
		return hits{}, err
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
				continue // the job begins to act once its version serves
			}
			if err := d.hit(ctx, tx, &h, c, e); err != nil {
				return hits{}, err
			}
		}
	}
	if len(h.later) == 0 {
		return h, nil
	}
	var b pg.Batch
	FanOut(&b, h.later)
	return h, b.SendLast(ctx, tx)
}

// mayAwait returns the consumers that may wait for the generations of events.
func mayAwait(events []Event, byGeneration map[uuid.UUID][]registry.Consumer) (asked []stale.Awaiting) {
	for _, e := range events {
		for _, c := range byGeneration[e.Version] {
			a := stale.Awaiting{Origin: c.Job.Origin, Generation: e.Version}
			if stale.MayAwait(c.Job, c.Input) && !slices.Contains(asked, a) {
				asked = append(asked, a)
			}
		}
	}
	return asked
}

// hit adds the targets of a consumer that an event touches. An event that cannot be mapped to the consumer's partitions
// is recorded for this consumer, and is nothing to the others.
func (d *Dispatcher) hit(ctx context.Context, tx pgx.Tx, h *hits, c registry.Consumer, e Event) error {
	in, awaited := c.Job.Inputs[c.Input], h.awaited[stale.Awaiting{Origin: c.Job.Origin, Generation: e.Version}]
	if in.Def.Triggers() {
		fed, unmapped := stale.OutputKeys(c.Job, in, c.PartitionBy, e.Key)
		if unmapped != "" {
			h.blocked = append(h.blocked, consumed{e, c.Job, unmapped})
		}
		for _, key := range fed {
			h.add(stale.Target{Job: c.Job, Key: key}, e)
		}
		if awaited {
			return d.addWhole(ctx, tx, h, c.Job)
		}
		return nil
	}

	if unmapped := stale.Unmapped(c.Job, in, c.PartitionBy); unmapped != "" {
		h.blocked = append(h.blocked, consumed{e, c.Job, unmapped})
		return nil
	}
	// A dimension does not trigger, but outputs that waited for its first partition may be made now, and with refresh
	// all outputs made from it are stale.
	h.passive = append(h.passive, consumed{e, c.Job, "this input does not trigger"})
	if in.Def.Map.Kind == dag.MapSlice {
		return d.hitSlices(ctx, tx, h, c.Job, e)
	}
	if stale.MayAwait(c.Job, c.Input) && !awaited {
		return nil
	}
	return d.addWhole(ctx, tx, h, c.Job)
}

// rangesAtOnce bounds how many ranges of one segment are looked at one by one. A segment that reaches over more touches
// all targets of the job.
const rangesAtOnce = 1000

// hitSlices adds the ranges of a job that slices an input, as far as the input's new segment has rows for them. The
// segment's event gives the position where it ends.
func (d *Dispatcher) hitSlices(ctx context.Context, tx pgx.Tx, h *hits, job *registry.Job, e Event) error {
	if e.Position == nil {
		return d.addWhole(ctx, tx, h, job)
	}

	span := registry.Span{Generation: e.Version, From: *e.Position, To: *e.Position + 1}
	found, err := registry.SegmentsOf(ctx, tx, []registry.Span{span})
	if err != nil {
		return err
	}
	for segment := range found[span] {
		keys, all, err := job.Def.PartitionBy.RangesOver(segment, rangesAtOnce)
		if err != nil {
			return fmt.Errorf("slices of %s: %w", job.Address(), err)
		}
		if !all {
			return d.addWhole(ctx, tx, h, job)
		}
		for _, key := range keys {
			h.add(stale.Target{Job: job, Key: key})
		}
	}
	return nil
}

// countRouted counts routed events.
func countRouted(m *metrics.Metrics, events []Event, began time.Time) {
	m.Batch("route", began, len(events))
	by := map[uuid.UUID]int{}
	for _, e := range events {
		by[e.OrgID]++
	}
	for org, n := range by {
		m.Events.WithLabelValues(org.String()).Add(float64(n))
	}
}
