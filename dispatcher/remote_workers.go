package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// tokenOf returns the name under which the registry of workers keeps the token of a worker.
func tokenOf(w authz.Worker) string { return w.OrgID.String() + "/" + w.TokenName }

// WorkerHeartbeat enters a worker into the registry of workers or renews its entry, and returns whether it must drain.
// and which of its tasks are to stop. A worker that stops leaves the registry, and its tasks go to others at once; one
// that is silent keeps them until their leases end. A worker is known by its token, its id and its incarnation: a new
// incarnation replaces the one before, whose tasks go to others, and WorkerHeartbeat returns a Conflict to that one.
func (d *Dispatcher) WorkerHeartbeat(
	ctx context.Context, w authz.Worker, h protocol.WorkerHeartbeat, now time.Time,
) (orders protocol.WorkerOrders, err error) {
	if err := goodWorkerID(h.WorkerID); err != nil {
		return orders, err
	}

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

	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var entered bool
		err := tx.QueryRow(ctx, `
			INSERT INTO workers AS w (id, hostname, started_at, last_heartbeat, pool_size, version, runtimes, operators,
				current_tasks, token, orgs, incarnation)
			SELECT $1::text, $2::text, $3::timestamptz, $3::timestamptz, $4::int, NULLIF($5::text, ''), $6::text[],
				$7::text[], $8::int, $9::text, $10::uuid[], $11::text
			WHERE EXISTS (SELECT FROM workers o WHERE o.token = $9 AND o.id = $1 AND o.incarnation = $11)
			   OR (SELECT count(*) FROM (SELECT FROM workers o WHERE o.token = $9 AND o.id <> $1
			           AND o.last_heartbeat > $12 LIMIT $13) AS others) < $13
			ON CONFLICT (token, id, incarnation) DO UPDATE SET last_heartbeat = EXCLUDED.last_heartbeat,
				hostname = EXCLUDED.hostname, pool_size = EXCLUDED.pool_size, version = EXCLUDED.version,
				runtimes = EXCLUDED.runtimes, operators = EXCLUDED.operators,
				current_tasks = EXCLUDED.current_tasks, orgs = EXCLUDED.orgs
			WHERE w.replaced_at IS NULL
			RETURNING drained_at IS NOT NULL, xmax = 0`,
			h.WorkerID, h.Hostname, now, h.PoolSize, h.Version, runtimes, runs, h.CurrentTasks, tokenOf(w), w.Orgs,
			h.Incarnation, now.Add(-tasks.WorkerDeadAfter), maxWorkers).Scan(&orders.Drain, &entered)
		if errors.Is(err, pgx.ErrNoRows) {
			return notEntered(ctx, tx, w, h)
		}
		if err != nil {
			return err
		}
		if !entered {
			return stopsOf(ctx, tx, w, h, &orders)
		}

		_, err = tx.Exec(ctx, `
			UPDATE workers SET replaced_at = $4, last_heartbeat = to_timestamp(0)
			WHERE token = $1 AND id = $2 AND incarnation <> $3 AND replaced_at IS NULL`,
			tokenOf(w), h.WorkerID, h.Incarnation, now)
		if err != nil {
			return err
		}
		return forgetDead(ctx, tx, tokenOf(w), now)
	})
	if err != nil {
		return orders, fmt.Errorf("heartbeat of worker %s: %w", h.WorkerID, err)
	}

	if !h.Stopping {
		return orders, nil
	}
	orders.Drain = true
	if err := d.handBackAll(ctx, w, h, now); err != nil {
		return orders, err
	}
	_, err = d.Pool.Exec(ctx, `DELETE FROM workers WHERE id = $1 AND token = $2 AND incarnation = $3`,
		h.WorkerID, tokenOf(w), h.Incarnation)
	if err != nil {
		return orders, fmt.Errorf("forget worker %s: %w", h.WorkerID, err)
	}
	return orders, nil
}

// maxWorkers bounds the live workers of one token, and the dead and the replaced ones that are remembered: what a token
// says of its workers is more work for the server than a task is.
const maxWorkers = 1000

// notEntered returns why a worker is not entered: it was replaced, or its token has too many.
func notEntered(ctx context.Context, tx pgx.Tx, w authz.Worker, h protocol.WorkerHeartbeat) error {
	var known bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workers WHERE token = $1 AND id = $2 AND incarnation = $3)`,
		tokenOf(w), h.WorkerID, h.Incarnation).Scan(&known)
	switch {
	case err != nil:
		return err
	case known:
		return fault.New(fault.Conflict, "another process has registered as worker %s since", h.WorkerID).
			WithHint("give each process an id of its own, such as host-pid-random")
	}
	return fault.New(fault.TooMany, "the worker token %s has %d live workers, and may have no more", w.TokenName,
		maxWorkers).
		WithHint("stop others, which count until ten seconds after their last heartbeat, or use another token")
}

// forgetDead removes the oldest of a token's workers that are dead or replaced and hold no task, beyond maxWorkers.
func forgetDead(ctx context.Context, tx pgx.Tx, token string, now time.Time) error {
	_, err := tx.Exec(ctx, `
		DELETE FROM workers w USING (
			SELECT id, incarnation FROM workers WHERE token = $1 AND last_heartbeat <= $2
			ORDER BY greatest(last_heartbeat, replaced_at) DESC OFFSET $3) AS old
		WHERE w.token = $1 AND w.id = old.id AND w.incarnation = old.incarnation AND w.last_heartbeat <= $2
		  AND NOT EXISTS (SELECT FROM leases l WHERE `+tasks.HeldBy+`)`,
		token, now.Add(-tasks.WorkerDeadAfter), maxWorkers)
	return fault.Wrap(err, "forget dead workers")
}

// maxStops bounds how many canceled and drained tasks one answer names; the next names the others.
const maxStops = 1000

// stopsOf adds to a worker's orders the tasks that it runs and that were asked to stop, or to end at a point of their
// choice. It relies on idx_leases_canceled and idx_leases_drained.
func stopsOf(
	ctx context.Context, tx pgx.Tx, w authz.Worker, h protocol.WorkerHeartbeat, orders *protocol.WorkerOrders,
) error {
	rows, err := tx.Query(ctx, `
		(SELECT task_id, true FROM leases
		WHERE worker_id = $1 AND worker_token = $2 AND incarnation = $3 AND cancel_requested ORDER BY 1 LIMIT $4)
		UNION ALL
		(SELECT task_id, false FROM leases
		WHERE worker_id = $1 AND worker_token = $2 AND incarnation = $3 AND drain_requested_at IS NOT NULL
		ORDER BY 1 LIMIT $4)`,
		h.WorkerID, tokenOf(w), h.Incarnation, maxStops)
	if err != nil {
		return fmt.Errorf("tasks of worker %s to stop: %w", h.WorkerID, err)
	}

	var (
		task     uuid.UUID
		canceled bool
	)
	_, err = pgx.ForEachRow(rows, []any{&task, &canceled}, func() error {
		if canceled {
			orders.Canceled = append(orders.Canceled, task)
		} else {
			orders.Drained = append(orders.Drained, task)
		}
		return nil
	})
	return err
}

// reservedIDs are beginnings of worker ids that only the server gives.
var reservedIDs = []string{"lambda:", "server:", "sqs:", "dagctl:"}

// goodWorkerID returns an error if a worker may not have an id.
func goodWorkerID(id string) error {
	for _, prefix := range reservedIDs {
		if len(id) >= len(prefix) && strings.EqualFold(id[:len(prefix)], prefix) {
			return fault.New(fault.Invalid,
				"a worker's id may not begin with %q: only the server gives such ids", prefix).
				WithHint("choose an id such as host-pid-random")
		}
	}
	return nil
}

// handBackAll makes the tasks that a worker runs claimable again.
func (d *Dispatcher) handBackAll(
	ctx context.Context, w authz.Worker, h protocol.WorkerHeartbeat, now time.Time,
) error {
	id := h.WorkerID
	rows, err := d.Pool.Query(ctx, `
		SELECT task_id, attempt, lease_token, origin_job_id FROM leases
		WHERE worker_id = $1 AND worker_token = $2 AND incarnation = $3 ORDER BY task_id`,
		id, tokenOf(w), h.Incarnation)
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
