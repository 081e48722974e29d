package views_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry/footprint"
)

// Lists of sources, and what fires next, look at no job that is no source, however many a DAG has.
func TestSourcesAreFoundWithoutOtherJobs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Exec(`
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint,
			activation, runtime, operator, operator_version, config_hash, update_strategy, effect, definition)
		SELECT id, org_id, 'more_' || n, dag_name, dag_version_id, id, 'more_' || n, 'more_' || n, activation, runtime,
			operator, operator_version, config_hash, update_strategy, effect, '{}'
		FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 3000) AS n) AS more,
			(SELECT org_id, dag_name, dag_version_id, activation, runtime, operator, operator_version, config_hash,
				update_strategy, effect FROM jobs WHERE name = 'made') AS j`)
	w.Exec(`ANALYZE jobs`)

	require.NoError(t, pg.InOrgTx(t.Context(), w.Requests, w.Caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err := w.D.Registry.SourceJobs(ctx, tx, w.Caller, "")
		require.NoError(t, err)
		require.Len(t, found, 1)
		_, err = footprint.Clocks(ctx, tx, w.Caller, time.Hour)
		require.NoError(t, err)
		var read int64
		require.NoError(t, tx.QueryRow(ctx, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE relname = 'jobs'`).Scan(&read))
		require.Less(t, read, int64(20))
		return nil
	}))
}
