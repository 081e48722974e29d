package tasks

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Limit bounds how many tasks run at once: those of a job, by its name over all its versions, those that share a
// concurrency key in an org, or those that people ask for by hand for one output partition.
type Limit struct {
	org uuid.UUID
	key string // job:DAG/JOB, key:VALUE, or output:DAG/JOB/PARTITION
	max int    // 0: the bound is in the limits table
}

// LimitsOf returns the limits that a requested task is under.
func LimitsOf(w Request) []Limit {
	if w.Kind == KindCheck {
		return nil // a check never waits behind the work it guards
	}
	var limits []Limit
	if n := w.Job.Def.MaxConcurrency; n > 0 {
		limits = append(limits, Limit{w.Job.OrgID, "job:" + w.Job.Address(), n})
	}
	if w.Concurrency != "" {
		limits = append(limits, Limit{w.Job.OrgID, "key:" + w.Concurrency, 1})
	}

	// Tasks of one output partition run one after the other, also where one has a slot of its own.
	asked := w.Job.Def.Asked() && w.Job.Def.Source.Kind == "manual"
	if (IsOwn(w.Kind, w.Job) || asked) && w.Partition != "" {
		limits = append(limits, Limit{w.Job.OrgID, "output:" + w.Job.Address() + "/" + w.Partition, 1})
	}
	return limits
}

// IsOwn reports whether a job's task of a kind has a payload of its own, so that no other task can stand for it.
func IsOwn(kind Kind, job *registry.Job) bool {
	if kind == KindSource {
		return job.Def.Source != nil && job.Def.Source.Kind == "webhook"
	}
	return kind == KindManual || kind == KindTimer
}

// LimitKeys returns the keys of limits.
func LimitKeys(limits []Limit) []string {
	keys := make([]string, len(limits))
	for i, l := range limits {
		keys[i] = l.key
	}
	return keys
}

// longestKey is the length of the longest key in bytes: that of an index's entry is bounded.
const longestKey = 800 // 200 characters

// RenderKey fills {partition} and {payload.FIELD} in a job's template. A key that gets too long ends in its hash
// instead.
func RenderKey(template, partition string, payload json.RawMessage) string {
	if template == "" {
		return ""
	}
	out := strings.ReplaceAll(template, "{partition}", partition)
	decoded, _ := literal.Decode(payload) // without it, the references stay
	fields, _ := decoded.(map[string]any)
	for name, value := range fields {
		out = strings.ReplaceAll(out, "{payload."+name+"}", fmt.Sprint(value))
	}
	if len(out) > longestKey {
		hash := sha256.Sum256([]byte(out))
		out = fmt.Sprintf("%s…%x", strings.ToValidUTF8(out[:longestKey-100], ""), hash)
	}
	return out
}

// refusal is a task that has to wait, with the key of the limit it waits for.
type refusal struct {
	Placement
	blocker string
}

// Room keeps, for the limits that a transaction has locked, how many slots are free and how many more are held than the
// rows say. The change is written once: a slot that is given back and taken again changes nothing.
type Room struct {
	free, change map[Limit]int
	next         *Collector // collects the tasks that become claimable; nil: the claim loop is woken

	// promoted: the tasks were chosen by one of their limits. The slots of those that cannot go on are for others.
	promoted bool
}

// NewRoom returns the room of a transaction that has locked no limits yet.
func NewRoom(next *Collector) Room {
	return Room{free: map[Limit]int{}, change: map[Limit]int{}, next: next}
}

// leave gives back the slots of an admitted task.
func (r Room) leave(p Placement) {
	for _, l := range p.Limits {
		k := Limit{org: l.org, key: l.key}
		r.free[k]++
		r.change[k]--
	}
}

// admit gives each task, in the order given, a slot of every limit it is under, while there are slots. Limits are
// exact: every transaction that admits or releases locks their rows in sorted order, and a slot is held from here until
// the run ends.
func (r Room) admit(
	ctx context.Context, tx pgx.Tx, tasks []Placement,
) (admitted []Placement, refused []refusal, err error) {
	if err := r.lock(ctx, tx, tasks); err != nil {
		return nil, nil, err
	}

	for _, p := range tasks {
		blocker := ""
		for _, l := range p.Limits {
			if r.free[Limit{org: l.org, key: l.key}] <= 0 {
				blocker = l.key
				break
			}
		}
		if blocker != "" {
			refused = append(refused, refusal{p, blocker})
			continue
		}

		for _, l := range p.Limits {
			k := Limit{org: l.org, key: l.key}
			r.free[k]--
			r.change[k]++
		}
		admitted = append(admitted, p)
	}
	return admitted, refused, nil
}

// lock locks those limits of tasks that are not locked yet. First it makes sure that their rows exist and have the
// bounds that the jobs have now.
func (r Room) lock(ctx context.Context, tx pgx.Tx, tasks []Placement) error {
	bounds := map[Limit]int{}
	for _, p := range tasks {
		for _, l := range p.Limits {
			k := Limit{org: l.org, key: l.key}
			if _, locked := r.free[k]; !locked || l.max > 0 {
				bounds[k] = max(bounds[k], l.max)
			}
		}
	}
	if len(bounds) == 0 {
		return nil
	}

	orgs, keys := SortedLimits(bounds)
	maxes := make([]int, len(keys))
	for i := range keys {
		maxes[i] = bounds[Limit{org: orgs[i], key: keys[i]}]
	}

	var b pg.Batch
	b.Exec("set limits", `
		INSERT INTO limits (org_id, key, max)
		SELECT w.org, w.key, greatest(w.max, 1)
		FROM unnest($1::uuid[], $2::text[], $3::int[]) WITH ORDINALITY AS w(org, key, max, n)
		ORDER BY w.n
		ON CONFLICT (org_id, key) DO UPDATE SET max = EXCLUDED.max
		WHERE limits.max <> EXCLUDED.max AND EXISTS (
			SELECT FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, max)
			WHERE w.org = limits.org_id AND w.key = limits.key AND w.max > 0)`, orgs, keys, maxes)
	r.lockRows(&b, orgs, keys)
	return b.Send(ctx, tx)
}

// lockRows locks limits in the given order, which must be the order of SortedLimits, and reads how many slots are free.
func (r Room) lockRows(b *pg.Batch, orgs []uuid.UUID, keys []string) {
	var (
		l Limit
		n int
	)
	b.Query("lock limits", []any{&l.org, &l.key, &n}, func() error {
		r.free[l] = n - r.change[l]
		return nil
	}, LockLimits, orgs, keys)
}

// LockLimits is the SQL that locks rows one by one in the order of its arguments, orgs and keys.
const LockLimits = `
	SELECT l.org_id, l.key, l.max - l.held FROM unnest($1::uuid[], $2::text[]) AS w(org, key)
	CROSS JOIN LATERAL (SELECT * FROM limits WHERE org_id = w.org AND key = w.key LIMIT 1 FOR UPDATE) AS l`

// SortedLimits returns the orgs and keys of limits in the order in which every transaction locks them.
func SortedLimits(m map[Limit]int) (orgs []uuid.UUID, keys []string) {
	sorted := make([]Limit, 0, len(m))
	for l := range m {
		sorted = append(sorted, l)
	}
	slices.SortFunc(sorted, func(a, b Limit) int {
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

// hold writes how many more, or fewer, slots are held.
func (r Room) hold(b *pg.Batch) {
	change := maps.Clone(r.change)
	maps.DeleteFunc(change, func(_ Limit, by int) bool { return by == 0 })
	clear(r.change)
	if len(change) == 0 {
		return
	}

	orgs, keys := SortedLimits(change)
	by := make([]int, len(keys))
	for i := range keys {
		by[i] = change[Limit{org: orgs[i], key: keys[i]}]
	}
	b.Exec("hold limits", `
		UPDATE limits l SET held = l.held + w.change
		FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, change)
		WHERE l.org_id = w.org AND l.key = w.key`, orgs, keys, by)
}

// AddFreed adds the slots of a task's limits to those that will be given back.
func AddFreed(freed map[Limit]int, org uuid.UUID, keys []string) {
	for _, key := range keys {
		freed[Limit{org: org, key: key}]--
	}
}

// ReleaseAll gives back the slots of tasks that have ended or will not run, and admits the next tasks that wait.
func (st *Store) ReleaseAll(ctx context.Context, tx pgx.Tx, freed map[Limit]int, now time.Time) error {
	if len(freed) == 0 {
		return nil
	}
	released, err := release(new(pg.Batch), freed, nil).Get(ctx, tx)
	if err != nil {
		return err
	}
	return st.Place(ctx, tx, released.Room, released.tasks, now)
}

// promoteOnce admits tasks that wait for slots which the tasks before them could not use. Tasks that it cannot admit
// either are left to ReviewLimits, so that no transaction moves a long queue from limit to limit.
func (st *Store) promoteOnce(
	ctx context.Context, tx pgx.Tx, limits map[Limit]int, next *Collector, now time.Time,
) error {
	if len(limits) == 0 {
		return nil
	}
	none := make(map[Limit]int, len(limits))
	for l := range limits {
		none[l] = 0
	}
	released, err := release(new(pg.Batch), none, next).Get(ctx, tx)
	if err != nil {
		return err
	}
	released.promoted = false
	return st.Place(ctx, tx, released.Room, released.tasks, now)
}

// released is the room after slots were given back, with the tasks that waited for them and are to be placed in it.
type released struct {
	Room
	tasks []Placement
}

// release gives back slots of limits. It locks the rows in the order in which every transaction locks them, and takes
// as many of the tasks that wait for each limit as there may be room for; those that another limit still blocks go back
// to waiting, for that limit. next collects the tasks that become claimable. It relies on idx_waiting_blocker.
func release(b *pg.Batch, freed map[Limit]int, next *Collector) *pg.Later[released] {
	r := NewRoom(next)
	if len(freed) == 0 {
		return pg.Known(released{Room: r})
	}

	maps.Copy(r.change, freed)
	r.promoted = true
	orgs, keys := SortedLimits(freed)
	by := make([]int, len(keys))
	for i := range keys {
		by[i] = -freed[Limit{org: orgs[i], key: keys[i]}]
	}

	r.lockRows(b, orgs, keys)
	waited := promote(b, `q.task_id = ANY(ARRAY(
		SELECT w.task_id FROM unnest($1::uuid[], $2::text[], $3::int[]) AS f(org, key, freed)
		CROSS JOIN LATERAL (SELECT max - held AS free FROM limits WHERE org_id = f.org AND key = f.key LIMIT 1) AS l
		CROSS JOIN LATERAL (
			SELECT task_id FROM waiting WHERE org_id = f.org AND blocker = f.key AND reason = 'limit'
			ORDER BY org_id, blocker, rank, task_id LIMIT greatest(l.free + f.freed, 0)
			FOR UPDATE SKIP LOCKED) AS w))`, orgs, keys, by)
	return pg.Then(waited, func(_ context.Context, _ pgx.Tx, tasks []Placement) (released, error) {
		return released{r, tasks}, nil
	})
}

// ReviewLimits admits tasks for which there is room but no release to admit them: a deploy raised a bound, or a release
// passed over a row that was locked at that moment.
func (st *Store) ReviewLimits(ctx context.Context, acting map[uuid.UUID]registry.Acting, now time.Time) error {
	var (
		orgs  []uuid.UUID
		keys  []string
		maxes []int
	)
	for _, a := range acting {
		if a.Live && a.Job.Def.MaxConcurrency > 0 {
			orgs, keys = append(orgs, a.Job.OrgID), append(keys, "job:"+a.Job.Address())
			maxes = append(maxes, a.Job.Def.MaxConcurrency)
		}
	}

	if _, err := st.pool.Exec(ctx, `
		UPDATE limits l SET max = w.max FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, max)
		WHERE l.org_id = w.org AND l.key = w.key AND l.max <> w.max`, orgs, keys, maxes); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}

	// Limits with free slots, and tasks that wait for them.
	rows, err := st.pool.Query(ctx, `
		SELECT l.org_id, l.key FROM limits l
		WHERE l.held < l.max AND EXISTS (
			SELECT FROM waiting w WHERE w.org_id = l.org_id AND w.blocker = l.key AND w.reason = 'limit')`)
	if err != nil {
		return fmt.Errorf("review limits: %w", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Limit, err error) {
		return l, row.Scan(&l.org, &l.key)
	})
	if err != nil {
		return fmt.Errorf("review limits: %w", err)
	}

	for _, l := range open {
		err := pg.InTx(ctx, st.pool, func(ctx context.Context, tx pgx.Tx) error {
			return st.ReleaseAll(ctx, tx, map[Limit]int{l: 0}, now)
		})
		if err != nil {
			return fmt.Errorf("review limit %s: %w", l.key, err)
		}
		st.wake.Send(wakeup.Claim)
	}
	return nil
}
