package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A connection keeps the plans that it made while the tables were small.
func TestTasksElsewhereAreLookedUpAmongMany(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	one := func(open func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
		pool, err := open(t.Context(), w.url, pg.WithMaxConns(1), pg.WithApplicationName("watched"))
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	owner, asked := one(pg.Open), one(pg.OpenRequests)
	w.d = w.dispatcher("two", func(c *Config) { c.Pool, c.Requests = owner, asked })
	f := &function{runtime: "lambda", backend: Backend{Function: "there", Concurrency: 10}}
	w.d.Backends = RuntimeMap{f.runtime: {f.backend}}
	work := func() {
		first := w.want("mails")
		claims := []protocol.Claim{w.claimID(w.claimant(), first)}
		w.want("loads")
		more, err := w.d.ClaimMany(t.Context(), w.claimant("poll"), 1, time.Now())
		require.NoError(t, err)
		w.want("there")
		tasks, err := w.d.claimTaken(t.Context(), holder{f.holder(), true}, time.Now(), func(ctx context.Context, tx pgx.Tx) ([]claimable, error) {
			return w.d.takeForFunction(ctx, tx, f, 1)
		})
		require.NoError(t, err)
		invoked, err := w.d.wireClaim(tasks[0], time.Now())
		require.NoError(t, err)
		for _, claim := range append(append(claims, more...), invoked) {
			c, err := w.d.Signer.Verify(claim.CapabilityToken, time.Now())
			require.NoError(t, err)
			done := far{w, claim.Task.TaskID, claim, c}
			state, err := done.complete(done.completed(nil), time.Now())
			require.NoError(t, err)
			require.Equal(t, "Completed", state.Status)
		}
		require.Equal(t, "acme", w.fetch(first).Org)
	}
	work()
	const many = 3000
	for table, id := range map[string]string{"tasks": "id", "task_attempts": "task_id", "task_events": "id"} {
		w.exec(`INSERT INTO `+table+` SELECT copy.* FROM (SELECT * FROM `+table+` LIMIT 1) AS r, generate_series(1, $1) AS n,
			jsonb_populate_record(NULL::`+table+`, to_jsonb(r) || jsonb_build_object('`+id+`', gen_random_uuid(), 'dedupe_key', n::text)) AS copy`, many)
	}
	for _, set := range []string{
		`leases (task_id, org_id, job_id, slot, attempt, lease_token, worker_id, lease_seconds, expires_at, timeout_at, heartbeat_at)
			SELECT gen_random_uuid(), $2, gen_random_uuid(), '', 1, gen_random_uuid(), 'lambda:other', 60, now(), now(), now()`,
		`waiting (task_id, org_id, job_id, slot, reason, rank) SELECT gen_random_uuid(), $2, gen_random_uuid(), '', 'dead', 0`,
		`ready (task_id, org_id, job_id, slot, runtime, rank) SELECT gen_random_uuid(), $2, gen_random_uuid(), '', 'other', 0`,
	} {
		w.exec(`INSERT INTO `+set+` FROM generate_series(1, $1)`, many, w.caller.OrgID)
	}
	for range 3 {
		work()
	}
	owner.Close()
	asked.Close()
	for w.count(`SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'watched'`) > 0 {
	}
	require.Empty(t, texts(t, w.pool, `SELECT relname || ': ' || seq_tup_read FROM pg_stat_user_tables WHERE seq_tup_read >= $1`, many))
}

func (w *world) fetch(task uuid.UUID) protocol.TaskState {
	w.t.Helper()
	state, err := w.d.FetchTask(w.t.Context(), w.worker(), task)
	require.NoError(w.t, err)
	return state
}
