package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
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

// admit gives tasks a slot of every limit they are under, in the order given, as far as there are any. Limits are exact:
// their rows are locked in sorted order by whoever admits or releases, and a slot is held from here until the run ends.
func admit(ctx context.Context, tx pgx.Tx, tasks []placement) (admitted []placement, refused []refusal, err error) {
	if len(tasks) == 0 {
		return nil, nil, nil
	}
	free, err := lockLimits(ctx, tx, tasks)
	if err != nil {
		return nil, nil, err
	}
	taken := map[limit]int{}
	for _, p := range tasks {
		blocker := ""
		for _, l := range p.limits {
			if k := (limit{org: l.org, key: l.key}); free[k]-taken[k] <= 0 {
				blocker = l.key
				break
			}
		}
		if blocker != "" {
			refused = append(refused, refusal{p, blocker})
			continue
		}
		for _, l := range p.limits {
			taken[limit{org: l.org, key: l.key}]++
		}
		admitted = append(admitted, p)
	}
	return admitted, refused, hold(ctx, tx, taken)
}

// lockLimits makes sure that the rows exist, with the bounds the jobs have now, locks them and tells what is free.
func lockLimits(ctx context.Context, tx pgx.Tx, tasks []placement) (map[limit]int, error) {
	bounds := map[limit]int{}
	for _, p := range tasks {
		for _, l := range p.limits {
			k := limit{org: l.org, key: l.key}
			bounds[k] = max(bounds[k], l.max)
		}
	}
	orgs, keys := sortedLimits(bounds)
	maxes := make([]int, len(keys))
	for i := range keys {
		maxes[i] = bounds[limit{org: orgs[i], key: keys[i]}]
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO limits (org_id, key, max)
		SELECT w.org, w.key, greatest(w.max, 1) FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, max)
		ORDER BY w.org, w.key
		ON CONFLICT (org_id, key) DO UPDATE SET max = EXCLUDED.max
		WHERE limits.max <> EXCLUDED.max AND EXISTS (
			SELECT FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, max)
			WHERE w.org = limits.org_id AND w.key = limits.key AND w.max > 0)`, orgs, keys, maxes); err != nil {
		return nil, fmt.Errorf("set limits: %w", err)
	}
	rows, err := tx.Query(ctx, `
		SELECT l.org_id, l.key, l.max - l.held FROM limits l
		JOIN unnest($1::uuid[], $2::text[]) AS w(org, key) ON l.org_id = w.org AND l.key = w.key
		ORDER BY l.org_id, l.key FOR UPDATE OF l`, orgs, keys)
	if err != nil {
		return nil, fmt.Errorf("lock limits: %w", err)
	}
	free := map[limit]int{}
	var (
		l limit
		n int
	)
	_, err = pgx.ForEachRow(rows, []any{&l.org, &l.key, &n}, func() error {
		free[l] = n
		return nil
	})
	return free, err
}

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

// hold changes how many slots are held; negative numbers give back.
func hold(ctx context.Context, tx pgx.Tx, change map[limit]int) error {
	if len(change) == 0 {
		return nil
	}
	orgs, keys := sortedLimits(change)
	by := make([]int, len(keys))
	for i := range keys {
		by[i] = change[limit{org: orgs[i], key: keys[i]}]
	}
	_, err := tx.Exec(ctx, `
		UPDATE limits l SET held = l.held + w.change
		FROM unnest($1::uuid[], $2::text[], $3::int[]) AS w(org, key, change)
		WHERE l.org_id = w.org AND l.key = w.key`, orgs, keys, by)
	if err != nil {
		return fmt.Errorf("hold limits: %w", err)
	}
	return nil
}

// countLimits adds a task's slots to those that are given back.
func countLimits(freed map[limit]int, org uuid.UUID, keys []string) {
	for _, key := range keys {
		freed[limit{org: org, key: key}]--
	}
}

// releaseAll gives back the slots of tasks whose runs have ended, or which will not run, and admits the next that wait. It
// locks the rows in the one order in which all lock them.
func (d *Dispatcher) releaseAll(ctx context.Context, tx pgx.Tx, freed map[limit]int, now time.Time) error {
	if len(freed) == 0 {
		return nil
	}
	orgs, keys := sortedLimits(freed)
	if _, err := tx.Exec(ctx, `
		SELECT FROM limits l JOIN unnest($1::uuid[], $2::text[]) AS w(org, key) ON l.org_id = w.org AND l.key = w.key
		ORDER BY l.org_id, l.key FOR UPDATE OF l`, orgs, keys); err != nil {
		return fmt.Errorf("lock limits: %w", err)
	}
	if err := hold(ctx, tx, freed); err != nil {
		return err
	}
	for i := range keys {
		if _, err := d.promoteLimited(ctx, tx, orgs[i], keys[i], now); err != nil {
			return err
		}
	}
	return nil
}

// promoteLimited admits as many of the tasks that wait for a limit as there may be room for; those that another limit
// still blocks go back to waiting, for that one. The caller has locked the limit. It relies on idx_waiting_blocker.
func (d *Dispatcher) promoteLimited(ctx context.Context, tx pgx.Tx, org uuid.UUID, key string, now time.Time) (bool, error) {
	return d.promoteWhere(ctx, tx, now, `q.task_id IN (
		SELECT w.task_id FROM waiting w
		WHERE w.org_id = $1 AND w.blocker = $2 AND w.reason = 'limit'
		ORDER BY w.rank, w.task_id
		LIMIT (SELECT greatest(max - held, 0) FROM limits WHERE org_id = $1 AND key = $2)
		FOR UPDATE SKIP LOCKED)`, org, key)
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
			if _, err := tx.Exec(ctx, `SELECT FROM limits WHERE org_id = $1 AND key = $2 FOR UPDATE`, l.org, l.key); err != nil {
				return err
			}
			_, err := d.promoteLimited(ctx, tx, l.org, l.key, now)
			return err
		})
		if err != nil {
			return fmt.Errorf("review limit %s: %w", l.key, err)
		}
		d.wake.send(topicClaim)
	}
	return nil
}
