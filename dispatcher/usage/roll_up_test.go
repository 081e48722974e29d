package usage_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/operators"
)

// figures are sums over all jobs of a world.
type figures struct {
	Job                     string
	Attempts, Tasks, Failed int64
	Seconds                 float64
	Rows, Bytes             int64
}

func read(t *testing.T, w *dispatchertest.World, sql string) []figures {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), sql)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[figures])
	require.NoError(t, err)
	return found
}

// counted is what the roll-up has, fromTasks what tasks, attempts and revisions say. The seconds are to the second.
const (
	counted = `
		SELECT job_name, sum(attempts)::bigint, sum(tasks)::bigint, sum(failed)::bigint, round(sum(seconds)::numeric, 3)::float8,
			sum(rows)::bigint, sum(bytes)::bigint
		FROM %s GROUP BY 1 ORDER BY 1`
	fromTasks = `
		SELECT j.name, sum(a.attempts)::bigint, count(*) FILTER (WHERE t.status = 'Completed'), sum(a.failed)::bigint,
			round(sum(a.seconds)::numeric, 3)::float8, sum(r.rows)::bigint, sum(r.bytes)::bigint
		FROM tasks t JOIN jobs j ON j.id = t.job_id
		CROSS JOIN LATERAL (
			SELECT count(*) AS attempts, count(*) FILTER (WHERE outcome NOT IN ('Completed', 'Canceled')) AS failed,
				coalesce(sum(extract(epoch FROM ended_at - started_at)), 0) AS seconds
			FROM (
				SELECT started_at, ended_at, outcome FROM task_attempts a WHERE a.task_id = t.id AND ended_at IS NOT NULL
				UNION ALL
				SELECT t.started_at, t.completed_at, 'Completed' WHERE t.status = 'Completed'
					AND NOT EXISTS (SELECT FROM task_attempts a WHERE a.task_id = t.id AND a.attempt = t.attempt)) AS x) AS a
		CROSS JOIN LATERAL (
			SELECT coalesce(sum(row_count), 0) AS rows, coalesce(sum(bytes), 0) AS bytes
			FROM partition_versions v WHERE v.task_id = t.id AND v.inherited_from IS NULL) AS r
		WHERE a.attempts > 0 GROUP BY 1 ORDER BY 1`
)

// daysOfDAGs sums a table by DAG and day.
const daysOfDAGs = `SELECT day || dag_name, sum(attempts)::bigint, sum(tasks)::bigint, sum(failed)::bigint,
	round(sum(seconds)::numeric, 3)::float8, sum(rows)::bigint, sum(bytes)::bigint FROM `

// countAll counts until everything that has ended by now is counted.
func countAll(t *testing.T, w *dispatchertest.World, us *usage.Usage) {
	t.Helper()
	by := time.Now()
	for over := false; !over; {
		_, err := us.Count()(t.Context(), "")
		require.NoError(t, err)
		w.Row(`SELECT counted > $1 FROM usage_progress`, by)(&over)
	}
}

// roll returns the usage of another process, with a margin that tests can wait for.
func roll(w *dispatchertest.World, id string) *usage.Usage {
	us := w.Dispatcher(id).Usage
	us.Margin = 50 * time.Millisecond
	return us
}

// Whatever happens to tasks, whoever counts at the same time and wherever that is cut off: each attempt counts once.
func TestEachAttemptCountsOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 39))
			w := dispatchertest.NewWorld(t)
			one, two := roll(w, "count-one"), roll(w, "count-two")
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(dispatchertest.Pair)
			var fails bool
			w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
				if fails {
					return operators.Result{}, errors.New("disk full")
				}
				return operators.Result{}, w.Probe.Write(ctx, task, fmt.Sprint(random.Int()))
			})

			for step := range 25 {
				w.Probe.Put("raw", fmt.Sprintf("2024-01-%02d", 1+random.IntN(28)), fmt.Sprint(step))
				w.Poll()
				w.Route()
				fails = random.IntN(4) == 0
				switch random.IntN(4) {
				case 0: // attempts are lost, and report too late
					claimed := w.Claim(w.D)
					var done []func() error
					for _, c := range claimed {
						if !fails {
							d := w.Do(w.D, c)
							done = append(done, func() error {
								return w.D.CompleteAttempt(t.Context(), c, d, time.Now())
							})
						}
					}
					w.Exec(`UPDATE leases SET expires_at = now()`)
					w.Reap(time.Now())
					for _, report := range done {
						if random.IntN(2) == 0 {
							require.NoError(t, report())
						}
					}
				case 1:
					w.Promote(dispatchertest.Later(time.Hour))
				}
				w.Work()

				// Two count at once, one of them is cut off somewhere.
				ctx, crash := context.WithTimeout(t.Context(), time.Duration(random.IntN(8))*time.Millisecond)
				var both sync.WaitGroup
				both.Go(func() { _, _ = one.Count()(ctx, "") })
				both.Go(func() { _, _ = two.Count()(t.Context(), "") })
				both.Wait()
				crash()
			}

			countAll(t, w, one)
			want := read(t, w, fromTasks)
			require.Len(t, want, 2)
			require.Positive(t, want[0].Failed)
			require.Positive(t, want[0].Bytes)
			require.Equal(t, want, read(t, w, fmt.Sprintf(counted, "usage_hours")))
			require.Equal(t, want, read(t, w, fmt.Sprintf(counted, "usage_days")))
			require.Equal(t, read(t, w, daysOfDAGs+`usage_days GROUP BY 1 ORDER BY 1`),
				read(t, w, daysOfDAGs+`usage_dag_days GROUP BY 1 ORDER BY 1`))
			require.Equal(t, w.Count(`SELECT FROM task_events WHERE from_status = 'Running' AND to_status = 'Completed'`),
				w.Count(`SELECT FROM usage_days, unnest(durations) AS n, generate_series(1, n)`))
		})
	}
}

// A transaction that has its place in the trail and commits late holds counting up, and nothing else does.
func TestALateCommitIsCounted(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	us := roll(w, "counts")
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Pair)
	w.Settle()
	countAll(t, w, us)
	before := w.Count(`SELECT FROM usage_hours, generate_series(1, attempts)`)
	require.Positive(t, before)

	const end = `INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor)
		SELECT uuid_v7(), org_id, id, attempt, 'Running', 'Failed', 'WORKER' FROM tasks LIMIT 1`
	late, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = late.Exec(t.Context(), end)
	require.NoError(t, err)
	w.Exec(end) // a later place, and an earlier commit
	for range 20 {
		_, err := us.Count()(t.Context(), "")
		require.NoError(t, err)
	}
	require.NoError(t, late.Commit(t.Context()))

	countAll(t, w, us)
	require.Equal(t, before+2, w.Count(`SELECT FROM usage_hours, generate_series(1, attempts)`))
}
