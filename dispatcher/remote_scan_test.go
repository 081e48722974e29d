package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A connection keeps the query plans that it chose while the tables were small.
func TestTasksElsewhereAreLookedUpAmongMany(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	one := func(open func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
		pool, err := open(t.Context(), w.URL, pg.WithMaxConns(1), pg.WithApplicationName(dispatchertest.Watched))
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	owner, asked := one(pg.Open), one(pg.OpenRequests)
	w.D = w.Dispatcher("two", func(c *service.Config) {
		c.Pool, c.Requests, c.AWS = owner, asked, testaws.Config(t)
		there := backends.Backend{Kind: backends.Lambda, Function: "there", Concurrency: 10,
			Endpoint: "http://127.0.0.1:1"}
		c.Backends = backends.RuntimeMap{"lambda": {there}}
	})
	f := w.D.Backends.Functions()[0]

	work := func() {
		first := w.Want("mails")
		claims := []protocol.Claim{claimID(w, claimant(w.Tenant), first)}
		w.Want("loads")
		more, err := w.D.ClaimMany(t.Context(), claimant(w.Tenant, "poll"), 1, time.Now())
		require.NoError(t, err)
		w.Want("there")
		tasks, err := w.D.ClaimTaken(t.Context(), dispatcher.Holder{Worker: f.Holder(), Remote: true}, time.Now(),
			func(ctx context.Context, tx pgx.Tx) ([]tasks.Taken, error) {
				return w.D.Backends.TakeForFunction(ctx, tx, f, 1)
			})
		require.NoError(t, err)
		invoked, err := w.D.WireClaim(tasks[0], time.Now())
		require.NoError(t, err)
		for _, claim := range append(append(claims, more...), invoked) {
			c, err := w.D.Signer.Verify(claim.CapabilityToken, time.Now())
			require.NoError(t, err)
			done := far{w, claim.Task.TaskID, claim, c}
			state, err := done.complete(done.completed(nil), time.Now())
			require.NoError(t, err)
			require.Equal(t, "Completed", state.Status)
		}
		require.Equal(t, "acme", fetch(w, first).Org)
	}

	work()

	const many = 3000
	for table, id := range map[string]string{"tasks": "id", "task_attempts": "task_id", "task_events": "id"} {
		w.Exec(`INSERT INTO `+table+` SELECT copy.* FROM (SELECT * FROM `+table+
			` LIMIT 1) AS r, generate_series(1, $1) AS n,
			jsonb_populate_record(NULL::`+table+`, to_jsonb(r) || jsonb_build_object('`+id+
			`', gen_random_uuid(), 'dedupe_key', n::text)) AS copy`, many)
	}
	for _, set := range []string{
		`leases (task_id, org_id, origin_job_id, slot, attempt, lease_token, worker_id, lease_seconds, expires_at,
			timeout_at, heartbeat_at)
			SELECT gen_random_uuid(), $2, gen_random_uuid(), '', 1, gen_random_uuid(), 'lambda:' || n % 100, 60, now(), now(),
			now()`,
		`waiting (task_id, org_id, origin_job_id, slot, reason, rank)
			SELECT gen_random_uuid(), $2, gen_random_uuid(), '', 'dead', 0`,
		`ready (task_id, org_id, origin_job_id, slot, runtime, rank)
			SELECT gen_random_uuid(), $2, gen_random_uuid(), '', 'other', 0`,
	} {
		w.Exec(`INSERT INTO `+set+` FROM generate_series(1, $1) AS n`, many, w.Caller.OrgID)
	}

	for range 3 {
		work()
	}

	owner.Close()
	asked.Close()
	require.Empty(t, w.ReadInSequence(many))
}

func fetch(w *dispatchertest.World, task uuid.UUID) protocol.TaskState {
	w.T.Helper()
	state, err := w.D.FetchTask(w.T.Context(), w.Worker(), task)
	require.NoError(w.T, err)
	return state
}
