package builds_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// replace publishes another revision of a partition, or its first one like that of another partition, and tells nobody.
func replace(exec func(sql string, args ...any), generation uuid.UUID, key string) {
	exec(`UPDATE partition_versions SET state = 'Replaced', ended_at = now()
		WHERE dataset_version = $1 AND partition_key = $2 AND state = 'Published'`, generation, key)
	exec(`
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, location,
			files, row_count, bytes, schema, schema_hash, task_id, attempt)
		SELECT org_id, dataset_uuid, dataset_version, $2, revision + 1, 'Published', location, files, row_count, bytes,
			schema, schema_hash, task_id, attempt
		FROM partition_versions WHERE dataset_version = $1
		ORDER BY partition_key = $2 DESC, revision DESC LIMIT 1`, generation, key)
}

// open begins a transaction that ends with the test, at the latest.
func open(t *testing.T, w *dispatchertest.World) (tx pgx.Tx, exec func(sql string, args ...any)) {
	tx, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, func(sql string, args ...any) {
		_, err := tx.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
}

// A build looks at its data without the lock. What is committed after that look, in whatever transaction, counts.
func TestAGateCountsWhatChangesAfterItsLook(t *testing.T) {
	t.Parallel()
	type versions struct{ live, next uuid.UUID }
	for _, c := range []struct {
		name   string
		before func(t *testing.T, w *dispatchertest.World, v versions) (after func()) // called after the look
		want   registry.Status                                                        // of the version then
		ends   registry.Status
	}{
		{name: "a new partition of the source", before: func(_ *testing.T, w *dispatchertest.World, _ versions) func() {
			return func() {
				w.Probe.Put("raw", "2024-01-02", "b")
				w.Poll()
				w.Work()
			}
		}, want: registry.Building, ends: registry.Active},
		{name: "another revision of an input", before: func(
			_ *testing.T, w *dispatchertest.World, v versions,
		) func() {
			return func() { replace(w.Exec, w.Generation(v.live, "raw"), "2024-01-01") }
		}, want: registry.Building, ends: registry.Active},
		{name: "a revision that was written before the look, and is committed after it", before: func(
			t *testing.T, w *dispatchertest.World, v versions,
		) func() {
			tx, exec := open(t, w)
			replace(exec, w.Generation(v.live, "raw"), "2024-01-01")
			w.Exec(`SELECT pg_current_xact_id()`) // a later transaction ends before
			return func() { require.NoError(t, tx.Commit(t.Context())) }
		}, want: registry.Building, ends: registry.Active},
		{name: "a revision that is rolled back", before: func(
			t *testing.T, w *dispatchertest.World, v versions,
		) func() {
			tx, exec := open(t, w)
			replace(exec, w.Generation(v.live, "raw"), "2024-01-01")
			return func() { require.NoError(t, tx.Rollback(t.Context())) }
		}, want: registry.Active, ends: registry.Active},
		{name: "a partition that only live has", before: func(
			_ *testing.T, w *dispatchertest.World, v versions,
		) func() {
			return func() { replace(w.Exec, w.Generation(v.live, "made"), "2024-01-09") }
		}, want: registry.Failed, ends: registry.Failed},
		{name: "a partition that the build loses", before: func(
			_ *testing.T, w *dispatchertest.World, v versions,
		) func() {
			return func() {
				w.Exec(`UPDATE partition_versions SET state = 'Purged', purged_at = now()
					WHERE dataset_version = $1`, w.Generation(v.next, "made"))
			}
		}, want: registry.Failed, ends: registry.Failed},
		{name: "a revision that waits for its checks", before: func(
			_ *testing.T, w *dispatchertest.World, v versions,
		) func() {
			return func() {
				w.Exec(`UPDATE partition_versions SET state = 'Held' WHERE dataset_version = $1`,
					w.Generation(v.next, "made"))
			}
		}, want: registry.Building, ends: registry.Active},
		{name: "nothing", before: func(*testing.T, *dispatchertest.World, versions) func() {
			return func() {}
		}, want: registry.Active, ends: registry.Active},
	} {
		for _, at := range []struct {
			name string
			look int
		}{{"first look", 1}, {"look before the lock", 2}} {
			t.Run(c.name+", "+at.name, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				w.Probe.Put("raw", "2024-01-01", "a")
				live := w.Serve(dispatchertest.Upkept)
				next := w.Deploy(dispatchertest.Tagged("two"))
				w.Advance()
				w.Work()
				w.Route()
				w.Work()

				after := c.before(t, w, versions{live.Version.ID, next.Version.ID})
				looks := 0
				w.D.Builds.FreshLook = 0
				w.D.Builds.AfterLook = func() {
					if looks++; looks == at.look {
						after()
					}
				}
				w.Advance()
				require.GreaterOrEqual(t, looks, at.look)
				status, why := w.Status(next.Version.ID)
				require.Equal(t, c.want, status, why)

				w.Settle()
				status, why = w.Status(next.Version.ID)
				require.Equal(t, c.ends, status, why)
			})
		}
	}
}
