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

// A job is idle when none of its tasks is open and its newest one ended longer ago than its idle_timeout. A job without
// an idle_timeout, such as a source, is idle as soon as no task is open. A runtime is idle when every job on it is: its
// workers may be scaled to zero then, and the next ready task starts them again.

// idleness remembers for a while which runtimes were busy: many workers ask, each time they got no task.
type idleness struct {
	mu   sync.Mutex
	at   time.Time
	busy map[place]bool
}

// place is a runtime as one org uses it.
type place struct {
	org     uuid.UUID
	runtime string
}

// idleEvery is how long idleness is remembered.
const idleEvery = 2 * time.Second

// IdleRuntimes returns those of the runtimes that are idle in all orgs that the worker may claim for.
func (d *Dispatcher) IdleRuntimes(
	ctx context.Context, worker authz.Worker, runtimes []string, now time.Time,
) ([]string, error) {
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
		return slices.ContainsFunc(worker.Orgs, func(org uuid.UUID) bool {
			return d.idle.busy[place{org, runtime}]
		})
	}), nil
}

// Work summarizes the tasks of an origin.
type Work struct {
	Open bool
	Last *time.Time // when the newest task ended, or was made if it has not run
}

// IdleFor reports whether a job is idle. It is pure.
func IdleFor(job *dag.Job, w Work, now time.Time) bool {
	switch {
	case w.Open, job.IdleTimeout == "never":
		return false
	case w.Last == nil, job.IdleTimeout == "", job.IdleTimeout == "0":
		return true
	}
	after, err := time.ParseDuration(job.IdleTimeout)
	return err == nil && now.Sub(*w.Last) >= after
}

// busyRuntimes returns the runtimes, by org, that have a job which is not idle.
func (d *Dispatcher) busyRuntimes(ctx context.Context, now time.Time) (map[place]bool, error) {
	busy := map[place]bool{}
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
			if k := (place{a.Job.OrgID, a.Job.Def.Runtime}); !busy[k] {
				busy[k] = !IdleFor(&a.Job.Def, works[origin], now)
			}
		}
		return nil
	})
	return busy, err
}

// workOfAll returns the work of origins. It relies on idx_tasks_job for the newest task of each origin, and on the keys
// of the small sets. A task that waits for its run_at is not open yet: it starts workers when it is due.
func workOfAll(ctx context.Context, tx pgx.Tx, acting map[uuid.UUID]registry.Acting) (map[uuid.UUID]Work, error) {
	origins := make([]uuid.UUID, 0, len(acting))
	for origin := range acting {
		origins = append(origins, origin)
	}

	rows, err := tx.Query(ctx, `
		SELECT o.id,
			EXISTS (SELECT FROM ready r WHERE r.origin_job_id = o.id)
				OR EXISTS (SELECT FROM leases l WHERE l.origin_job_id = o.id)
				OR EXISTS (SELECT FROM waiting w
					WHERE w.origin_job_id = o.id AND w.reason IN ('sibling', 'limit', 'backoff')),
			(SELECT coalesce(t.completed_at, t.created_at) FROM tasks t
				WHERE t.job_id = o.id ORDER BY t.id DESC LIMIT 1)
		FROM unnest($1::uuid[]) AS o(id)`, origins)
	if err != nil {
		return nil, fmt.Errorf("look for idle jobs: %w", err)
	}

	works := make(map[uuid.UUID]Work, len(origins))
	var (
		origin uuid.UUID
		w      Work
	)
	_, err = pgx.ForEachRow(rows, []any{&origin, &w.Open, &w.Last}, func() error { works[origin] = w; return nil })
	if err != nil {
		return nil, fmt.Errorf("look for idle jobs: %w", err)
	}
	return works, nil
}
