package sources_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
)

const twoPolls = `name: polls
jobs:
  - { name: one, operator: hook, config: { tag: t }, source: { kind: poll, every: 1h } }
  - { name: two, operator: hook, config: { tag: t }, source: { kind: poll, every: 1h } }
`

// Sources that are due together lock their jobs in the order in which everybody does, and not in that of their times:
// who promotes retries of the same jobs meanwhile would wait for them while they wait for it.
func TestSourcesLockInOrder(t *testing.T) {
	t.Parallel()
	for _, late := range []string{"one", "two"} {
		t.Run(late+" is due last", func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(twoPolls)
			w.Settle()
			w.Exec(`UPDATE sources SET next_fire_at = now() - interval '2 minutes'
				+ CASE WHEN job_name = $1 THEN interval '1 minute' ELSE '0' END`, late)
			var origins []uuid.UUID
			w.Row(`SELECT array_agg(DISTINCT origin_job_id) FROM jobs`)(&origins)
			origins = tasks.SortedIDs(origins)

			fired := make(chan error, 1)
			require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := tasks.LockOrigins(ctx, tx, origins[:1]); err != nil {
					return err
				}
				go func() {
					_, err := w.D.Sources.Fire(t.Context(), time.Now())
					fired <- err
				}()
				w.Eventually("they wait for the first lock", func() bool {
					return w.Count(`SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
						WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database()`) > 0
				})
				if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '200ms'`); err != nil {
					return err
				}
				return tasks.LockOrigins(ctx, tx, origins[1:])
			}))
			require.NoError(t, <-fired)
			require.Len(t, w.Tasks("one"), 2, "that of the deploy, and that of its time")
			require.Len(t, w.Tasks("two"), 2)
		})
	}
}
