package views_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
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
	moreJobs(w, 3000)

	require.NoError(t, pg.InOrgTx(t.Context(), w.Requests, w.Caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err := w.D.Registry.SourceJobs(ctx, tx, w.Caller, "")
		require.NoError(t, err)
		require.Len(t, found, 1)
		_, err = footprint.Clocks(ctx, tx, w.Caller, time.Hour)
		require.NoError(t, err)
		require.Less(t, rowsRead(ctx, t, tx, "jobs"), int64(20))
		return nil
	}))
}

// Whether a reader may look into some jobs depends on what these make. Nothing else is read, however many versions of
// DAGs there are.
func TestHiddenJobsAreFoundWithoutOtherVersions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	moreJobs(w, 300)
	w.Exec(`
		SET session_replication_role = replica;
		INSERT INTO dag_version_datasets (org_id, dag_version_id, dataset_uuid, dataset_version, job_name, output_index,
			name)
		SELECT org_id, gen_random_uuid(), dataset_uuid, dataset_version, job_name, output_index, name
		FROM dag_version_datasets, generate_series(1, 5000);
		RESET session_replication_role;
		ANALYZE dag_version_datasets`)

	reader := w.Caller
	reader.Actor, reader.Role = "user:reader", authz.RoleReader
	ctx := pg.WithReader(t.Context(), pg.Reader{})
	require.NoError(t, pg.InOrgTx(ctx, w.Requests, reader.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE org_id = $1 ORDER BY name`, reader.OrgID)
		require.NoError(t, err)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		require.NoError(t, err)
		before := rowsRead(ctx, t, tx, "dag_version_datasets")
		hidden, err := w.D.Registry.HiddenAmong(ctx, tx, reader, ids)
		require.NoError(t, err)
		require.Len(t, hidden, len(ids)-1, "but the one that makes what is published")
		require.LessOrEqual(t, rowsRead(ctx, t, tx, "dag_version_datasets")-before, int64(4*len(ids)))
		return nil
	}))
}

// rowsRead returns how many rows of a table a transaction has read.
func rowsRead(ctx context.Context, t *testing.T, tx pgx.Tx, table string) (n int64) {
	t.Helper()
	require.NoError(t, tx.QueryRow(ctx, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
		WHERE relname = $1`, table).Scan(&n))
	return n
}

// moreJobs adds reactive jobs that make nothing to the version that serves.
func moreJobs(w *dispatchertest.World, n int) {
	w.Exec(`
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint,
			activation, runtime, operator, operator_version, config_hash, update_strategy, effect, definition)
		SELECT id, org_id, 'more_' || n, dag_name, dag_version_id, id, 'more_' || n, 'more_' || n, activation, runtime,
			operator, operator_version, config_hash, update_strategy, effect, '{}'
		FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, $1::int) AS n) AS more,
			(SELECT org_id, dag_name, dag_version_id, activation, runtime, operator, operator_version, config_hash,
				update_strategy, effect FROM jobs WHERE name = 'made') AS j`, n)
	w.Exec(`ANALYZE jobs`)
}
