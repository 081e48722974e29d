package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/wait"
)

// readings are counters at one moment.
type readings struct {
	wal           int64         // bytes written by the whole server
	commits, rows int64         // of the database; rows inserted, updated and deleted
	cpu           time.Duration // of this process
	serverCPU     time.Duration

	allocs, allocated uint64 // objects and bytes that this process has allocated
}

// meter measures the cost of a run between its start and its end. Backends publish their counters when they end, at the
// latest, so the measured connections must be opened after start and closed before stop.
type meter struct {
	b      *bench
	name   string
	before readings
}

func (b *bench) startMeter(ctx context.Context, dsn string) (*meter, error) {
	name, err := databaseOf(dsn)
	if err != nil {
		return nil, err
	}
	if err := b.resetServer(ctx); err != nil {
		return nil, err
	}
	m := &meter{b: b, name: name}
	m.before, err = m.read(ctx)
	return m, err
}

// stop returns the cost per task, for a result's detail.
func (m *meter) stop(ctx context.Context, tasks int) (map[string]any, error) {
	after, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	per := func(n int64) float64 { return round(float64(n) / float64(tasks)) }
	return map[string]any{
		"wal_bytes_per_task": per(after.wal - m.before.wal),
		"commits_per_task":   per(after.commits - m.before.commits),
		"rows_per_task":      per(after.rows - m.before.rows),
		"cpu_s":              round((after.cpu - m.before.cpu).Seconds()),
		"postgres_cpu_s":     round((after.serverCPU - m.before.serverCPU).Seconds()),

		// Unlike times, these are the same on a busy machine.
		"allocs_per_task":      per(int64(after.allocs - m.before.allocs)),
		"alloc_bytes_per_task": per(int64(after.allocated - m.before.allocated)),
	}, nil
}

func (m *meter) read(ctx context.Context) (r readings, err error) {
	err = m.b.admin(ctx, func(conn *pgx.Conn) error {
		// Backends that have not ended yet may not have published.
		for {
			var open int
			if err := conn.QueryRow(ctx,
				`SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'`, m.name).
				Scan(&open); err != nil {
				return err
			}
			if open == 0 {
				break
			}
			if err := wait.For(ctx, 10*time.Millisecond); err != nil {
				return fmt.Errorf("%d connections are still open: %w", open, err)
			}
		}

		var err error
		if r.serverCPU, err = serverCPU(ctx, conn); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `
			SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, xact_commit,
				tup_inserted + tup_updated + tup_deleted
			FROM pg_stat_database WHERE datname = $1`, m.name).Scan(&r.wal, &r.commits, &r.rows)
	})

	var usage syscall.Rusage
	if err == nil {
		err = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	}
	r.cpu = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	r.allocs, r.allocated = memory.Mallocs, memory.TotalAlloc
	return r, err
}

// quantile returns a quantile by the nearest rank.
func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

// round keeps four digits, more than these figures are accurate to.
func round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return 0
	}
	p := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*p) / p
}
