package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// workerDeadAfter is how long a process may be silent before what it runs is given to others. What it ran is fenced,
// so a process that was merely slow does no harm.
const workerDeadAfter = 10 * time.Second

// registerFor bounds how long a process that starts waits for a database which is away. Each connection of the pool that
// died with it takes a try.
const registerFor = 30 * time.Second

// registerSoon registers the process, again where the database is away for a moment. Being told to stop is no error.
func (d *Dispatcher) registerSoon(ctx context.Context) error {
	for began := time.Now(); ; {
		err := d.register(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > registerFor {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(jitter(d.Poll)):
		}
	}
}

// register enters this process into the registry of workers. One that was forgotten, because it was frozen for long, stays
// drained if it was.
func (d *Dispatcher) register(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	now := time.Now()
	var drained *time.Time
	if d.drained.Load() {
		drained = &now
	}
	_, err = d.Pool.Exec(ctx, `
		INSERT INTO workers (id, hostname, started_at, last_heartbeat, pool_size, version, runtimes, operators, drained_at)
		VALUES ($1, $2, $3, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (id) DO UPDATE SET last_heartbeat = EXCLUDED.last_heartbeat, drained_at = EXCLUDED.drained_at`,
		d.WorkerID, host, now, d.PoolSize, d.Version, d.inProcessRuntimes(), d.Operators.Names(), drained)
	if err != nil {
		return fmt.Errorf("register worker %s: %w", d.WorkerID, err)
	}
	return nil
}

// heartbeatWorker says that this process lives and, as River's election has it, whether it leads the periodic sweeps; it
// hears whether somebody drains it, and forgets those that have not been heard of for long.
func (d *Dispatcher) heartbeatWorker(ctx context.Context, now time.Time) (more bool, err error) {
	var drained bool
	err = d.Pool.QueryRow(ctx, `
		UPDATE workers w SET last_heartbeat = $2, current_tasks = $3, is_leader = l.expires_at IS NOT NULL, leader_until = l.expires_at
		FROM (SELECT) AS one LEFT JOIN river_leader l ON l.leader_id = $1 AND l.expires_at > $2
		WHERE w.id = $1 RETURNING w.drained_at IS NOT NULL`, d.WorkerID, now, len(d.slots)).Scan(&drained)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, d.register(ctx)
	case err != nil:
		return false, fmt.Errorf("heartbeat of worker %s: %w", d.WorkerID, err)
	case drained && d.drained.CompareAndSwap(false, true):
		d.Log.Info("drained: no more tasks are claimed", "worker", d.WorkerID, "running", len(d.slots))
	}
	_, err = d.Pool.Exec(ctx, `
		DELETE FROM workers w WHERE w.last_heartbeat < $1 AND NOT EXISTS (SELECT FROM leases l WHERE l.worker_id = w.id)`,
		now.Add(-10*workerDeadAfter))
	return false, err
}

// Worker is a process that runs tasks.
type Worker struct {
	ID            string     `json:"id"`
	Hostname      string     `json:"hostname"`
	State         string     `json:"state" enum:"live,drained,dead" doc:"drained: it runs what it has and claims no more; dead: it was not heard of for ten seconds"`
	Version       string     `json:"version"`
	Runtimes      []string   `json:"runtimes" nullable:"false" doc:"That it serves"`
	Operators     []string   `json:"operators" nullable:"false" doc:"That it runs"`
	PoolSize      int        `json:"pool_size" doc:"Tasks that it runs at once"`
	CurrentTasks  int        `json:"current_tasks" doc:"Tasks that it ran at its last heartbeat, of all orgs"`
	StartedAt     time.Time  `json:"started_at"`
	LastHeartbeat time.Time  `json:"last_heartbeat"`
	DrainedAt     *time.Time `json:"drained_at,omitempty" doc:"When somebody asked it to claim no more"`
	IsLeader      bool       `json:"is_leader" doc:"It leads the periodic sweeps"`
	LeaderUntil   *time.Time `json:"leader_until,omitempty" doc:"Until when it does, unless it is elected again"`
}

// workerColumns reads a Worker, now being $1 and the time before which a heartbeat is too old $2.
const workerColumns = `id, hostname, CASE WHEN last_heartbeat <= $2 THEN 'dead' WHEN drained_at IS NOT NULL THEN 'drained' ELSE 'live' END,
	coalesce(version, ''), runtimes, operators, pool_size, current_tasks, started_at, last_heartbeat, drained_at,
	is_leader AND leader_until > $1, CASE WHEN is_leader AND leader_until > $1 THEN leader_until END`

// Workers lists the processes that run tasks of the caller's org, by id: the servers, which serve every org, and its workers.
func (d *Dispatcher) Workers(ctx context.Context, caller authz.Caller, after string, limit int, now time.Time) (workers []Worker, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+workerColumns+` FROM workers WHERE id > $3 AND (orgs IS NULL OR $5 = ANY(orgs)) ORDER BY id LIMIT $4`,
			now, now.Add(-workerDeadAfter), after, limit, caller.OrgID)
		if err != nil {
			return err
		}
		workers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Worker])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

// Drain asks a process to claim no more tasks; what it runs it finishes. A server serves every org, and so may a worker: an
// admin of one of them may not drain it, and DrainWorker is for whoever runs the server.
func (d *Dispatcher) Drain(ctx context.Context, caller authz.Caller, id string, now time.Time) (w Worker, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if w, err = drainTx(ctx, tx, id, now); err != nil {
			return err
		}
		serves := 0
		if err := tx.QueryRow(ctx, `SELECT coalesce(cardinality(orgs), 0) FROM workers WHERE id = $1 AND (orgs IS NULL OR $2 = ANY(orgs))`,
			id, caller.OrgID).Scan(&serves); errors.Is(err, pgx.ErrNoRows) {
			return noSuchWorker(id)
		} else if err != nil {
			return err
		}
		if serves == 0 { // a server
			orgs, err := authz.OrgSlugs(ctx, tx)
			if err != nil {
				return err
			}
			serves = len(orgs)
		}
		if serves > 1 {
			return fault.New(fault.Forbidden, "worker %s runs tasks of other orgs too", id).
				WithHint("whoever runs the server may drain it: `dagctl workers drain %s --database-url URL`", id)
		}
		return authz.Audit(ctx, tx, caller, "worker.drain", id, nil)
	})
	if err != nil {
		return Worker{}, err
	}
	if id == d.WorkerID {
		d.drained.Store(true)
	}
	return w, nil
}

// DrainWorker is Drain by whoever has the database in hand.
func DrainWorker(ctx context.Context, owner *pgxpool.Pool, id string, now time.Time) (w Worker, err error) {
	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		w, err = drainTx(ctx, tx, id, now)
		return err
	})
	return w, err
}

func drainTx(ctx context.Context, tx pgx.Tx, id string, now time.Time) (Worker, error) {
	rows, err := tx.Query(ctx, `UPDATE workers SET drained_at = coalesce(drained_at, $1) WHERE id = $3 AND last_heartbeat > $2 RETURNING `+workerColumns,
		now, now.Add(-workerDeadAfter), id)
	if err != nil {
		return Worker{}, fmt.Errorf("drain worker %s: %w", id, err)
	}
	w, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Worker])
	if errors.Is(err, pgx.ErrNoRows) {
		return w, noSuchWorker(id)
	}
	return w, err
}

func noSuchWorker(id string) error {
	return fault.New(fault.NotFound, "no worker %s is alive", id).WithHint("`dagctl workers list` shows them")
}
