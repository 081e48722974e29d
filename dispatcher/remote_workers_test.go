package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

// beat sends a heartbeat of the worker w1.
func beat(w *dispatchertest.World, by authz.Worker, incarnation string, stopping bool) (protocol.WorkerOrders, error) {
	w.T.Helper()
	return w.D.WorkerHeartbeat(w.T.Context(), by, protocol.WorkerHeartbeat{WorkerID: "w1", PoolSize: 1,
		Incarnation: incarnation, Runtimes: []string{"poll"}, Stopping: stopping}, time.Now())
}

// Names of workers mean something only beside their token: neither silence nor the end of another org's worker of the
// same name ends an attempt.
func TestNoWorkerSpeaksForThoseOfOtherTokens(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	other, sibling := w.Org("other").Worker(), w.Worker()
	sibling.TokenName = "sibling"
	for _, stranger := range []authz.Worker{other, sibling} {
		_, err := beat(w, stranger, "", false)
		require.NoError(t, err)
		w.Exec(`UPDATE workers SET last_heartbeat = now() - interval '1 minute', drained_at = now() WHERE id = 'w1'`)
		w.Reap(time.Now())
		require.Equal(t, "Running leased", w.Task(f.id))
		answer, err := f.beat(time.Now())
		require.NoError(t, err)
		require.False(t, answer.DrainRequested)
		_, err = beat(w, stranger, "", true)
		require.NoError(t, err)
		require.Equal(t, "Running leased", w.Task(f.id))
	}
	w.Check()
}

func TestReservedWorkerIDsAreRefused(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	for _, id := range []string{"lambda:told", "Lambda:told", "server:1", "sqs:1", "dagctl:1"} {
		_, err := w.D.WorkerHeartbeat(t.Context(), w.Worker(), protocol.WorkerHeartbeat{WorkerID: id}, time.Now())
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		require.ErrorContains(t, err, "a worker's id may not begin with")
		c := dispatcher.Claimant{WorkerID: id, Worker: w.Worker(), Runtimes: []string{"poll"}}
		_, err = w.D.PollTasks(t.Context(), c, 1, 0)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		_, err = w.D.ClaimByID(t.Context(), c, uuid.New(), time.Now())
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}

// What a function runs belongs to the server, even for a worker that has its name from before such names were refused.
func TestNoTokenSpeaksForAFunction(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	task := w.Want("loads")
	_, err := w.D.ClaimTaken(t.Context(), dispatcher.Holder{Worker: "lambda:told", Remote: true}, time.Now(),
		func(ctx context.Context, tx pgx.Tx) ([]tasks.Taken, error) {
			return w.D.Tasks.TakeReady(ctx, tx, []string{"poll"}, 1, tasks.Holding{})
		})
	require.NoError(t, err)
	w.Exec(`INSERT INTO workers (token, id, hostname, pool_size, last_heartbeat)
		VALUES ($1 || '/workers', 'lambda:told', '', 1, now() - interval '1 hour')`, w.Caller.OrgID.String())
	w.Reap(time.Now())
	require.Equal(t, "Running leased", w.Task(task))
}

// A server that has just started, or was without the database, lets workers renew leases that ran out meanwhile.
func TestAfterAGapWorkersRenewTheirLeases(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	w.Exec(`UPDATE leases SET expires_at = now() - interval '1 second', lease_seconds = 600`)
	_, err := f.beat(time.Now())
	requireConflict(t, err, "the lease of attempt 1")

	w.Start(w.D)
	w.Eventually("the lease is renewed", func() bool {
		_, err := f.beat(time.Now())
		return err == nil
	})
	require.Equal(t, "Running leased", w.Task(f.id))
}

// The heartbeat of a worker brings what it is to stop, however long the leases of its tasks are.
func TestAWorkersHeartbeatNamesWhatIsCanceledAndDrained(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	_, err := beat(w, w.Worker(), "first", false)
	require.NoError(t, err)
	kept, canceled, drained := w.Want("loads"), w.Want("loads"), w.Want("loads")
	first := dispatcher.Claimant{WorkerID: "w1", Incarnation: "first", Worker: w.Worker(), Runtimes: []string{"poll"}}
	for _, task := range []uuid.UUID{kept, canceled, drained} {
		require.Equal(t, protocol.Claimed, claimID(w, first, task).Status)
	}
	orders, err := beat(w, w.Worker(), "first", false)
	require.NoError(t, err)
	require.Empty(t, orders.Canceled)
	require.Empty(t, orders.Drained)

	_, err = w.D.Control.Cancel(t.Context(), w.Caller, canceled)
	require.NoError(t, err)
	w.Exec(`UPDATE leases SET drain_requested_at = now() WHERE task_id = $1`, drained)
	orders, err = beat(w, w.Worker(), "first", false)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{canceled}, orders.Canceled)
	require.Equal(t, []uuid.UUID{drained}, orders.Drained)
	orders, err = beat(w, w.Worker(), "second", false)
	require.NoError(t, err)
	require.Empty(t, append(orders.Canceled, orders.Drained...), "they are not its own")
}

// A process that registers under the id of an earlier one has replaced it: what that one ran goes to others at once.
func TestANewIncarnationReplacesTheOneBefore(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	_, err := beat(w, w.Worker(), "first", false)
	require.NoError(t, err)
	task := w.Want("loads")
	first := dispatcher.Claimant{WorkerID: "w1", Incarnation: "first", Worker: w.Worker(), Runtimes: []string{"poll"}}
	require.Equal(t, protocol.Claimed, claimID(w, first, task).Status)
	w.Reap(time.Now())
	require.Equal(t, "Running leased", w.Task(task))

	_, err = beat(w, w.Worker(), "second", false)
	require.NoError(t, err)
	w.Reap(time.Now())
	require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(task))
	_, err = beat(w, w.Worker(), "first", false)
	requireConflict(t, err, "another process has registered as worker w1 since")
	polled, err := w.D.PollTasks(t.Context(), first, 1, time.Minute)
	require.NoError(t, err)
	require.True(t, polled.Drain)
	workers, err := w.D.Workers(t.Context(), w.Caller, dispatcher.WorkerKey{}, 10, time.Now())
	require.NoError(t, err)
	require.Len(t, workers, 2, "the server, and one worker")

	_, err = w.D.HeartbeatWorker(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	_, err = beat(w, w.Worker(), "first", false)
	requireConflict(t, err, "another process has registered as worker w1 since")
}

// Attempts end with the token that claimed them: their calls are refused, and their tasks go to others.
func TestARevokedTokenEndsItsAttempts(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	_, _, err := authz.CreateToken(t.Context(), w.Pool, w.Caller, authz.NewToken{Name: "workers",
		Kind: authz.KindWorker, Runtimes: []string{"poll"}})
	require.NoError(t, err)
	f := claimFar(w.Tenant, "daily", "a")
	_, err = f.beat(time.Now())
	require.NoError(t, err)
	sibling := w.Worker()
	sibling.TokenName = "sibling"
	out, err := w.D.Enqueue(t.Context(), w.Caller, "work", "daily", []dispatcher.EnqueueItem{{Partition: "b"}})
	require.NoError(t, err)
	going := out[0].ID
	require.Equal(t, protocol.Claimed, claimID(w, dispatcher.Claimant{WorkerID: "w1", Worker: sibling}, going).Status)

	done := f.completed(f.upload("one.parquet", rows("x")))
	require.NoError(t, authz.RevokeToken(t.Context(), w.Pool, w.Caller, "workers"))
	refused := func() {
		t.Helper()
		_, err = f.beat(time.Now())
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
		_, err = w.D.RunningAttempt(t.Context(), f.c, f.claim.Fence())
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
		_, err = f.commit(protocol.Events{Outputs: done.Outputs}, time.Now())
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
		_, err = f.complete(done, time.Now())
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
		require.ErrorContains(t, err, "was revoked")
	}
	refused()
	w.Reap(time.Now())
	require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(f.id))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE id = $1
		AND error_message = 'the token of the worker was revoked'`, f.id))
	require.Equal(t, "Running leased", w.Task(going), "of another token")
	refused()
	w.Check()
}

// A token has so many live workers and no more, whatever it says; those it has go on, and dead ones make room. Of the
// dead and the replaced ones, few are remembered.
func TestATokenHasNoEndOfWorkers(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	token, now := w.Caller.OrgID.String()+"/"+w.Worker().TokenName, time.Now()
	w.Exec(`INSERT INTO workers (token, id, hostname, pool_size, last_heartbeat)
		SELECT $1, 'many-' || n, '', 1, $2 FROM generate_series(1, 1000) AS n`, token, now)
	say := func(by authz.Worker, id, incarnation string, now time.Time) error {
		_, err := w.D.WorkerHeartbeat(t.Context(), by, protocol.WorkerHeartbeat{WorkerID: id, PoolSize: 1,
			Incarnation: incarnation, Runtimes: []string{"poll"}}, now)
		return err
	}
	err := say(w.Worker(), "one-more", "", now)
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
	require.ErrorContains(t, err, "has 1000 live workers, and may have no more")
	require.NoError(t, say(w.Worker(), "many-7", "", now), "it is one of them")
	require.NoError(t, say(w.Worker(), "many-7", "again", now), "it takes the place of one of them")
	require.True(t, fault.Is(say(w.Worker(), "many-7", "", now), fault.Conflict), "it was replaced")
	sibling := w.Worker()
	sibling.TokenName = "sibling"
	require.NoError(t, say(sibling, "one-more", "", now))

	later := now.Add(11 * time.Second)
	w.Exec(`INSERT INTO workers (token, id, hostname, pool_size, last_heartbeat, replaced_at)
		VALUES ($1, 'former', '', 1, to_timestamp(0), $2)`, token, now)
	require.NoError(t, say(w.Worker(), "one-more", "", later))
	require.NoError(t, say(w.Worker(), "another", "", later))
	require.Equal(t, 1002, w.Count(`SELECT FROM workers WHERE token = $1`, token), "two live ones, and 1000")
}
