package dispatcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
)

// The whole engine: two processes, files that arrive, a deploy, and nothing turned by hand.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("2024-01-01.csv", "n\n1\n2\n")
	w.start(w.dispatcher("a"))
	w.start(w.dispatcher("b"))
	sum := func(day, want string) func() bool {
		return func() bool {
			got, err := w.tryRead("landed_sums")
			return err == nil && len(got[day]) == 1 && got[day][0] == want
		}
	}
	w.deploy(edit(landed, "every: 10s", "every: 1s"))
	w.eventually("the first file is summed up", sum("2024-01-01", "3"))
	w.drop("2024-01-02.csv", "n\n4\n")
	w.eventually("a new file is found", sum("2024-01-02", "4"))
	w.deploy(edit(landed, "every: 10s", "every: 1s", "sum(n)", "2 * sum(n)"))
	w.eventually("the new version serves", sum("2024-01-01", "6"))
	require.True(t, sum("2024-01-02", "8")(), "all of it at once")
	w.check()
}

// A process that is stopped hands back what it runs; another goes on at once, and no failure is counted.
func TestStoppingHandsBack(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	m := newMeeting()
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if task.Attempt == 1 {
			return operators.Result{}, m.wait(ctx, task)
		}
		return operators.Result{}, w.probe.write(ctx, task, "by the other")
	})
	stop := w.start(w.dispatcher("stopped"))
	id := <-m.arrived
	stop()
	w.check()
	require.Equal(t, "Queued handed_back ready", w.task(id))
	w.start(w.dispatcher("other"))
	w.eventually("the other does it", func() bool { return w.task(id) == "Completed" })
	var failures, attempt int
	w.row(`SELECT failures, attempt FROM tasks WHERE id = $1`, id)(&failures, &attempt)
	require.Equal(t, []int{0, 2}, []int{failures, attempt})
	require.Equal(t, []string{"by the other"}, w.read("pair_made")[firstDay])
}

// Connections that break and calls that are cut off in the middle leave nothing half done: what was to be made is made, once.
func TestCrashesInBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 12
	for i := range n {
		w.probe.put("raw", fmt.Sprintf("k%02d", i), "a")
	}
	for i := range 3 {
		w.start(w.dispatcher(fmt.Sprint("process", i)))
	}
	killer, err := pgx.Connect(t.Context(), w.url)
	require.NoError(t, err)
	defer killer.Close(context.WithoutCancel(t.Context()))
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	yaml := edit(pair, "partition_by: { time: day }", "partition_by: key\n    max_attempts: 50\n    heartbeat_timeout_seconds: 5", "    config: { tag: m }", "    max_attempts: 50\n    heartbeat_timeout_seconds: 5\n    config: { tag: m }")
	w.eventually("the deploy gets through", func() bool { _, err := w.tryDeploy(yaml); return err == nil })
	contents := []string{"a", "b", "c"}
	for _, content := range contents {
		for i := range n {
			w.probe.put("raw", fmt.Sprintf("k%02d", i), content)
		}
		for range 25 {
			// Somebody's connection, in the middle of whatever it does.
			_, err := killer.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle' ORDER BY random() LIMIT 1`)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(20))*time.Millisecond)
			d := w.d
			switch random.IntN(4) {
			case 0:
				_, _ = d.routeOnce(ctx, later(0))
			case 1:
				tasks, _ := d.claim(ctx, []string{"dispatcher"}, "one", 2, later(0))
				for _, task := range tasks {
					d.execute(t.Context(), task)
				}
			case 2:
				_, _ = d.promoteDue(ctx, later(time.Second))
			case 3:
				_, _ = killer.Exec(t.Context(), `UPDATE sources SET next_fire_at = now()`)
				_, _ = d.fireSources(ctx, later(0))
			}
			cancel()
		}
	}
	w.eventually("all is as the last contents say", func() bool {
		// Leases whose claim was answered by a broken connection run out by themselves; for the rest nobody waits: not for the next
		// poll, and not for back-offs that the crashes made long.
		_, _ = killer.Exec(t.Context(), `UPDATE sources SET next_fire_at = now() WHERE next_fire_at > now() + interval '1 minute'`)
		_, _ = killer.Exec(t.Context(), `UPDATE waiting SET available_at = now() WHERE available_at > now()`)
		if w.d.Reconcile(t.Context(), later(0)) != nil {
			return false
		}
		got, err := w.tryRead("pair_made")
		if err != nil || len(got) != n {
			return false
		}
		for _, rows := range got {
			if len(rows) != 1 || rows[0] != "m(c)" {
				return false
			}
		}
		return true
	})
	w.eventually("nothing is left over", func() bool {
		settled, err := w.d.Settled(t.Context(), w.caller.OrgID)
		return err == nil && settled && len(broken(t, w.pool)) == 0
	})
	require.Empty(t, texts(t, w.pool, `SELECT partition_key FROM partition_versions WHERE state = 'Published' GROUP BY dataset_version, partition_key HAVING count(*) > 1`))
}

// A process that starts finds every connection of its pool dead, as after a restart of the database: it starts all the same.
func TestStartingOverDeadConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held := make([]*pgxpool.Conn, 10)
	for i := range held {
		conn, err := w.pool.Acquire(t.Context())
		require.NoError(t, err)
		held[i] = conn
	}
	pids := make([]uint32, len(held))
	for i, conn := range held {
		pids[i] = conn.Conn().PgConn().PID()
		conn.Release()
	}
	other, err := pgx.Connect(t.Context(), w.url)
	require.NoError(t, err)
	defer other.Close(t.Context())
	_, err = other.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid`, pids)
	require.NoError(t, err)
	require.NoError(t, w.d.registerSoon(t.Context()))
	require.Equal(t, 1, w.count(`SELECT FROM workers WHERE id = $1`, w.d.WorkerID))
}
