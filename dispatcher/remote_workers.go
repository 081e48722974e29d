package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// tokenOf returns the name under which the registry of workers keeps the token of a worker.
func tokenOf(w authz.Worker) string { return w.OrgID.String() + "/" + w.TokenName }

// WorkerHeartbeat enters a worker into the registry of workers or renews its entry, and returns whether it must drain.
// The tasks of a registered worker go to others once it is silent for ten seconds. A worker that stops leaves the
// registry, and its tasks go to others at once. A worker id belongs to its token: with another token WorkerHeartbeat
// returns a Conflict.
func (d *Dispatcher) WorkerHeartbeat(
	ctx context.Context, w authz.Worker, h protocol.WorkerHeartbeat, now time.Time,
) (protocol.WorkerOrders, error) {
	runs := make([]string, 0, len(h.Operators)+len(h.Handlers))
	for _, o := range h.Operators {
		runs = append(runs, o.Name)
	}
	for _, name := range h.Handlers {
		runs = append(runs, dag.Handler+":"+name)
	}

	runtimes := slices.DeleteFunc(append([]string{}, h.Runtimes...), func(r string) bool {
		return len(w.Runtimes) > 0 && !slices.Contains(w.Runtimes, r)
	})

	var orders protocol.WorkerOrders
	err := d.Pool.QueryRow(ctx, `
		INSERT INTO workers AS w (id, hostname, started_at, last_heartbeat, pool_size, version, runtimes, operators,
			current_tasks, token, orgs)
		VALUES ($1, $2, $3, $3, $4, NULLIF($5, ''), $6, $7, $8, $9, $10)
		ON CONFLICT (id) DO UPDATE SET last_heartbeat = EXCLUDED.last_heartbeat, hostname = EXCLUDED.hostname,
			pool_size = EXCLUDED.pool_size, version = EXCLUDED.version, runtimes = EXCLUDED.runtimes,
			operators = EXCLUDED.operators, current_tasks = EXCLUDED.current_tasks, orgs = EXCLUDED.orgs
		WHERE w.token = EXCLUDED.token
		RETURNING drained_at IS NOT NULL`,
		h.WorkerID, h.Hostname, now, h.PoolSize, h.Version, runtimes, runs, h.CurrentTasks, tokenOf(w), w.Orgs).
		Scan(&orders.Drain)
	if errors.Is(err, pgx.ErrNoRows) {
		return orders, fault.New(fault.Conflict, "worker id %s belongs to another token", h.WorkerID).
			WithHint("give each process an id of its own, such as host-pid-random")
	}
	if err != nil {
		return orders, fmt.Errorf("heartbeat of worker %s: %w", h.WorkerID, err)
	}

	if !h.Stopping {
		return orders, nil
	}
	orders.Drain = true
	if err := d.handBackAll(ctx, w, h.WorkerID, now); err != nil {
		return orders, err
	}
	_, err = d.Pool.Exec(ctx, `DELETE FROM workers WHERE id = $1 AND token = $2`, h.WorkerID, tokenOf(w))
	if err != nil {
		return orders, fmt.Errorf("forget worker %s: %w", h.WorkerID, err)
	}
	return orders, nil
}

// handBackAll makes the tasks that a worker runs claimable again.
func (d *Dispatcher) handBackAll(ctx context.Context, w authz.Worker, id string, now time.Time) error {
	rows, err := d.Pool.Query(ctx, `
		SELECT task_id, attempt, lease_token, origin_job_id FROM leases
		WHERE worker_id = $1 AND org_id = ANY($2) ORDER BY task_id`, id, w.Orgs)
	if err != nil {
		return fmt.Errorf("find the leases of worker %s: %w", id, err)
	}

	var (
		held   []Claimed
		f      tasks.Fence
		origin uuid.UUID
	)
	if _, err := pgx.ForEachRow(rows, []any{&f.TaskID, &f.Attempt, &f.LeaseToken, &origin}, func() error {
		held = append(held, Claimed{Fence: f, Job: &registry.Job{Origin: origin}})
		return nil
	}); err != nil {
		return fmt.Errorf("find the leases of worker %s: %w", id, err)
	}

	for _, t := range held {
		err := d.HandBack(ctx, t, "the worker was stopped", now, now)
		if err != nil && !fault.Is(err, fault.Conflict) {
			return fmt.Errorf("hand back the leases of worker %s: %w", id, err)
		}
	}
	return nil
}

// PollTasks claims up to max tasks for a worker. If none is ready, it waits for one for as long as wait. It returns
// early, without tasks, when this server stops and when somebody drains the worker.
func (d *Dispatcher) PollTasks(
	ctx context.Context, c Claimant, max int, wait time.Duration,
) (protocol.PollResponse, error) {
	out := protocol.PollResponse{Tasks: []protocol.Claim{}}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	for {
		woken := d.Wakeups.Claimable.Wait()
		drained, err := d.drainAsked(ctx, c, time.Now())
		if err != nil || drained {
			out.Drain = drained
			return out, err
		}

		claims, err := d.ClaimMany(ctx, c, max, time.Now())
		if err != nil {
			return out, err
		}
		if len(claims) > 0 {
			out.Tasks = claims
			return out, nil
		}

		retry := time.NewTimer(wakeup.Jitter(d.Poll)) // a wake-up may be lost
		select {
		case <-woken:
		case <-retry.C:
		case <-patience.C:
			idle, err := d.IdleRuntimes(ctx, c.Worker, c.Runtimes, time.Now())
			out.Idle = len(idle) > 0 && len(idle) == len(c.Runtimes)
			return out, err
		case <-d.stopping:
			return out, nil
		case <-ctx.Done():
			return out, nil // the worker is gone
		}
		retry.Stop()
	}
}

// drainAsked counts a poll as a heartbeat of a registered worker, which it writes once a second at most, and reports
// whether somebody drains the worker.
func (d *Dispatcher) drainAsked(ctx context.Context, c Claimant, now time.Time) (drained bool, err error) {
	err = d.Pool.QueryRow(ctx, `
		WITH worker AS (
			SELECT id, last_heartbeat, drained_at FROM workers WHERE id = $1 AND token = $2
		), heard AS (
			UPDATE workers w SET last_heartbeat = greatest(w.last_heartbeat, $3::timestamptz)
			FROM worker
			WHERE w.id = worker.id AND worker.last_heartbeat < $3::timestamptz - interval '1 second'
		)
		SELECT drained_at IS NOT NULL FROM worker`,
		c.WorkerID, tokenOf(c.Worker), now).Scan(&drained)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("poll of worker %s: %w", c.WorkerID, err)
	}
	return drained, nil
}
