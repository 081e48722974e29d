package dispatcher

import (
	"context"
	"fmt"
	"os"
	"time"
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

// register enters this process into the registry of workers.
func (d *Dispatcher) register(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	_, err = d.Pool.Exec(ctx, `
		INSERT INTO workers (id, hostname, started_at, last_heartbeat, pool_size, version, runtimes, operators)
		VALUES ($1, $2, $3, $3, $4, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET last_heartbeat = EXCLUDED.last_heartbeat, drained_at = NULL`,
		d.WorkerID, host, time.Now(), d.PoolSize, d.Version, d.inProcessRuntimes(), d.Operators.Names())
	if err != nil {
		return fmt.Errorf("register worker %s: %w", d.WorkerID, err)
	}
	return nil
}

// heartbeatWorker says that this process lives, and forgets those that have not for long.
func (d *Dispatcher) heartbeatWorker(ctx context.Context, now time.Time) (more bool, err error) {
	if _, err := d.Pool.Exec(ctx, `UPDATE workers SET last_heartbeat = $2, current_tasks = $3 WHERE id = $1`,
		d.WorkerID, now, len(d.slots)); err != nil {
		return false, fmt.Errorf("heartbeat of worker %s: %w", d.WorkerID, err)
	}
	_, err = d.Pool.Exec(ctx, `
		DELETE FROM workers w WHERE w.last_heartbeat < $1 AND NOT EXISTS (SELECT FROM leases l WHERE l.worker_id = w.id)`,
		now.Add(-10*workerDeadAfter))
	return false, err
}
