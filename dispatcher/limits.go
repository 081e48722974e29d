package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// limit is one bound on how many tasks run at once: of a job, by its name over all its versions, of everything that shares
// a concurrency key in an org, or of what is asked for by hand for one output partition.
type limit struct {
	org uuid.UUID
	key string // job:DAG/JOB, key:VALUE, or output:DAG/JOB/PARTITION
	max int    // 0: as the limits table has it
}

func limitsOf(w newTask) []limit {
	if w.kind == "check" {
		return nil // a check never waits behind the work it guards
	}
	var limits []limit
	if n := w.job.Def.MaxConcurrency; n > 0 {
		limits = append(limits, limit{w.job.OrgID, "job:" + w.job.Address(), n})
	}
	if w.concurrency != "" {
		limits = append(limits, limit{w.job.OrgID, "key:" + w.concurrency, 1})
	}
	if w.isOwn() && w.partition != "" { // those of one output partition run one after the other
		limits = append(limits, limit{w.job.OrgID, "output:" + w.job.Address() + "/" + w.partition, 1})
	}
	return limits
}

// isOwn says that the task has a payload of its own, so that no other stands for it.
func (w newTask) isOwn() bool {
	if w.kind == "source" {
		return w.job.Def.Source != nil && w.job.Def.Source.Kind == "webhook"
	}
	return w.kind == "manual" || w.kind == "timer"
}

func limitKeys(limits []limit) []string {
	keys := make([]string, len(limits))
	for i, l := range limits {
		keys[i] = l.key
	}
	return keys
}

// renderConcurrencyKey fills {partition} and {payload.FIELD} in a job's template.
func renderConcurrencyKey(template, partition string, payload json.RawMessage) string {
	if template == "" {
		return ""
	}
	out := strings.ReplaceAll(template, "{partition}", partition)
	var fields map[string]any
	if json.Unmarshal(payload, &fields) == nil {
		for name, value := range fields {
			out = strings.ReplaceAll(out, "{payload."+name+"}", fmt.Sprint(value))
		}
	}
	return out
}

// refusal is a task that has to wait, and for which limit.
type refusal struct {
	placement
	blocker string
}

// room is what a transaction knows of the limits that it has locked: how many slots are free, and what that changes in the
// rows, which is written once: a slot that is given back and taken again changes nothing.
type room struct {
	free, change map[limit]int
	promoted     bool // tasks were chosen by one limit of theirs: others may have the slots of those that cannot go on
}

func newRoom() room { return room{free: map[limit]int{}, change: map[limit]int{}} }

// leave gives the slots of a task back that was admitted.
func (r room) leave(p placement) {
	for _, l := range p.limits {
		k := limit{org: l.org, key: l.key}
		r.free[k]++
		r.change[k]--
	}
}

// admit gives tasks a slot of every limit they are under, in the order given, as far as there are any. Limits are exact:
// their rows are locked in sorted order by whoever admits or releases, and a slot is held from here until the run ends.
func (r room) admit(ctx context.Context, tx pgx.Tx, tasks []placement) (admitted []placement, refused []refusal, err error) {
	if err := r.lock(ctx, tx, tasks); err != nil {
		return nil, nil, err
	}
	for _, p := range tasks {
		blocker := ""
		for _, l := range p.limits {
			if r.free[limit{org: l.org, key: l.key}] <= 0 {
				blocker = l.key
				break
			}
		}
		if blocker != "" {
			refused = append(refused, refusal{p, blocker})
			continue
		}
		for _, l := range p.limits {
			k := limit{org: l.org, key: l.key}
			r.free[k]--
			r.change[k]++
		}
		admitted = append(admitted, p)
	}
	return admitted, refused, nil
}

// lock locks the limits of tasks that are not locked yet, after it made sure that their rows exist, with the bounds the jobs
// have now.
func (r room) lock(ctx context.Context, tx pgx.Tx, tasks []placement) error {
	bounds := map[limit]int{}
	for _, p := range tasks {
		for _, l := range p.limits {
			k := limit{org: l.org, key: l.key}
			if _, locked := r.free[k]; !locked || l.max > 0 {
				bounds[k] = max(bounds[k], l.max)
			}
		}
	}
	if len(bounds) == 0 {
		return nil
	}
	orgs, keys := sortedLimits(bounds)
	maxes := make([]int, len(keys))
	for i := range keys {
		maxes[i] = bounds[limit{org: orgs[i], key: keys[i]}]
	}
	var b pg.Batch
	b.Exec("set limits", `
		INSERT INTO limits (org_id, key, max)
		SELECT w.org, w.key, greatest(w.max, 1) FROM unnest($1::uuid[], $2::text[], $3::int[]) WITH ORDINALITY AS w(org, key, max, n)
		ORDER BY w.n
		ON CONFLICT (org_id, key) DO UPDATE SET max = EXCLUDED.max
		WHERE limits.max <> EXCLUDED.max AND EXISTS (
			SELECT FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, max)
			WHERE w.org = limits.org_id AND w.key = limits.key AND w.max > 0)`, orgs, keys, maxes)
	r.queueLock(&b, orgs, keys)
	return b.Send(ctx, tx)
}

// queueLock locks limits, in the order given, which is to be that of sortedLimits, and learns what is free.
func (r room) queueLock(b *pg.Batch, orgs []uuid.UUID, keys []string) {
	var (
		l limit
		n int
	)
	b.Query("lock limits", []any{&l.org, &l.key, &n}, func() error {
		r.free[l] = n - r.change[l]
		return nil
	}, lockLimits, orgs, keys)
}

// lockLimits locks rows one by one in the order of its arguments, orgs and keys.
const lockLimits = `
	SELECT l.org_id, l.key, l.max - l.held FROM unnest($1::uuid[], $2::text[]) AS w(org, key)
	CROSS JOIN LATERAL (SELECT * FROM limits WHERE org_id = w.org AND key = w.key LIMIT 1 FOR UPDATE) AS l`

func sortedLimits(m map[limit]int) (orgs []uuid.UUID, keys []string) {
	sorted := make([]limit, 0, len(m))
	for l := range m {
		sorted = append(sorted, l)
	}
	slices.SortFunc(sorted, func(a, b limit) int {
		if c := slices.Compare(a.org[:], b.org[:]); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
	for _, l := range sorted {
		orgs, keys = append(orgs, l.org), append(keys, l.key)
	}
	return orgs, keys
}

// queueHold writes how many more slots are held, or fewer.
func (r room) queueHold(b *pg.Batch) {
	change := maps.Clone(r.change)
	maps.DeleteFunc(change, func(_ limit, by int) bool { return by == 0 })
	clear(r.change)
	if len(change) == 0 {
		return
	}
	orgs, keys := sortedLimits(change)
	by := make([]int, len(keys))
	for i := range keys {
		by[i] = change[limit{org: orgs[i], key: keys[i]}]
	}
	b.Exec("hold limits", `
		UPDATE limits l SET held = l.held + w.change
		FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, change)
		WHERE l.org_id = w.org AND l.key = w.key`, orgs, keys, by)
}

// countLimits adds a task's slots to those that are given back.
func countLimits(freed map[limit]int, org uuid.UUID, keys []string) {
	for _, key := range keys {
		freed[limit{org: org, key: key}]--
	}
}

// releaseAll gives back the slots of tasks whose runs have ended, or which will not run, and admits the next that wait.
func (d *Dispatcher) releaseAll(ctx context.Context, tx pgx.Tx, freed map[limit]int, now time.Time) error {
	if len(freed) == 0 {
		return nil
	}
	var b pg.Batch
	r, next := queueRelease(&b, freed)
	if err := b.Send(ctx, tx); err != nil {
		return err
	}
	return d.placeIn(ctx, tx, r, *next, now)
}

// promoteOnce admits tasks that wait for limits which those before them could not make use of. What it cannot admit either is
// for reviewLimits, so that no transaction moves a long queue from limit to limit.
func (d *Dispatcher) promoteOnce(ctx context.Context, tx pgx.Tx, limits map[limit]int, now time.Time) error {
	if len(limits) == 0 {
		return nil
	}
	none := make(map[limit]int, len(limits))
	for l := range limits {
		none[l] = 0
	}
	var b pg.Batch
	r, next := queueRelease(&b, none)
	r.promoted = false
	if err := b.Send(ctx, tx); err != nil {
		return err
	}
	return d.placeIn(ctx, tx, r, *next, now)
}

// queueRelease is releaseAll as a part of a batch: what it tells is to be placed, in the room that it tells, when that is sent.
// It locks the rows in the one order in which all lock them, and takes as many of the tasks that wait for each limit as there
// may be room for; those that another limit still blocks go back to waiting, for that one. It relies on idx_waiting_blocker.
func queueRelease(b *pg.Batch, freed map[limit]int) (room, *[]placement) {
	r, next := newRoom(), &[]placement{}
	if len(freed) == 0 {
		return r, next
	}
	maps.Copy(r.change, freed)
	r.promoted = true
	orgs, keys := sortedLimits(freed)
	by := make([]int, len(keys))
	for i := range keys {
		by[i] = -freed[limit{org: orgs[i], key: keys[i]}]
	}
	r.queueLock(b, orgs, keys)
	queuePromote(b, next, `q.task_id = ANY(ARRAY(
		SELECT w.task_id FROM unnest($1::uuid[], $2::text[], $3::int[]) AS f(org, key, freed)
		CROSS JOIN LATERAL (SELECT max - held AS free FROM limits WHERE org_id = f.org AND key = f.key LIMIT 1) AS l
		CROSS JOIN LATERAL (
			SELECT task_id FROM waiting WHERE org_id = f.org AND blocker = f.key AND reason = 'limit'
			ORDER BY org_id, blocker, rank, task_id LIMIT greatest(l.free + f.freed, 0)
			FOR UPDATE SKIP LOCKED) AS w))`, orgs, keys, by)
	return r, next
}

// reviewLimits lets tasks in for which there is room but no release to let them in: a bound was raised by a deploy, or
// whoever released passed over a row that was locked at that moment.
func (d *Dispatcher) reviewLimits(ctx context.Context, acting map[uuid.UUID]registry.Acting, now time.Time) error {
	var (
		orgs  []uuid.UUID
		keys  []string
		maxes []int
	)
	for _, a := range acting {
		if a.Live && a.Job.Def.MaxConcurrency > 0 {
			orgs, keys, maxes = append(orgs, a.Job.OrgID), append(keys, "job:"+a.Job.Address()), append(maxes, a.Job.Def.MaxConcurrency)
		}
	}
	if _, err := d.Pool.Exec(ctx, `
		UPDATE limits l SET max = w.max FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, max)
		WHERE l.org_id = w.org AND l.key = w.key AND l.max <> w.max`, orgs, keys, maxes); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	rows, err := d.Pool.Query(ctx, `
		SELECT l.org_id, l.key FROM limits l
		WHERE l.held < l.max AND EXISTS (SELECT FROM waiting w WHERE w.org_id = l.org_id AND w.blocker = l.key AND w.reason = 'limit')`)
	if err != nil {
		return fmt.Errorf("review limits: %w", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l limit, err error) { return l, row.Scan(&l.org, &l.key) })
	if err != nil {
		return fmt.Errorf("review limits: %w", err)
	}
	for _, l := range open {
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
			return d.releaseAll(ctx, tx, map[limit]int{l: 0}, now)
		})
		if err != nil {
			return fmt.Errorf("review limit %s: %w", l.key, err)
		}
		d.wake.send(topicClaim)
	}
	return nil
}
