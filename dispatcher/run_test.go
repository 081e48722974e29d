package dispatcher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
)

// The whole engine runs by itself: two processes, files that arrive, and a deploy.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "n\n1\n2\n")
	w.Start(w.Dispatcher("a"))
	w.Start(w.Dispatcher("b"))
	sum := func(day, want string) func() bool {
		return func() bool {
			got, err := w.TryRead("landed_sums")
			return err == nil && len(got[day]) == 1 && got[day][0] == want
		}
	}
	w.Deploy(dispatchertest.Edit(dispatchertest.Landed, "every: 10s", "every: 1s"))
	w.Eventually("the first file is summed up", sum("2024-01-01", "3"))
	w.Drop("2024-01-02.csv", "n\n4\n")
	w.Eventually("a new file is found", sum("2024-01-02", "4"))
	w.Deploy(dispatchertest.Edit(dispatchertest.Landed, "every: 10s", "every: 1s", "sum(n)", "2 * sum(n)"))
	w.Eventually("the new version serves", sum("2024-01-01", "6"))
	require.True(t, sum("2024-01-02", "8")(), "all of it at once")
	w.Check()
}

// A process that is stopped hands back its tasks; another continues them at once, and no failure is counted.
func TestStoppingHandsBack(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	m := dispatchertest.NewMeeting()
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if task.Attempt == 1 {
			return operators.Result{}, m.Wait(ctx, task)
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "by the other")
	})
	stop := w.Start(w.Dispatcher("stopped"))
	id := <-m.Arrived
	stop()
	w.Check()
	require.Equal(t, "Queued handed_back ready", w.Task(id))
	w.Start(w.Dispatcher("other"))
	w.Eventually("the other does it", func() bool { return w.Task(id) == "Completed" })
	var failures, attempt int
	w.Row(`SELECT failures, attempt FROM tasks WHERE id = $1`, id)(&failures, &attempt)
	require.Equal(t, []int{0, 2}, []int{failures, attempt})
	require.Equal(t, []string{"by the other"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

// A process that is stopped while the COMMIT of a claim is under way knows of the tasks that it has got.
func TestStoppingInTheCommitOfAClaimHandsBack(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, "by the other")
	})
	w.Exec(`
		CREATE FUNCTION wait_in_commit() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(4711);
			RETURN NULL;
		EXCEPTION WHEN query_canceled THEN -- too late: what is sent while COMMIT runs no longer stops it
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER wait_in_commit AFTER INSERT ON leases DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait_in_commit()`)
	gate, err := pgx.Connect(t.Context(), w.URL)
	require.NoError(t, err)
	defer gate.Close(context.WithoutCancel(t.Context()))
	_, err = gate.Exec(t.Context(), `SELECT pg_advisory_lock(4711)`)
	require.NoError(t, err)

	stop := w.Start(w.Dispatcher("stopped"))
	w.Eventually("a claim is in its COMMIT", func() bool {
		return w.Count(`SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted`) > 0
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	w.Eventually("the process to stop its loops", func() bool {
		return w.Count(`SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`) == 0
	})
	_, err = gate.Exec(t.Context(), `SELECT pg_advisory_unlock(4711)`)
	require.NoError(t, err)
	<-stopped

	require.Zero(t, w.Count(`SELECT FROM leases`), "nobody holds a lease")
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE failures > 0`))
	w.Start(w.Dispatcher("other"))
	w.Eventually("the other does it", func() bool {
		return w.Read("pair_made")[dispatchertest.FirstDay][0] == "by the other"
	})
}

// A connection that is cut while a completion is committed costs no attempt: the end is said again.
func TestACompletionWithoutAnAnswerIsSaidAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Exec(`
		CREATE SEQUENCE completions;
		CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('completions') <= 3 THEN
				PERFORM pg_terminate_backend(pg_backend_pid());
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER cut BEFORE UPDATE ON tasks FOR EACH ROW WHEN (NEW.status = 'Completed') EXECUTE FUNCTION cut()`)
	w.Start(w.Dispatcher("cut"))
	w.Deploy(dispatchertest.Pair)
	w.Eventually("it is done", func() bool {
		got, err := w.TryRead("pair_made")
		return err == nil && len(got) == 1
	})
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE failures > 0 OR attempt > 1`))
}

// A claim whose answer was lost has made tasks run that nobody runs. The process hands them back.
func TestAClaimWithoutAnAnswerIsHandedBack(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	w.Route()
	now := dispatchertest.Later(0)
	lost, err := w.D.Claim(t.Context(), w.D.InProcessRuntimes(), w.D.WorkerID, 100, now)
	require.NoError(t, err)
	require.NotEmpty(t, lost)
	w.D.NoteUnanswered(w.D.WorkerID, now)

	again, err := w.D.Claim(t.Context(), w.D.InProcessRuntimes(), w.D.WorkerID, 100, now.Add(time.Second))
	require.NoError(t, err)
	require.Len(t, again, len(lost))
	require.Equal(t, 2, again[0].Attempt)
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE failures > 0`))
}

// While somebody locks the tables for longer than a lease, no holder can renew one. None is lost.
func TestALockedTableCostsNoLease(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "    config: { tag: m }",
		"    max_attempts: 1\n    heartbeat_timeout_seconds: 5\n    config: { tag: m }"))
	w.Change("b")
	m := dispatchertest.NewMeeting()
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if err := m.Wait(ctx, task); err != nil {
			return operators.Result{}, err
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "through")
	})
	w.Start(w.Dispatcher("one"))
	w.Start(w.Dispatcher("two"))
	id := <-m.Arrived

	w.Exec(`BEGIN; LOCK TABLE leases, tasks IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(9); COMMIT`)
	w.Eventually("another heartbeat", func() bool {
		return w.Count(`SELECT FROM leases WHERE expires_at > now() + interval '3 seconds'`) == 1
	})
	require.Equal(t, "Running leased", w.Task(id))
	close(m.Leave)
	w.Eventually("it is done", func() bool { return w.Task(id) == "Completed" })
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE failures > 0`))
}

// Broken connections and interrupted calls leave nothing half done: each task is done once.
func TestCrashesInBetween(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	const n = 12
	for i := range n {
		w.Probe.Put("raw", fmt.Sprintf("k%02d", i), "a")
	}
	for i := range 3 {
		w.Start(w.Dispatcher(fmt.Sprint("process", i)))
	}

	killer, err := pgx.Connect(t.Context(), w.URL)
	require.NoError(t, err)
	defer killer.Close(context.WithoutCancel(t.Context()))

	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))

	yaml := dispatchertest.Edit(dispatchertest.Pair, "partition_by: { time: day }",
		"partition_by: key\n    max_attempts: 50\n    heartbeat_timeout_seconds: 5", "    config: { tag: m }",
		"    max_attempts: 50\n    heartbeat_timeout_seconds: 5\n    config: { tag: m }")
	w.Eventually("the deploy gets through", func() bool { _, err := w.TryDeploy(yaml); return err == nil })

	contents := []string{"a", "b", "c"}
	for _, content := range contents {
		for i := range n {
			w.Probe.Put("raw", fmt.Sprintf("k%02d", i), content)
		}
		for range 25 {
			// Close the connection of any process, in the middle of any call.
			_, err := killer.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle' ORDER BY random()
				LIMIT 1`)
			require.NoError(t, err)

			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(20))*time.Millisecond)
			d := w.D
			switch random.IntN(4) {
			case 0:
				_, _ = d.RouteOnce(ctx, dispatchertest.Later(0))
			case 1:
				tasks, _ := d.Claim(ctx, []string{"dispatcher"}, "one", 2, dispatchertest.Later(0))
				for _, task := range tasks {
					dispatchertest.Execute(t.Context(), d, task)
				}
			case 2:
				_, _ = d.PromoteDue(ctx, dispatchertest.Later(time.Second))
			case 3:
				_, _ = killer.Exec(t.Context(), `UPDATE sources SET next_fire_at = now()`)
				_, _ = d.Sources.Fire(ctx, dispatchertest.Later(0))
				d.Sources.EndReading()
			}
			cancel()
		}
	}

	w.Eventually("all is as the last contents say", func() bool {
		// Leases whose claim was answered by a broken connection expire by themselves. For everything else, the test
		// skips the next poll and the back-offs, which the crashes made long.
		_, _ = killer.Exec(t.Context(), `UPDATE sources SET next_fire_at = now()
			WHERE next_fire_at > now() + interval '1 minute'`)
		_, _ = killer.Exec(t.Context(), `UPDATE waiting SET available_at = now() WHERE available_at > now()`)
		if w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)) != nil {
			return false
		}
		got, err := w.TryRead("pair_made")
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

	w.Eventually("nothing is left over", func() bool {
		settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
		return err == nil && settled && len(dispatchertest.Violations(t, w.Pool)) == 0
	})
	require.Empty(t, dispatchertest.Texts(t, w.Pool, `SELECT partition_key FROM partition_versions
		WHERE state = 'Published' GROUP BY dataset_version, partition_key HAVING count(*) > 1`))
}

// A process finds every connection of its pool dead, as after a restart of the database, and starts nevertheless.
func TestStartingOverDeadConnections(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	held := make([]*pgxpool.Conn, 10)
	for i := range held {
		conn, err := w.Pool.Acquire(t.Context())
		require.NoError(t, err)
		held[i] = conn
	}
	pids := make([]uint32, len(held))
	for i, conn := range held {
		pids[i] = conn.Conn().PgConn().PID()
		conn.Release()
	}
	other, err := pgx.Connect(t.Context(), w.URL)
	require.NoError(t, err)
	defer other.Close(t.Context())
	_, err = other.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid`, pids)
	require.NoError(t, err)
	require.NoError(t, w.D.RegisterSoon(t.Context()))
	require.Equal(t, 1, w.Count(`SELECT FROM workers WHERE id = $1`, w.D.WorkerID))
}
