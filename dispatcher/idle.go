package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A job is idle when none of its tasks is open and the last one was made longer ago than its idle_timeout; a source,
// which has none, as soon as none is open. A runtime is idle when every job on it is: its workers may be scaled to zero, and
// whatever comes next is what starts them again.

// idleness remembers which runtimes were busy when it was last looked: many workers ask, each time they got nothing.
type idleness struct {
	mu   sync.Mutex
	at   time.Time
	busy map[head]bool // org and runtime
}

// idleEvery is how often a process looks.
const idleEvery = 2 * time.Second

// IdleRuntimes tells which of the runtimes have had nothing to do for so long, in all orgs that the worker may claim for,
// that it may exit.
func (d *Dispatcher) IdleRuntimes(ctx context.Context, worker authz.Worker, runtimes []string, now time.Time) ([]string, error) {
	d.idle.mu.Lock()
	defer d.idle.mu.Unlock()
	if d.idle.busy == nil || now.Sub(d.idle.at).Abs() >= idleEvery {
		busy, err := d.busyRuntimes(ctx, now)
		if err != nil {
			return nil, err
		}
		d.idle.busy, d.idle.at = busy, now
	}
	return slices.DeleteFunc(slices.Clone(runtimes), func(runtime string) bool {
		return slices.ContainsFunc(worker.Orgs, func(org uuid.UUID) bool { return d.idle.busy[head{org, runtime}] })
	}), nil
}

// work is how an origin's tasks stand.
type work struct {
	open bool
	last *time.Time // when the newest of its tasks ended or, where it never ran, was made
}

// idleFor decides whether a job is idle. It is pure.
func idleFor(job *dag.Job, w work, now time.Time) bool {
	switch {
	case w.open, job.IdleTimeout == "never":
		return false
	case w.last == nil, job.IdleTimeout == "", job.IdleTimeout == "0":
		return true
	}
	after, err := time.ParseDuration(job.IdleTimeout)
	return err == nil && now.Sub(*w.last) >= after
}

func (d *Dispatcher) busyRuntimes(ctx context.Context, now time.Time) (map[head]bool, error) {
	busy := map[head]bool{}
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := d.Registry.JobsInWork(ctx, tx, nil)
		if err != nil {
			return err
		}
		works, err := workOfAll(ctx, tx, acting)
		if err != nil {
			return err
		}
		for origin, a := range acting {
			if k := (head{a.Job.OrgID, a.Job.Def.Runtime}); !busy[k] {
				busy[k] = !idleFor(&a.Job.Def, works[origin], now)
			}
		}
		return nil
	})
	return busy, err
}

// workOfAll relies on idx_tasks_job for the newest task of each origin, and on the keys of the small sets. What waits for a
// time to run is not open yet: it will be announced then.
func workOfAll(ctx context.Context, tx pgx.Tx, acting map[uuid.UUID]registry.Acting) (map[uuid.UUID]work, error) {
	origins := make([]uuid.UUID, 0, len(acting))
	for origin := range acting {
		origins = append(origins, origin)
	}
	rows, err := tx.Query(ctx, `
		SELECT o.id, EXISTS (SELECT FROM ready r WHERE r.job_id = o.id) OR EXISTS (SELECT FROM leases l WHERE l.job_id = o.id)
			OR EXISTS (SELECT FROM waiting w WHERE w.job_id = o.id AND w.reason IN ('sibling', 'limit', 'backoff')),
			(SELECT coalesce(t.completed_at, t.created_at) FROM tasks t WHERE t.job_id = o.id ORDER BY t.id DESC LIMIT 1)
		FROM unnest($1::uuid[]) AS o(id)`, origins)
	if err != nil {
		return nil, fmt.Errorf("look for idle jobs: %w", err)
	}
	works := make(map[uuid.UUID]work, len(origins))
	var (
		origin uuid.UUID
		w      work
	)
	if _, err = pgx.ForEachRow(rows, []any{&origin, &w.open, &w.last}, func() error { works[origin] = w; return nil }); err != nil {
		return nil, fmt.Errorf("look for idle jobs: %w", err)
	}
	return works, nil
}
